//! A model that can step: loaded, recorded, with its streams and its exchange of neurons.

use placement::{Forecast, LayerPlacement, Placement};

use crate::adapt::Adapt;
use crate::error::Result;
use crate::load::{Loaded, Loader};
use crate::observe::Observers;
use crate::record::Recording;
use crate::size::Sizing;
use crate::step::Stepper;
use crate::stream::{Stream, make_streams};

/// A model on its devices, ready to step.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) stepper: Stepper,
    /// Made at the first observed step.
    pub(super) observers: Option<Observers>,
    /// Exchanges neurons between devices, if that is on.
    pub(super) adapt: Option<Adapt>,
}

/// The tensors of a model that is loaded.
pub(super) fn loaded(ready: &mut Option<Ready>) -> Result<&mut Loaded> {
    Ok(&mut ready.as_mut().ok_or(hal::Error::Cancelled)?.stepper.loaded)
}

impl Ready {
    /// Loads by `placement`, whose `forecast` is known if it was planned here, and records the
    /// programs. Also returns the slow paths and their reasons, each to be reported once.
    pub(super) fn build(
        loader: &Loader<'_>,
        placement: &Placement,
        forecast: Option<&Forecast>,
    ) -> Result<(Ready, Vec<String>)> {
        let sizing = &loader.sizing;
        let rungs = sizing.options.ladder();
        let mut loaded = loader.load(placement)?;
        let mut slow = Vec::new();
        let from = sizing.streams_from(placement, forecast, &mut slow);
        let recording = Recording::new(sizing, &rungs, &loaded);
        let streams = make_streams(sizing, &recording, &loaded, placement, &from, &mut slow)?;
        let streamed: Vec<_> = streams.iter().flatten().map(Stream::streamed_layers).collect();
        let programs = recording.programs(placement, &streamed)?;
        let seconds = forecast.map(|forecast| forecast.seconds);
        let (adapt, refused) = match Adapt::new(sizing, &loaded.layers, placement, seconds) {
            Ok(adapt) => (adapt, None),
            Err(refused) => (None, Some(refused)),
        };
        loaded.clear_hits()?;
        if adapt.is_some() {
            Adapt::reserve(sizing, &mut loaded, placement)?;
        }
        let stepper = Stepper::new(loaded, programs, streams, rungs.len());
        slow.splice(0..0, stepper.slow_ops());
        slow.extend(refused);
        Ok((Ready { stepper, observers: None, adapt }, slow))
    }

    /// Exchanges neurons where the gain is clear, and returns the layers whose placement changed.
    /// After an error the contents of the slots are unknown.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn exchange(
        &mut self,
        sizing: &Sizing<'_>,
        placement: &Placement,
    ) -> Result<Vec<(usize, LayerPlacement)>> {
        let Some(adapt) = &mut self.adapt else { return Ok(Vec::new()) };
        let mut changed = Vec::new();
        for now in adapt.exchange(sizing, &mut self.stepper.loaded, placement)? {
            if let Some(observers) = &mut self.observers {
                observers.relabel(now.layer, &now.placed, now.experts);
            }
            let streams = self.stepper.streams.iter_mut().flatten();
            streams.for_each(|stream| stream.place(now.layer, &now.placed, sizing.model));
            changed.push((now.layer, now.placed));
        }
        Ok(changed)
    }
}
