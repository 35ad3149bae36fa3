//! Runs device steps of a loaded model, plain or observed. After a step, reads counters and
//! exchanges neurons if a decision is due.

use std::sync::atomic::AtomicBool;

use hal::op::MAX_COUNTED_TOKENS;

use placement::CPU;

use super::Engine;
use crate::error::{Error, Result};
use crate::observe::{Observers, Watch, observed_bucket};
use crate::record::Recording;
use crate::replay::arena::LayerActivity;
use crate::step::StepStats;
use crate::timeline::Tracer;

impl Engine {
    /// Runs a device step over `self.arena.facts`; the logits are in `self.arena.logits`.
    pub(super) fn run(&mut self, interrupt: &AtomicBool) -> Result<()> {
        let n_tokens = self.arena.facts.tokens.len();
        let watched = self.begin_watched(n_tokens)?;
        let Engine { ready, arena, tracer, .. } = self;
        let stepper = &mut ready.as_mut().ok_or(hal::Error::Cancelled)?.stepper;
        let split = stepper.is_split();
        arena.timeline.begin(tracer.is_some(), split);
        let mut stats = stepper.step(arena, interrupt)?;
        let lanes = stepper.loaded.lanes.iter().enumerate();
        let mut others = lanes
            .filter(|(device, lane)| *device != CPU && lane.is_some())
            .map(|(device, _)| device);
        let others = split.then_some(&mut others as &mut dyn Iterator<Item = _>);
        stats.waits += arena.timeline.end(n_tokens, others, tracer.as_mut());
        self.add_stats(&stats, n_tokens <= MAX_COUNTED_TOKENS);
        if watched {
            self.end_watched(n_tokens)?;
        }
        self.adapt(n_tokens)
    }

    /// After a step of `n_tokens`: exchanges neurons if a decision is due.
    fn adapt(&mut self, n_tokens: usize) -> Result<()> {
        let adapt = self.ready.as_mut().and_then(|ready| ready.adapt.as_mut());
        if !adapt.is_some_and(|adapt| adapt.count_step(n_tokens)) {
            return Ok(());
        }
        self.read_counters()?;
        // After an error the contents of the slots are unknown, so the model is unloaded and
        // loaded again.
        let Some(mut ready) = self.ready.take() else { return Ok(()) };
        let changed = ready.exchange(&self.sizing(), &self.placement)?;
        for (layer, placed) in changed {
            self.placement.layers[layer] = placed;
        }
        self.ready = Some(ready);
        Ok(())
    }

    /// Adds the statistics of steps to the totals. Statistics of `small` steps, whose rows are
    /// counted, are also added to the statistics of the hot set.
    fn add_stats(&mut self, stats: &StepStats, small: bool) {
        self.totals += *stats;
        let adapt = self.ready.as_mut().and_then(|ready| ready.adapt.as_mut());
        if let Some(adapt) = adapt.filter(|_| small) {
            adapt.add_stats(stats);
        }
    }

    /// Reads the counters on the devices and adds them to the totals.
    fn read_counters(&mut self) -> Result<()> {
        let Some(ready) = &mut self.ready else { return Ok(()) };
        let stats = ready.stepper.flush_all(&mut self.arena)?;
        self.add_stats(&stats, true);
        Ok(())
    }

    /// As [`Engine::read_counters`], but ignores the loss of a device, whose counters are gone. The
    /// next step reports the loss.
    pub(super) fn read_counters_unless_lost(&mut self) -> Result<()> {
        match self.read_counters() {
            Err(Error::Device(hal::Error::DeviceLost { .. })) => Ok(()),
            read => read,
        }
    }

    /// Statistics of all steps since the last call. Counters accumulate on the devices and are
    /// read here, so that a step does not wait for them.
    ///
    /// # Errors
    /// Device errors. A lost device causes no error; its counters are missing.
    pub fn take_stats(&mut self) -> Result<StepStats> {
        self.read_counters_unless_lost()?;
        let found = self.totals - self.taken;
        self.taken = self.totals;
        Ok(found)
    }

    /// Activity of each layer since the model was opened, up to the latest reading of the counters
    /// ([`Engine::take_stats`]).
    #[must_use]
    pub fn layer_activity(&self) -> &[LayerActivity] {
        &self.arena.activity
    }

    /// Passes every further completed step to `tracer`. While a tracer is set, all steps are timed,
    /// which takes a little longer.
    pub fn set_tracer(&mut self, tracer: Option<Tracer>) {
        self.tracer = tracer;
    }

    pub(super) fn observed_tokens(&self) -> usize {
        let buckets = &self.arena.sizes.buckets;
        buckets[observed_bucket(buckets)]
    }

    /// A step over `self.arena.facts` that passes the observed values to `watch`. The first call
    /// records the programs for it.
    pub(super) fn step_observed(
        &mut self,
        interrupt: &AtomicBool,
        watch: &mut Watch<'_>,
    ) -> Result<StepStats> {
        self.read_counters()?;
        let mut ready = self.ready.take().ok_or(hal::Error::Cancelled)?;
        let inputs = matches!(watch, Watch::Inputs(_));
        let observers = ready.observers.take();
        let observers = match observers.filter(|known| known.observes_inputs() == inputs) {
            Some(observers) => Ok(observers),
            None => {
                let (loaded, buckets) = (&ready.stepper.loaded, &self.arena.sizes.buckets);
                let recording = Recording::new(&self.sizing(), buckets, loaded);
                let adapt = ready.adapt.as_ref();
                let experts = |layer| adapt.and_then(|adapt| adapt.experts(layer));
                Observers::new(&recording, loaded, &self.placement, buckets, &experts, inputs)
            }
        };
        let stats = observers.and_then(|mut observers| {
            self.arena.timeline.stop();
            let stats = observers.step(&mut ready.stepper, &mut self.arena, interrupt, watch);
            ready.observers = Some(observers);
            stats
        });
        self.ready = Some(ready);
        stats
    }
}
