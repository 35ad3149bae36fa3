//! Counters of active neurons. They accumulate on the devices, are read on request, and become the
//! statistics of steps.

use hal::op::{MAX_COUNTED_TOKENS, UnionCounts};

use placement::CPU;
use store::StoreStats;

use super::Stepper;
use crate::error::Result;
use crate::replay::arena::{StepArena, StepSizes};
use crate::size::scratch::n_counters;
use crate::timeline::{Waits, Work};

/// Statistics of one or more steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepStats {
    /// Number of active neurons (those multiplied with down), over all layers and tokens.
    pub active: f64,
    /// Number of active neurons that were on devices other than the CPU.
    pub off_cpu: f64,
    /// Number of neurons, over all layers and tokens.
    pub neurons: f64,
    /// Number of gate rows computed, over all layers: all rows, the estimated rows of used experts,
    /// or the rows that a predictor listed. A row counts once for all tokens of a step.
    pub gates: f64,
    /// Union counts of steps whose program has 2 to [`MAX_COUNTED_TOKENS`] tokens. Only totals have
    /// them ([`crate::Engine::take_stats`]), and only if the engine was opened for several
    /// sequences.
    pub union: UnionStats,
    /// Time that devices waited for each other.
    pub waits: Waits,
    /// Weights that were read from disk, or that were needed and resident.
    pub disk: StoreStats,
}

/// Sums of [`hal::op::UnionCounts`] over layers and steps of 2 to [`MAX_COUNTED_TOKENS`] tokens, on
/// devices that support these counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnionStats([f64; UnionCounts::N]);

impl UnionStats {
    /// Share of neurons that were active for at least one token of a step; `None` if no step was
    /// counted.
    #[must_use]
    pub fn active(&self) -> Option<f64> {
        let [neurons, active, ..] = self.0;
        (neurons > 0.0).then(|| active / neurons)
    }

    /// Share of the rows of gate and up that were computed for all tokens instead of by lists;
    /// `None` if no step was counted.
    #[must_use]
    pub fn dense(&self) -> Option<f64> {
        let [_, _, rows, dense] = self.0;
        (rows > 0.0).then(|| dense / rows)
    }

    fn zip(self, other: UnionStats, f: fn(f64, f64) -> f64) -> UnionStats {
        UnionStats(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

impl std::ops::Sub for StepStats {
    type Output = StepStats;

    fn sub(self, before: StepStats) -> StepStats {
        StepStats {
            active: self.active - before.active,
            off_cpu: self.off_cpu - before.off_cpu,
            neurons: self.neurons - before.neurons,
            gates: self.gates - before.gates,
            union: self.union.zip(before.union, |a, b| a - b),
            waits: self.waits - before.waits,
            disk: self.disk - before.disk,
        }
    }
}

impl std::ops::AddAssign for StepStats {
    fn add_assign(&mut self, other: StepStats) {
        self.active += other.active;
        self.off_cpu += other.off_cpu;
        self.neurons += other.neurons;
        self.gates += other.gates;
        self.union = self.union.zip(other.union, |a, b| a + b);
        self.waits += other.waits;
        self.disk += other.disk;
    }
}

/// The steps of one recorded token count whose counters have not been read yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeferredCounters {
    pub(crate) steps: usize,
    /// The statistics of these steps except for the counters.
    pub(crate) stats: StepStats,
}

impl Stepper {
    /// Whether the counters of a step may stay on the devices for now. The counters of padded
    /// tokens are discarded, and the lists of predictors and streamed chunks are counted per step,
    /// so the counters of steps with either are read at once.
    pub(crate) fn defers(&self, n: usize, bucket: usize, sizes: &StepSizes) -> bool {
        n == sizes.buckets[bucket]
            && n <= MAX_COUNTED_TOKENS
            && self.loaded.lanes.iter().flatten().all(|lane| lane.lists.is_none())
    }

    /// Reads the deferred counters of a recorded token count. The next step that runs its programs
    /// clears them.
    pub(crate) fn flush(&mut self, bucket: usize, arena: &mut StepArena) -> Result<StepStats> {
        let DeferredCounters { steps, mut stats } = std::mem::take(&mut self.deferred[bucket]);
        if steps > 0 {
            let n = arena.sizes.buckets[bucket];
            self.sum_active(bucket, n, arena, &mut stats)?;
            arena.count_neurons(steps * n);
        }
        Ok(stats)
    }

    pub(crate) fn flush_all(&mut self, arena: &mut StepArena) -> Result<StepStats> {
        let mut stats = StepStats::default();
        for bucket in 0..arena.sizes.buckets.len() {
            stats += self.flush(bucket, arena)?;
        }
        for lane in self.loaded.lanes.iter_mut().flatten() {
            let union = UnionStats(lane.take_union()?);
            stats += StepStats { union, ..StepStats::default() };
        }
        Ok(stats)
    }

    pub(crate) fn clear(&mut self, bucket: usize, arena: &mut StepArena) -> Result<()> {
        let since = arena.timeline.now();
        arena.active.clear();
        let len = n_counters(arena.sizes.n_layer) * arena.sizes.buckets[bucket];
        arena.active.resize(len, 0.0);
        for lane in self.loaded.lanes.iter_mut().flatten() {
            lane.queue.write(&lane.active[bucket], bytemuck::cast_slice(&arena.active))?;
        }
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Sums the counters of all tokens except padding, over all devices.
    pub(crate) fn count(
        &mut self,
        bucket: usize,
        n: usize,
        arena: &mut StepArena,
    ) -> Result<StepStats> {
        let since = arena.timeline.now();
        let mut stats = self.expected_stats(n, &arena.sizes);
        self.sum_active(bucket, n, arena, &mut stats)?;
        arena.count_neurons(n);
        for (device, stream) in self.streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let padded = (stream.padded() * n) as f64;
            stats.gates += stream.scored() as f64;
            stats.active -= padded;
            stats.off_cpu -= if device == CPU { 0.0 } else { padded };
        }
        for lane in self.loaded.lanes.iter_mut().flatten() {
            if let Some(lists) = &lane.lists {
                arena.counts.resize(arena.sizes.n_layer, 0);
                lane.queue.read(lists.counts(), bytemuck::cast_slice_mut(&mut arena.counts))?;
                stats.gates += arena.counts.iter().map(|&n| f64::from(n)).sum::<f64>();
            }
        }
        arena.timeline.record_host(Work::Copy, since);
        Ok(stats)
    }

    /// The statistics of a step of `n` tokens that need no device counters.
    pub(crate) fn expected_stats(&self, n: usize, sizes: &StepSizes) -> StepStats {
        let n_ff: usize = sizes.blocks.iter().map(|block| block.n_ff).sum();
        let blocks = self.loaded.layers.iter().zip(&sizes.blocks);
        let unlisted = blocks.filter(|(layer, _)| layer.predictor.is_none());
        let gates: f64 = unlisted.map(|(_, block)| block.n_ff as f64 * block.share_used(n)).sum();
        StepStats {
            neurons: (n * (n_ff + sizes.n_shared)) as f64,
            gates: gates + sizes.n_shared as f64,
            ..StepStats::default()
        }
    }

    /// Adds the counters of the first `n` tokens on all devices to `stats` and to the layers'
    /// activity.
    fn sum_active(
        &mut self,
        bucket: usize,
        n: usize,
        arena: &mut StepArena,
        stats: &mut StepStats,
    ) -> Result<()> {
        let len = n_counters(arena.sizes.n_layer) * arena.sizes.buckets[bucket];
        arena.active.resize(len, 0.0);
        for (device, lane) in self.loaded.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            lane.queue.read_f32(&lane.active[bucket], &mut arena.active)?;
            let rows = arena.active.chunks_exact(arena.sizes.buckets[bucket]);
            for (layer, row) in rows.enumerate() {
                let active = row[..n].iter().map(|&v| f64::from(v)).sum::<f64>();
                let off_cpu = if device == CPU { 0.0 } else { active };
                stats.active += active;
                stats.off_cpu += off_cpu;
                // The last row counts the streamed neurons of all layers.
                if let Some(activity) = arena.activity.get_mut(layer) {
                    activity.active += active;
                    activity.off_cpu += off_cpu;
                }
            }
        }
        Ok(())
    }
}
