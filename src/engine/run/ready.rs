//! A model that is ready to step: loaded weights, recorded programs, streams, and the exchange of
//! neurons.

use hal::{Bytes, Device, DeviceKind};
use placement::{CPU, Forecast, LayerPlacement, Placement};

use super::watch::WatchState;
use crate::adapt::NeuronExchange;
use crate::error::Result;
use crate::load::{LoadedModel, Loader};
use crate::observe::Observers;
use crate::paging::{PagedWeights, Paging, Parts, Plan};
use crate::record::Recording;
use crate::size::Sizing;
use crate::step::Stepper;
use crate::stream::{Stream, make_streams};

/// A model on its devices, ready to step.
#[derive(Debug)]
pub(super) struct ReadyEngine {
    pub(super) stepper: Stepper,
    /// Programs of observed steps; `None` until the first observed step.
    pub(super) observers: Option<Observers>,
    /// Exchanges neurons between devices; `None` if none are exchanged.
    pub(super) adapt: Option<NeuronExchange>,
    /// Counts which neurons fire; `None` until the first watched step.
    pub(super) watching: Option<WatchState>,
}

/// The tensors of the loaded model; [`hal::Error::Cancelled`] if none is loaded.
pub(super) fn loaded(ready: &mut Option<ReadyEngine>) -> Result<&mut LoadedModel> {
    Ok(&mut ready.as_mut().ok_or(hal::Error::Cancelled)?.stepper.loaded)
}

/// Fills the memory that is left for weights.
fn fill(
    paged: PagedWeights<'_>,
    loader: &Loader<'_>,
    loaded: &LoadedModel,
    placement: &Placement,
) -> Result<Paging> {
    let sizing = loader.sizing;
    let budget = sizing.options.paging.as_ref().map_or(Bytes(0), |paging| paging.budget);
    let ledger = sizing.devices[CPU].ledger();
    // An integrated device takes memory of the machine.
    let integrated = |device: &&Device| device.info().kind == DeviceKind::Integrated;
    let others = sizing.devices.iter().filter(integrated).map(|device| device.ledger().used());
    let capacity = budget - ledger.used() - others.sum();
    let memory = ledger.reserve("weights", capacity)?;
    let (mut store, matrices) = paged.into_parts();
    let (model, options) = (sizing.model, sizing.options);
    let parts = Parts {
        matrices: &matrices,
        model,
        uses: &|layer, neuron| options.placing.use_of(layer, neuron),
        on_cpu: &|layer| placement.layers[layer].home == CPU,
        has_expert: &|layer, expert| loaded.layers[layer].has_expert(expert),
        by_neuron: &|layer| sizing.reads_neurons(layer),
        density: options.placing.density,
        adapts: sizing.counts_rows(),
        n_prompt: options.n_ubatch,
    };
    let mut plan = Plan::fill(&mut store, &parts, capacity, loader.progress)?;
    plan.tiers.devices = sizing.bytes_on_devices(placement);
    plan.tiers.copies = sizing.copied_bytes(placement, false);
    model.file.expect_few_reads();
    // Opening the file read it whole, to check it.
    options.converted.iter().for_each(|packs| packs.file().expect_few_reads());
    Ok(Paging::new(store, plan, matrices, memory))
}

impl ReadyEngine {
    /// Loads the model as `placement` says, and records the programs. `forecast` is `None` if the
    /// engine did not plan the placement. Also returns messages for the user about slow paths and
    /// features that are turned off.
    pub(super) fn build(
        loader: &Loader<'_>,
        placement: &Placement,
        forecast: Option<&Forecast>,
    ) -> Result<(ReadyEngine, Vec<String>)> {
        let sizing = loader.sizing;
        let buckets = sizing.options.buckets();
        let options = sizing.options;
        let wanted = options.paging.as_ref();
        let paged = wanted
            .map(|paging| PagedWeights::new(sizing.model, options.converted.as_deref(), paging));
        let paged = paged.transpose()?.flatten();
        let mut loaded = Loader { paged: paged.as_ref(), ..*loader }.load(placement)?;
        let paging = match paged {
            Some(paged) => Some(fill(paged, loader, &loaded, placement)?),
            None => None,
        };
        loaded.stops = paging.as_ref().map(Paging::all_stops).unwrap_or_default();
        let mut slow = Vec::new();
        let from = sizing.streams_from(placement, forecast, &mut slow);
        let recording = Recording::new(sizing, &buckets, &loaded);
        let streams = make_streams(sizing, &recording, &loaded, placement, &from, &mut slow)?;
        let streamed: Vec<_> = streams.iter().flatten().map(Stream::streamed_layers).collect();
        let programs = recording.programs(placement, &streamed)?;
        let seconds = forecast.map(|forecast| forecast.seconds);
        let seconds = seconds.or_else(|| sizing.seconds_of(placement).filter(|_| options.adapt));
        let (adapt, refused) = match NeuronExchange::new(sizing, &loaded.layers, placement, seconds)
        {
            Ok(adapt) => (adapt, None),
            Err(refused) => (None, Some(refused)),
        };
        loaded.clear_hits()?;
        if adapt.is_some() {
            NeuronExchange::reserve(sizing, &mut loaded, placement)?;
        }
        let stepper = Stepper::new(loaded, programs, streams, paging, buckets.len());
        slow.splice(0..0, stepper.slow_ops());
        slow.extend(refused);
        Ok((ReadyEngine { stepper, observers: None, adapt, watching: None }, slow))
    }

    /// Exchanges neurons where the gain is clear, and returns the layers whose placement changed.
    /// After an error the contents of the slots are unknown.
    pub(super) fn exchange(
        &mut self,
        sizing: &Sizing<'_>,
        placement: &Placement,
    ) -> Result<Vec<(usize, LayerPlacement)>> {
        let Some(adapt) = &mut self.adapt else { return Ok(Vec::new()) };
        let mut changed = Vec::new();
        let Stepper { loaded, paging, .. } = &mut self.stepper;
        for now in adapt.exchange(sizing, loaded, paging.as_mut(), placement)? {
            if let Some(observers) = &mut self.observers {
                observers.relabel(now.layer, &now.placed, now.experts);
            }
            let streams = self.stepper.streams.iter_mut().flatten();
            streams.for_each(|stream| stream.place(now.layer, &now.placed, sizing.model));
            if let Some(WatchState::Rows(watch)) = &mut self.watching {
                watch.mark_exchanged(now.layer);
            }
            changed.push((now.layer, now.placed));
        }
        Ok(changed)
    }
}
