//! One step: replays programs in order and answers hand-offs while the devices work.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hal::{BatchFacts, Operand, Posted, Program, Queue, Run, Tensor};

use model::LayerWeights;

use super::build::{Layer, Loaded};
use super::counters::StepStats;
use super::lane::{Lane, Scratch};
use super::predict::Parcel;
use super::record::Segment;
use super::stream::{Stepping, Stream};
use super::timeline::{Timeline, Work};
use super::{Error, Result};

/// Host buffers of the step, kept between steps.
#[derive(Debug, Default)]
pub(super) struct Buffers {
    x: Vec<f32>,
    weights: Vec<f32>,
    y: Vec<f32>,
    sum: Vec<f32>,
    pub(super) active: Vec<f32>,
    pub(super) counts: Vec<u32>,
    words: Vec<u32>,
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
        let defers = self.defers(n, rung, sizes);
        let mut stats = StepStats::default();
        if !defers || self.deferred[rung].steps >= sizes.most_deferred() {
            stats += self.flush(rung, sizes, buffers)?;
        }
        self.begin(facts, sizes, buffers)?;
        if self.deferred[rung].steps == 0 {
            self.clear(rung, sizes, buffers)?;
        }
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
        if defers {
            let step = self.expected(n, sizes);
            let deferred = &mut self.deferred[rung];
            deferred.steps += 1;
            deferred.stats += step;
        } else {
            stats += self.count(rung, n, sizes, buffers)?;
        }
        Ok(stats)
    }

    /// Starts a step whose counters are read at its end by [`Loaded::count`]; the counters of
    /// earlier steps are read first.
    pub(super) fn begin_counted(
        &mut self,
        facts: &BatchFacts,
        rung: usize,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<()> {
        self.clear(rung, sizes, buffers)?;
        self.begin(facts, sizes, buffers)
    }

    /// Uploads the batch facts of a step to every device.
    fn begin(
        &mut self,
        facts: &BatchFacts,
        sizes: &StepSizes,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let since = buffers.timeline.now();
        let shape = self.lane(self.head.device).batch.shape;
        facts.encode_into(&shape, sizes.n_blocks, sizes.n_vocab, &mut buffers.words)?;
        self.streams.iter_mut().flatten().for_each(Stream::begin);
        for lane in self.lanes.iter_mut().flatten() {
            lane.queue.write(&lane.batch.words, bytemuck::cast_slice(&buffers.words))?;
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

    /// Copies the residual from one device to another.
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
}

impl Stepping<'_> {
    /// Copies the input of a block, and the weights of its experts, from one device to another.
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

    /// Copies the output of a block; adds it to the existing output if `joins`.
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
    /// The layer of each mailbox of the program, in order.
    pub(super) handed: &'a [usize],
    /// The work of each of its timed spans.
    pub(super) works: &'a [Work],
    /// Real tokens.
    pub(super) n: usize,
    /// The rung of the ladder for which it was recorded.
    pub(super) rung: usize,
}

impl Part<'_> {
    /// Replays it and answers its hand-offs. On an error, dropping the run ends all waits.
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

    /// Starts it and answers its hand-offs. It may still be running on return.
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
        // A program without hand-offs is not waited for.
        for _ in self.handed {
            let Some(posted) = run.next_post()? else { break };
            let since = buffers.timeline.now();
            if interrupt.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let index = self.handed[posted.mailbox];
            let layer = &layers[index];
            let handed = Handed { layer, index, posted, n, rung };
            buffers.timeline.host(Work::HandOff(index), since);
            remotes(&handed, lanes, sizes, buffers)?;
            let since = buffers.timeline.now();
            run.answer(&buffers.sum[..n * sizes.n_embd])?;
            buffers.timeline.host(Work::HandOff(index), since);
        }
        Ok(run)
    }
}

/// The data that a home posted for the other devices of a layer.
struct Handed<'a> {
    layer: &'a Layer,
    index: usize,
    /// Inputs, expert weights, and the active rows of all remotes.
    posted: Posted<'a>,
    /// Real tokens.
    n: usize,
    /// The rung of the ladder whose programs compute them.
    rung: usize,
}

/// Computes the shares of a layer on its other devices and sums them in the order of the shares.
fn remotes(
    handed: &Handed<'_>,
    lanes: &mut [Option<Lane>],
    sizes: &StepSizes,
    buffers: &mut Buffers,
) -> Result<()> {
    // All are started before the first is waited for, so that several devices work at once.
    let started = start(handed, lanes, sizes, buffers);
    if started.is_err() {
        // Shares that did start are dropped with the step.
        buffers.runs.clear();
    }
    started?;
    let mut runs = std::mem::take(&mut buffers.runs);
    let len = handed.n * sizes.n_embd;
    buffers.sum.resize(len, 0.0);
    buffers.y.resize(len, 0.0);
    for (at, (remote, run)) in handed.layer.remotes.iter().zip(runs.drain(..)).enumerate() {
        buffers.timeline.wait(remote.device, &[Work::Neurons(handed.index)], run)?;
        let since = buffers.timeline.now();
        let Lane { queue, scratch, .. } = lanes[remote.device].as_mut().expect("has a lane");
        if at == 0 {
            queue.read_f32(&scratch.y, &mut buffers.sum)?;
        } else {
            queue.read_f32(&scratch.y, &mut buffers.y)?;
            buffers.sum.iter_mut().zip(&buffers.y).for_each(|(sum, y)| *sum += y);
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
    let Handed { layer, index, posted, n: n_real, rung } = *handed;
    let n = sizes.rungs[rung];
    for remote in &layer.remotes {
        let since = buffers.timeline.now();
        let Lane { queue, scratch, lists, .. } = lanes[remote.device].as_mut().expect("has a lane");
        if let (Some(posted), Some(lists)) = (posted.rows, lists) {
            let set = lists.resident(index, rung);
            buffers.parcel.take(posted, remote.rows.clone(), set.members.desc().n_cols);
            buffers.parcel.write(queue, &set)?;
        }
        queue.write(&scratch.handed, bytemuck::cast_slice(posted.x))?;
        if let Some(weights) = &scratch.weights {
            queue.write(weights, bytemuck::cast_slice(posted.weights))?;
        }
        if n_real < n {
            pad(queue, scratch, n_real..n, buffers)?;
        }
        let program = remote.programs.at_least(n).expect("the ladder ends at n_ubatch");
        buffers.timeline.host(Work::HandOff(index), since);
        buffers.runs.push(buffers.timeline.replay(queue, program)?);
    }
    Ok(())
}

/// Gives padded tokens an input that causes no work: zeros, and no expert.
fn pad(
    queue: &mut Queue,
    scratch: &Scratch<Tensor>,
    rows: Range<usize>,
    buffers: &mut Buffers,
) -> Result<()> {
    for tensor in [Some(&scratch.handed), scratch.weights.as_ref()].into_iter().flatten() {
        let rows = tensor.rows(rows.clone());
        buffers.x.clear();
        buffers.x.resize(rows.desc().n_rows * rows.desc().n_cols, 0.0);
        queue.write(&rows, bytemuck::cast_slice(&buffers.x))?;
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
    /// Sizes of each layer's feed-forward block.
    pub(super) blocks: Vec<BlockSizes>,
    /// Neurons of the shared experts, over all layers.
    pub(super) n_shared: usize,
    /// Maximum number of experts of a layer; 0 in a dense model.
    pub(super) n_expert: usize,
}

/// Sizes of the feed-forward block of a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockSizes {
    /// Neurons; 0 where there is no block.
    pub(super) n_ff: usize,
    /// Number of experts; 0 in a dense block.
    pub(super) n_expert: usize,
    /// Experts that a token uses.
    n_used: usize,
}

impl BlockSizes {
    pub(super) fn of(layer: &LayerWeights) -> BlockSizes {
        let (n_expert, n_used) = layer.experts().map_or((0, 0), |by| (by.n, by.n_used));
        BlockSizes { n_ff: layer.n_ff(), n_expert, n_used }
    }

    /// Share of the experts that `n` tokens use: exact for one token, for more as if tokens chose
    /// independently.
    pub(super) fn used(&self, n: usize) -> f64 {
        let each = self.n_used as f64 / self.n_expert.max(1) as f64;
        if self.n_expert == 0 { 1.0 } else { 1.0 - (1.0 - each).powf(n as f64) }
    }
}

impl StepSizes {
    /// Number of steps whose counters may accumulate before they are read: F32 counts exactly up
    /// to 2^24.
    fn most_deferred(&self) -> usize {
        let n_ff = self.blocks.iter().map(|block| block.n_ff).max().unwrap_or(0);
        ((1 << 24) / (n_ff + self.n_shared).max(1)).max(1)
    }

    /// The ladder's size for `n` tokens.
    fn rung(&self, n: usize) -> usize {
        self.rungs.iter().copied().find(|&rung| rung >= n).unwrap_or(n)
    }
}
