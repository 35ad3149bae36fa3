//! Steps that record which neurons fired.

use std::sync::atomic::AtomicBool;

use hal::op::MAX_COUNTED_TOKENS;

use super::Engine;
use crate::error::{Error, Result};
use crate::fired::{FiredNeurons, RowWatch};
use crate::sequence::{EachLogits, Feed};

/// Whether the steps of a loaded model can be watched.
#[derive(Debug)]
pub(super) enum WatchState {
    /// Steps can be watched.
    Rows(RowWatch),
    /// A device rejected the programs or the memory, for this reason.
    Refused(String),
}

impl Engine {
    /// As [`Engine::step`], and records which neurons fired ([`Engine::fired`]). The logits have
    /// the same bits. Device steps of more than [`MAX_COUNTED_TOKENS`] tokens are not watched. The
    /// first call may allocate device memory; [`Engine::stop_watching`] releases it.
    ///
    /// If a device cannot count active rows, the step succeeds and [`FiredNeurons::refused`] has
    /// the reason.
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
        if let Some(WatchState::Rows(watch)) = ready.and_then(|ready| ready.watching.as_ref()) {
            watch.finish(&mut self.fired);
        }
        result
    }

    /// The neurons that fired in the latest watched step.
    #[must_use]
    pub fn fired(&self) -> &FiredNeurons {
        &self.fired
    }

    /// Releases the memory of watched steps. The next [`Engine::step_watched`] allocates it again.
    pub fn stop_watching(&mut self) {
        let Some(ready) = &mut self.ready else { return };
        if let Some(WatchState::Rows(watch)) = ready.watching.take() {
            watch.release(&mut ready.stepper);
        }
        self.fired.layers.clear();
        self.fired.refused = None;
    }

    fn watch(&mut self) -> Option<&mut RowWatch> {
        match self.ready.as_mut()?.watching.as_mut()? {
            WatchState::Rows(watch) => Some(watch),
            WatchState::Refused(_) => None,
        }
    }

    /// Called before a device step of `n_tokens`. Returns whether the step counts active rows. Sets
    /// up counting if this is the first watched step.
    ///
    /// # Errors
    /// Device errors. A failed setup is an error only if a device was lost.
    pub(super) fn begin_watched(&mut self, n_tokens: usize) -> Result<bool> {
        if let Some(ready) = &mut self.ready {
            ready.stepper.counts_rows = false;
        }
        if !self.watching || n_tokens > MAX_COUNTED_TOKENS {
            return Ok(false);
        }
        // Takes `ready`, because `sizing` borrows the engine.
        let Some(mut ready) = self.ready.take() else { return Ok(false) };
        if ready.watching.is_none() {
            let buckets = &self.arena.sizes.buckets;
            let made = RowWatch::new(&self.sizing(), &mut ready.stepper, &self.placement, buckets);
            ready.watching = Some(match made {
                Ok(watch) => WatchState::Rows(watch),
                Err(error) if is_loss(&error) => {
                    self.ready = Some(ready);
                    return Err(error);
                }
                Err(error) => WatchState::Refused(error.to_string()),
            });
        }
        let streams = ready.stepper.streams_weights(n_tokens);
        let (refused, begun) = match &mut ready.watching {
            Some(WatchState::Rows(_)) if streams => {
                (Some(format!("steps of {n_tokens} tokens stream weights to a device")), Ok(false))
            }
            Some(WatchState::Rows(watch)) => {
                watch.reorder(&self.sizing(), &self.placement);
                let lanes = &mut ready.stepper.loaded.lanes;
                (None, watch.before_step(lanes).map(|()| true))
            }
            Some(WatchState::Refused(reason)) => (Some(reason.clone()), Ok(false)),
            None => (None, Ok(false)),
        };
        self.fired.refused = refused;
        ready.stepper.counts_rows = matches!(begun, Ok(true));
        self.ready = Some(ready);
        begun
    }

    /// Called after a device step of `n_tokens` that counted active rows.
    pub(super) fn end_watched(&mut self, n_tokens: usize) -> Result<()> {
        let Engine { ready, placement, .. } = self;
        let Some(ready) = ready else { return Ok(()) };
        let Some(WatchState::Rows(watch)) = &mut ready.watching else { return Ok(()) };
        watch.after_step(&mut ready.stepper.loaded, placement, n_tokens)
    }
}

fn is_loss(error: &Error) -> bool {
    matches!(error, Error::Device(hal::Error::DeviceLost { .. }))
}
