//! One step: programs replayed in order, hand-offs answered while the devices work.

use std::sync::atomic::{AtomicBool, Ordering};

use hal::{BatchFacts, HostRowSet, Operand, Program, Run};

use crate::placement::CPU;

use super::build::{Layer, Loaded};
use super::lane::{Lane, n_counters};
use super::predict::Parcel;
use super::record::Segment;
use super::stream::{Stepping, Stream};
use super::timeline::{Timeline, Waits, Work};
use super::{Error, Result};

/// What a step found out besides the logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepStats {
    /// Neurons carried through to down, over all layers and tokens.
    pub active: f64,
    /// Those of them that were not on the CPU.
    pub off_cpu: f64,
    /// Neurons there were.
    pub neurons: f64,
    /// Gate rows that were computed, over all layers: all, those of the experts used, or those that a predictor listed.
    /// Once for all tokens of a step.
    pub gates: f64,
    /// How long devices waited for one another.
    pub waits: Waits,
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

/// Host buffers of the step, kept between steps.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    x: Vec<f32>,
    weights: Vec<f32>,
    y: Vec<f32>,
    sum: Vec<f32>,
    active: Vec<f32>,
    counts: Vec<u32>,
    parcel: Parcel,
    runs: Vec<Run>,
    pub(super) timeline: Timeline,
}

impl Loaded {
    /// Runs `facts` and leaves `[n_out, n_vocab]` logits in `logits`.
    pub(super) fn step(
        &mut self,
        facts: &BatchFacts,
        sizes: &StepSizes,
        buffers: &mut Buffers,
        logits: &mut Vec<f32>,
        interrupt: &AtomicBool,
    ) -> Result<StepStats> {
        let n = facts.tokens.len();
        let n_out = facts.n_out();
        let rung = sizes.rungs.iter().position(|&rung| rung >= n).unwrap_or(sizes.rungs.len() - 1);
        self.begin(facts, rung, sizes, buffers)?;
        let mut at = self.segments[0].device;
        for index in 0..self.segments.len() {
            let device = self.segments[index].device;
            self.carry(at, device, n, sizes, buffers)?;
            at = device;
            let Loaded { lanes, layers, segments, streams, .. } = self;
            let Segment { programs, handed, works, legs, via, .. } = &segments[index];
            let legs = legs.iter().find(|(size, _)| *size == sizes.rungs[rung]);
            if let (Some((_, legs)), Some(stream)) = (legs, &mut streams[*via]) {
                let mut on = Stepping { lanes, layers, sizes, buffers, interrupt, n, rung };
                stream.run(device, legs, &mut on)?;
                continue;
            }
            let program = programs.at_least(n).expect("the ladder ends at n_ubatch");
            let part = Part { device, program, handed, works, n, rung };
            part.replay(lanes, layers, sizes, buffers, interrupt)?;
        }
        if n_out > 0 {
            self.carry(at, self.head.device, n, sizes, buffers)?;
            self.head(n_out, sizes, buffers, logits)?;
        } else {
            logits.clear();
            let lane = self.lanes[at].as_mut().expect("a used device has a lane");
            lane.queue.finish()?;
        }
        self.count(rung, n, sizes, buffers)
    }

    /// Brings the facts of a step of the `rung` to every device, and sets its counters to 0.
    pub(super) fn begin(
        &mut self,
        facts: &BatchFacts,
        rung: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let since = buffers.timeline.now();
        let shape = self.lane(self.head.device).batch.shape;
        let words = facts.encode(&shape, sizes.n_blocks, sizes.n_vocab)?;
        buffers.active.clear();
        buffers.active.resize(n_counters(sizes.n_layer) * sizes.rungs[rung], 0.0);
        self.streams.iter_mut().flatten().for_each(Stream::begin);
        for lane in self.lanes.iter_mut().flatten() {
            lane.queue.write(&lane.batch.words, bytemuck::cast_slice(&words))?;
            lane.queue.write(&lane.active[rung], bytemuck::cast_slice(&buffers.active))?;
            if let Some(lists) = &lane.lists {
                buffers.counts.clear();
                buffers.counts.resize(sizes.n_layer, 0);
                lane.queue.write(lists.counts(), bytemuck::cast_slice(&buffers.counts))?;
            }
        }
        buffers.timeline.host(Work::Copy, since);
        Ok(())
    }

    fn lane(&self, device: usize) -> &Lane {
        self.lanes[device].as_ref().expect("a used device has a lane")
    }

    /// Brings the residual from one device to the next.
    pub(super) fn carry(
        &mut self,
        from: usize,
        to: usize,
        n: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let since = buffers.timeline.now();
        buffers.x.resize(sizes.rung(n) * sizes.n_embd, 0.0);
        let lane = self.lanes[from].as_mut().expect("a used device has a lane");
        lane.queue.read_f32(&lane.scratch.x, &mut buffers.x)?;
        let lane = self.lanes[to].as_mut().expect("a used device has a lane");
        lane.queue.write(&lane.scratch.x, bytemuck::cast_slice(&buffers.x))?;
        buffers.timeline.host(Work::Copy, since);
        Ok(())
    }

    fn head(
        &mut self,
        n_out: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
        logits: &mut Vec<f32>,
    ) -> Result<()> {
        let head = &self.head;
        let lane = self.lanes[head.device].as_mut().expect("a used device has a lane");
        let program = head.programs.at_least(n_out).expect("the ladder ends at max_out");
        let run = buffers.timeline.replay(&mut lane.queue, program)?;
        buffers.timeline.wait(head.device, &[Work::Head], run)?;
        let since = buffers.timeline.now();
        logits.resize(n_out * sizes.n_vocab, 0.0);
        for (row, out) in logits.chunks_exact_mut(sizes.n_vocab).enumerate() {
            lane.queue.read_f32(&head.scratch.logits.rows(row..row + 1), out)?;
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
        let mut stats = StepStats::default();
        for (device, lane) in self.lanes.iter_mut().enumerate() {
            let Some(lane) = lane else { continue };
            lane.queue.read_f32(&lane.active[rung], &mut buffers.active)?;
            let rows = buffers.active.chunks_exact(sizes.rungs[rung]);
            let active = rows.flat_map(|row| &row[..n]).map(|&v| f64::from(v)).sum::<f64>();
            let padded = self.streams[device].as_ref().map_or(0, Stream::padded);
            let active = active - (padded * n) as f64;
            stats.gates += self.streams[device].as_ref().map_or(0, Stream::scored) as f64;
            stats.active += active;
            stats.off_cpu += if device == CPU { 0.0 } else { active };
        }
        stats.neurons = (n * (sizes.n_layer * sizes.n_ff + sizes.n_shared)) as f64;
        let unlisted = self.layers.iter().filter(|layer| layer.predictor.is_none()).count();
        stats.gates += (unlisted * sizes.n_ff) as f64 * sizes.used(n) + sizes.n_shared as f64;
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
}

impl Stepping<'_> {
    /// Brings the input of a block, and what its experts weigh, from one device to another.
    pub(super) fn bring_input(&mut self, from: usize, to: usize) -> Result<()> {
        let Stepping { lanes, sizes, buffers, rung, .. } = self;
        let since = buffers.timeline.now();
        let n = sizes.rungs[*rung];
        buffers.x.resize(n * sizes.n_embd, 0.0);
        buffers.weights.resize(n * sizes.n_expert, 0.0);
        let Lane { queue, scratch, .. } = lanes[from].as_mut().expect("a used device has a lane");
        queue.read_f32(&scratch.h, &mut buffers.x)?;
        if let Some(weights) = &scratch.weights {
            queue.read_f32(weights, &mut buffers.weights)?;
        }
        let Lane { queue, scratch, .. } = lanes[to].as_mut().expect("a used device has a lane");
        queue.write(&scratch.h, bytemuck::cast_slice(&buffers.x))?;
        if let Some(weights) = &scratch.weights {
            queue.write(weights, bytemuck::cast_slice(&buffers.weights))?;
        }
        buffers.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Brings the output of a block, which is added to what is there if it `joins` it.
    pub(super) fn bring_output(&mut self, from: usize, to: usize, joins: bool) -> Result<()> {
        let Stepping { lanes, sizes, buffers, rung, .. } = self;
        let since = buffers.timeline.now();
        let n = sizes.rungs[*rung] * sizes.n_embd;
        buffers.y.resize(n, 0.0);
        let Lane { queue, scratch, .. } = lanes[from].as_mut().expect("a used device has a lane");
        queue.read_f32(&scratch.y, &mut buffers.y)?;
        let Lane { queue, scratch, .. } = lanes[to].as_mut().expect("a used device has a lane");
        if joins {
            buffers.sum.resize(n, 0.0);
            queue.read_f32(&scratch.y, &mut buffers.sum)?;
            buffers.y.iter_mut().zip(&buffers.sum).for_each(|(y, sum)| *y += sum);
        }
        queue.write(&scratch.y, bytemuck::cast_slice(&buffers.y))?;
        buffers.timeline.host(Work::Copy, since);
        Ok(())
    }
}

/// A program of a step on one device.
pub(super) struct Part<'a> {
    pub(super) device: usize,
    pub(super) program: &'a Program,
    /// Layer behind each mailbox of the program, in order.
    pub(super) handed: &'a [usize],
    /// What its parts are.
    pub(super) works: &'a [Work],
    /// Real tokens.
    pub(super) n: usize,
    /// The rung of the ladder that it was recorded for.
    pub(super) rung: usize,
}

impl Part<'_> {
    /// Replays it and computes what it hands over. Dropping the run, on any error, ends its waits.
    pub(super) fn replay(
        &self,
        lanes: &mut [Option<Lane>],
        layers: &[Layer],
        sizes: &StepSizes,
        buffers: &mut Buffers,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let run = self.answered(lanes, layers, sizes, buffers, interrupt)?;
        buffers.timeline.wait(self.device, self.works, run)?;
        if interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Starts it and computes what it hands over. It may still be under way.
    pub(super) fn answered(
        &self,
        lanes: &mut [Option<Lane>],
        layers: &[Layer],
        sizes: &StepSizes,
        buffers: &mut Buffers,
        interrupt: &AtomicBool,
    ) -> Result<Run> {
        let Part { n, rung, .. } = *self;
        let home = lanes[self.device].as_mut().expect("a used device has a lane");
        let mut run = buffers.timeline.replay(&mut home.queue, self.program)?;
        // What posts nothing is not waited for.
        for _ in self.handed {
            let Some(posted) = run.next_post()? else { break };
            let since = buffers.timeline.now();
            if interrupt.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let index = self.handed[posted.mailbox];
            let layer = &layers[index];
            buffers.x.clear();
            buffers.x.extend_from_slice(posted.x);
            buffers.x.resize(sizes.rungs[rung] * sizes.n_embd, 0.0);
            buffers.weights.clear();
            buffers.weights.extend_from_slice(posted.weights);
            buffers.weights.resize(sizes.rungs[rung] * sizes.n_expert, 0.0);
            let handed = Handed { layer, index, rows: posted.rows, rung };
            buffers.timeline.host(Work::HandOff(index), since);
            remotes(&handed, lanes, sizes, buffers)?;
            let since = buffers.timeline.now();
            run.answer(&buffers.sum[..n * sizes.n_embd])?;
            buffers.timeline.host(Work::HandOff(index), since);
        }
        Ok(run)
    }
}

/// What a home posted for the other devices of a layer.
struct Handed<'a> {
    layer: &'a Layer,
    index: usize,
    /// Rows of all remotes that are wanted; `None` for every row.
    rows: Option<&'a HostRowSet>,
    /// The rung of the ladder whose programs compute it.
    rung: usize,
}

/// Computes the shares of one layer that are not at home, one after the other, and sums them in that order.
fn remotes(
    handed: &Handed<'_>,
    lanes: &mut [Option<Lane>],
    sizes: &StepSizes,
    buffers: &mut Buffers,
) -> Result<()> {
    buffers.sum.clear();
    buffers.sum.resize(sizes.rungs[handed.rung] * sizes.n_embd, 0.0);
    // All are started before any is waited for, so that several devices work at once.
    let started = start(handed, lanes, sizes, buffers);
    if started.is_err() {
        // Those that did start are given up with the step.
        buffers.runs.clear();
    }
    started?;
    let mut runs = std::mem::take(&mut buffers.runs);
    for (remote, run) in handed.layer.remotes.iter().zip(runs.drain(..)) {
        buffers.timeline.wait(remote.device, &[Work::Neurons(handed.index)], run)?;
        let since = buffers.timeline.now();
        let Lane { queue, scratch, .. } = lanes[remote.device].as_mut().expect("has a lane");
        buffers.y.resize(buffers.sum.len(), 0.0);
        queue.read_f32(&scratch.y, &mut buffers.y)?;
        for (sum, y) in buffers.sum.iter_mut().zip(&buffers.y) {
            *sum += y;
        }
        buffers.timeline.host(Work::HandOff(handed.index), since);
    }
    buffers.runs = runs;
    Ok(())
}

fn start(
    handed: &Handed<'_>,
    lanes: &mut [Option<Lane>],
    sizes: &StepSizes,
    buffers: &mut Buffers,
) -> Result<()> {
    buffers.runs.clear();
    let Handed { layer, index, rows, rung } = *handed;
    for remote in &layer.remotes {
        let since = buffers.timeline.now();
        let Lane { queue, scratch, lists, .. } = lanes[remote.device].as_mut().expect("has a lane");
        if let (Some(posted), Some(lists)) = (rows, lists) {
            let set = lists.resident(index, rung);
            buffers.parcel.take(posted, remote.rows.clone(), set.members.desc().n_cols);
            buffers.parcel.write(queue, &set)?;
        }
        queue.write(&scratch.handed, bytemuck::cast_slice(&buffers.x))?;
        if let Some(weights) = &scratch.weights {
            queue.write(weights, bytemuck::cast_slice(&buffers.weights))?;
        }
        let n = sizes.rungs[rung];
        let program = remote.programs.at_least(n).expect("the ladder ends at n_ubatch");
        buffers.timeline.host(Work::HandOff(index), since);
        buffers.runs.push(buffers.timeline.replay(queue, program)?);
    }
    Ok(())
}

/// Sizes that every step needs.
#[derive(Clone, Debug)]
pub(super) struct StepSizes {
    pub(super) rungs: Vec<usize>,
    pub(super) n_blocks: usize,
    pub(super) n_vocab: usize,
    pub(super) n_embd: usize,
    pub(super) n_layer: usize,
    pub(super) n_ff: usize,
    /// Neurons that every token uses beside those, over all layers.
    pub(super) n_shared: usize,
    /// Experts to choose from, and how many a token uses; none where the neurons fall into none.
    pub(super) n_expert: usize,
    pub(super) n_used: usize,
}

impl StepSizes {
    /// The share of a layer's experts that `n` tokens use: exact for one token, for more as if each chose by itself.
    fn used(&self, n: usize) -> f64 {
        let each = self.n_used as f64 / self.n_expert.max(1) as f64;
        if self.n_expert == 0 { 1.0 } else { 1.0 - (1.0 - each).powf(n as f64) }
    }

    /// The ladder's size for `n` tokens.
    fn rung(&self, n: usize) -> usize {
        self.rungs.iter().copied().find(|&rung| rung >= n).unwrap_or(n)
    }
}
