//! Counters of active neurons. They accumulate on the devices, are read on request, and make the
//! statistics of steps.

use hal::op::MOST_COUNTED;

use placement::CPU;

use super::Result;
use super::build::Loaded;
use super::lane::n_counters;
use super::step::{Buffers, StepSizes};
use super::timeline::{Waits, Work};

/// Statistics of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepStats {
    /// Active neurons (those multiplied with down), over all layers and tokens.
    pub active: f64,
    /// Active neurons that were not on the CPU.
    pub off_cpu: f64,
    /// All neurons, over all layers and tokens.
    pub neurons: f64,
    /// Gate rows computed, over all layers: all, those of the experts used, or those that a
    /// predictor listed. Counted once for all tokens of a step.
    pub gates: f64,
    /// How long devices waited for each other.
    pub waits: Waits,
}

impl std::ops::Sub for StepStats {
    type Output = StepStats;

    /// The difference of two totals.
    fn sub(self, before: StepStats) -> StepStats {
        StepStats {
            active: self.active - before.active,
            off_cpu: self.off_cpu - before.off_cpu,
            neurons: self.neurons - before.neurons,
            gates: self.gates - before.gates,
            waits: self.waits - before.waits,
        }
    }
}

impl std::ops::AddAssign for StepStats {
    fn add_assign(&mut self, other: StepStats) {
        self.active += other.active;
        self.off_cpu += other.off_cpu;
        self.neurons += other.neurons;
        self.gates += other.gates;
        self.waits += other.waits;
    }
}

/// Steps of one rung whose counters have not been read yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Deferred {
    pub(super) steps: usize,
    /// Their statistics except for the counters.
    pub(super) stats: StepStats,
}

impl Loaded {
    /// Whether the counters of a step stay on the devices for now. Counters of padded tokens are
    /// discarded, and lists of predictors and streamed chunks are counted per step, so steps with
    /// those are read at once.
    pub(super) fn defers(&self, n: usize, rung: usize, sizes: &StepSizes) -> bool {
        n == sizes.rungs[rung]
            && n <= MOST_COUNTED
            && self.lanes.iter().flatten().all(|lane| lane.lists.is_none())
    }

    /// Reads and clears the deferred counters of a rung.
    pub(super) fn flush(
        &mut self,
        rung: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<StepStats> {
        let Deferred { steps, mut stats } = std::mem::take(&mut self.deferred[rung]);
        if steps > 0 {
            self.sum_active(rung, sizes.rungs[rung], sizes, buffers, &mut stats)?;
        }
        Ok(stats)
    }

    /// Reads and clears the deferred counters of all rungs.
    pub(super) fn flush_all(
        &mut self,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<StepStats> {
        let mut stats = StepStats::default();
        for rung in 0..sizes.rungs.len() {
            stats += self.flush(rung, sizes, buffers)?;
        }
        Ok(stats)
    }

    /// Clears the counters of a rung.
    pub(super) fn clear(
        &mut self,
        rung: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let since = buffers.timeline.now();
        buffers.active.clear();
        buffers.active.resize(n_counters(sizes.n_layer) * sizes.rungs[rung], 0.0);
        for lane in self.lanes.iter_mut().flatten() {
            lane.queue.write(&lane.active[rung], bytemuck::cast_slice(&buffers.active))?;
        }
        buffers.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Sums the counters of the real tokens over all devices.
    pub(super) fn count(
        &mut self,
        rung: usize,
        n: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<StepStats> {
        let since = buffers.timeline.now();
        let mut stats = self.expected(n, sizes);
        self.sum_active(rung, n, sizes, buffers, &mut stats)?;
        for (device, stream) in self.streams.iter().enumerate() {
            let Some(stream) = stream else { continue };
            let padded = (stream.padded() * n) as f64;
            stats.gates += stream.scored() as f64;
            stats.active -= padded;
            stats.off_cpu -= if device == CPU { 0.0 } else { padded };
        }
        for lane in self.lanes.iter_mut().flatten() {
            if let Some(lists) = &lane.lists {
                buffers.counts.resize(sizes.n_layer, 0);
                lane.queue.read(lists.counts(), bytemuck::cast_slice_mut(&mut buffers.counts))?;
                stats.gates += buffers.counts.iter().map(|&n| f64::from(n)).sum::<f64>();
            }
        }
        buffers.timeline.host(Work::Copy, since);
        Ok(stats)
    }

    /// The statistics of a step of `n` tokens that need no device counters.
    pub(super) fn expected(&self, n: usize, sizes: &StepSizes) -> StepStats {
        let n_ff: usize = sizes.blocks.iter().map(|block| block.n_ff).sum();
        let blocks = self.layers.iter().zip(&sizes.blocks);
        let unlisted = blocks.filter(|(layer, _)| layer.predictor.is_none());
        let gates: f64 = unlisted.map(|(_, block)| block.n_ff as f64 * block.used(n)).sum();
        StepStats {
            neurons: (n * (n_ff + sizes.n_shared)) as f64,
            gates: gates + sizes.n_shared as f64,
            ..StepStats::default()
        }
    }

    /// Adds the counters of the first `n` tokens over all devices.
    fn sum_active(
        &mut self,
        rung: usize,
        n: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
        stats: &mut StepStats,
    ) -> Result<()> {
        buffers.active.resize(n_counters(sizes.n_layer) * sizes.rungs[rung], 0.0);
        for (device, lane) in self.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            lane.queue.read_f32(&lane.active[rung], &mut buffers.active)?;
            let rows = buffers.active.chunks_exact(sizes.rungs[rung]);
            let active = rows.flat_map(|row| &row[..n]).map(|&v| f64::from(v)).sum::<f64>();
            stats.active += active;
            stats.off_cpu += if device == CPU { 0.0 } else { active };
        }
        Ok(())
    }
}
