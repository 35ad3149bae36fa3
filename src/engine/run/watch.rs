//! Steps that record which neurons fired.

use std::sync::atomic::AtomicBool;

use hal::op::MAX_COUNTED_TOKENS;

use super::Engine;
use crate::error::{Error, Result};
use crate::fired::{FiredNeurons, RowWatch};
use crate::sequence::{EachLogits, Feed};

/// The watch of a loaded model.
#[derive(Debug)]
pub(super) enum Watching {
    /// Steps can be watched.
    Rows(RowWatch),
    /// A device refused.
    Refused(String),
}

impl Engine {
    /// As [`Engine::step`], and records which neurons fired ([`Engine::fired`]). The logits have the
    /// same bits. Device steps of more than [`MAX_COUNTED_TOKENS`] tokens are not watched. The first
    /// call may allocate memory on the devices, until [`Engine::stop_watching`].
    ///
    /// A device that refuses the watch fails no step: [`FiredNeurons::refused`] has the reason.
    ///
    /// # Errors
    /// See [`Engine::step`].
    pub fn step_watched(
        &mut self,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        self.watching = true;
        if let Some(watch) = self.watch() {
            watch.begin();
        }
        let result = self.step(feeds, interrupt, each);
        self.watching = false;
        let ready = self.ready.as_ref();
        if let Some(Watching::Rows(watch)) = ready.and_then(|ready| ready.watching.as_ref()) {
            watch.finish(&mut self.fired);
        }
        result
    }

    /// The neurons that fired in the latest watched step.
    #[must_use]
    pub fn fired(&self) -> &FiredNeurons {
        &self.fired
    }

    /// Releases the memory of watched steps. The next [`Engine::step_watched`] makes it again.
    pub fn stop_watching(&mut self) {
        let Some(ready) = &mut self.ready else { return };
        if let Some(Watching::Rows(watch)) = ready.watching.take() {
            watch.release(&mut ready.stepper);
        }
        self.fired.layers.clear();
        self.fired.refused = None;
    }

    fn watch(&mut self) -> Option<&mut RowWatch> {
        match self.ready.as_mut()?.watching.as_mut()? {
            Watching::Rows(watch) => Some(watch),
            Watching::Refused(_) => None,
        }
    }

    /// Before a device step of `n_tokens`: whether it counts active rows. Prepares the watch if this
    /// is the first watched step.
    ///
    /// # Errors
    /// The loss of a device.
    pub(super) fn begin_watched(&mut self, n_tokens: usize) -> Result<bool> {
        if let Some(ready) = &mut self.ready {
            ready.stepper.counts_rows = false;
        }
        if !self.watching || n_tokens > MAX_COUNTED_TOKENS {
            return Ok(false);
        }
        // Taken, because `sizing` borrows the engine.
        let Some(mut ready) = self.ready.take() else { return Ok(false) };
        if ready.watching.is_none() {
            let rungs = &self.arena.sizes.rungs;
            let made = RowWatch::new(&self.sizing(), &mut ready.stepper, &self.placement, rungs);
            ready.watching = Some(match made {
                Ok(watch) => Watching::Rows(watch),
                Err(error) if is_loss(&error) => {
                    self.ready = Some(ready);
                    return Err(error);
                }
                Err(error) => Watching::Refused(error.to_string()),
            });
        }
        let streams = ready.stepper.streams_weights(n_tokens);
        let (refused, begun) = match &mut ready.watching {
            Some(Watching::Rows(_)) if streams => {
                (Some(format!("steps of {n_tokens} tokens stream weights to a device")), Ok(false))
            }
            Some(Watching::Rows(watch)) => {
                watch.order(&self.sizing(), &self.placement);
                let lanes = &mut ready.stepper.loaded.lanes;
                (None, watch.before_step(lanes).map(|()| true))
            }
            Some(Watching::Refused(reason)) => (Some(reason.clone()), Ok(false)),
            None => (None, Ok(false)),
        };
        self.fired.refused = refused;
        ready.stepper.counts_rows = matches!(begun, Ok(true));
        self.ready = Some(ready);
        begun
    }

    /// After a device step of `n_tokens` that counted active rows.
    ///
    /// # Errors
    /// Device errors.
    pub(super) fn end_watched(&mut self, n_tokens: usize) -> Result<()> {
        let Engine { ready, placement, .. } = self;
        let Some(ready) = ready else { return Ok(()) };
        let Some(Watching::Rows(watch)) = &mut ready.watching else { return Ok(()) };
        watch.after_step(&mut ready.stepper.loaded.lanes, placement, n_tokens)
    }
}

fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Device(hal::Error::DeviceLost { .. }))
}
