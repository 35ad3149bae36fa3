//! Replays programs and answers their hand-offs while the devices work.
//!
//! Not here: how programs were recorded, and which of them a step has.

pub(crate) mod arena;
mod sent;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hal::{Operand, Posted, Program, Queue, Run, Tensor};

use crate::error::{Error, Result};
use crate::load::lane::Lane;
use crate::load::{Layer, lane_mut};
use crate::ops::scratch::{Role, Scratch};
use crate::record::Ladder;
use crate::timeline::Work;
use arena::{LayerInputs, StepArena};

/// A step under way.
pub(crate) struct Stepping<'a> {
    pub(crate) lanes: &'a mut [Option<Lane>],
    pub(crate) layers: &'a [Layer],
    /// Per layer, the programs of its remotes.
    pub(crate) remotes: &'a [Vec<Ladder>],
    pub(crate) arena: &'a mut StepArena,
    pub(crate) interrupt: &'a AtomicBool,
    /// Real tokens.
    pub(crate) n: usize,
    /// The rung of the ladder whose programs run.
    pub(crate) rung: usize,
}

impl Stepping<'_> {
    /// Copies the residual from one device to another.
    pub(crate) fn carry(&mut self, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let Stepping { lanes, arena, n, .. } = self;
        let since = arena.timeline.now();
        let len = arena.sizes.rung(*n) * arena.sizes.n_embd;
        arena.x.resize(len, 0.0);
        let lane = lane_mut(lanes, from);
        lane.queue.read_f32(&lane.scratch.x, &mut arena.x)?;
        let lane = lane_mut(lanes, to);
        lane.queue.write(&lane.scratch.x, bytemuck::cast_slice(&arena.x))?;
        arena.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Copies the tokens' embeddings for all layers to a device, unless it has them already. `from`
    /// is a device that has them.
    pub(crate) fn carry_inputs(&mut self, from: usize, to: usize) -> Result<()> {
        let Stepping { lanes, arena, n, .. } = self;
        let n_inputs = arena.sizes.n_inputs;
        if from == to || n_inputs == 0 || arena.inputs.on.contains(&to) {
            return Ok(());
        }
        let since = arena.timeline.now();
        let len = arena.sizes.rung(*n) * n_inputs;
        let LayerInputs { rows, on } = &mut arena.inputs;
        if on.is_empty() {
            rows.resize(len, 0.0);
            let lane = lane_mut(lanes, from);
            lane.queue.read_f32(lane.scratch.at(Role::LayerInputs, n_inputs), rows)?;
            on.push(from);
        }
        let lane = lane_mut(lanes, to);
        let inputs = lane.scratch.at(Role::LayerInputs, n_inputs);
        lane.queue.write(inputs, bytemuck::cast_slice(rows))?;
        on.push(to);
        arena.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Copies the input of a block, and the weights of its experts, from one device to another.
    pub(crate) fn bring_input(&mut self, from: usize, to: usize) -> Result<()> {
        let Stepping { lanes, arena, rung, .. } = self;
        let since = arena.timeline.now();
        let (n, n_embd) = (arena.sizes.rungs[*rung], arena.sizes.n_embd);
        arena.x.resize(n * n_embd, 0.0);
        arena.weights.resize(n * arena.sizes.n_expert, 0.0);
        let Lane { queue, scratch, .. } = lane_mut(lanes, from);
        queue.read_f32(&scratch.h, &mut arena.x)?;
        if let Some(weights) = &scratch.weights {
            queue.read_f32(weights, &mut arena.weights)?;
        }
        let Lane { queue, scratch, .. } = lane_mut(lanes, to);
        queue.write(&scratch.h, bytemuck::cast_slice(&arena.x))?;
        if let Some(weights) = &scratch.weights {
            queue.write(weights, bytemuck::cast_slice(&arena.weights))?;
        }
        arena.timeline.host(Work::Copy, since);
        Ok(())
    }

    /// Copies the output of a block; adds it to the existing output if `joins`.
    pub(crate) fn bring_output(&mut self, from: usize, to: usize, joins: bool) -> Result<()> {
        let Stepping { lanes, arena, rung, .. } = self;
        let since = arena.timeline.now();
        let n = arena.sizes.rungs[*rung] * arena.sizes.n_embd;
        arena.y.resize(n, 0.0);
        let Lane { queue, scratch, .. } = lane_mut(lanes, from);
        queue.read_f32(&scratch.y, &mut arena.y)?;
        let Lane { queue, scratch, .. } = lane_mut(lanes, to);
        if joins {
            arena.sum.resize(n, 0.0);
            queue.read_f32(&scratch.y, &mut arena.sum)?;
            arena.y.iter_mut().zip(&arena.sum).for_each(|(y, sum)| *y += sum);
        }
        queue.write(&scratch.y, bytemuck::cast_slice(&arena.y))?;
        arena.timeline.host(Work::Copy, since);
        Ok(())
    }
}

/// A program of a step on one device.
pub(crate) struct StepProgram<'a> {
    pub(crate) device: usize,
    pub(crate) program: &'a Program,
    /// The layer of each mailbox of the program, in order.
    pub(crate) handed: &'a [usize],
    /// The work of each of its timed spans.
    pub(crate) works: &'a [Work],
}

impl StepProgram<'_> {
    /// Replays it and answers its hand-offs. On an error, dropping the run ends all waits.
    pub(crate) fn replay(&self, step: &mut Stepping<'_>) -> Result<()> {
        let run = self.replay_and_answer(step)?;
        step.arena.timeline.wait(self.device, self.works, run)?;
        step.check_interrupt()
    }

    /// Replays the program and answers its hand-offs. The program may still be running on return.
    pub(crate) fn replay_and_answer(&self, step: &mut Stepping<'_>) -> Result<Run> {
        let home = lane_mut(step.lanes, self.device);
        let mut run = step.arena.timeline.replay(&mut home.queue, self.program)?;
        // A program without hand-offs is not waited for.
        for _ in self.handed {
            let Some(posted) = run.next_post()? else { break };
            let since = step.arena.timeline.now();
            step.check_interrupt()?;
            let index = self.handed[posted.mailbox];
            step.arena.timeline.host(Work::HandOff(index), since);
            step.answer(index, &posted)?;
            let since = step.arena.timeline.now();
            run.answer(&step.arena.sum[..step.n * step.arena.sizes.n_embd])?;
            step.arena.timeline.host(Work::HandOff(index), since);
        }
        Ok(run)
    }
}

impl Stepping<'_> {
    /// # Errors
    /// [`Error::Interrupted`] once the user has stopped the step.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        if self.interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Computes the shares of layer `index` on its other devices from the data that its home
    /// posted, and sums them in the order of the shares.
    fn answer(&mut self, index: usize, posted: &Posted<'_>) -> Result<()> {
        // All are started before the first is waited for, so that several devices work at once.
        let started = self.start(index, posted);
        if started.is_err() {
            // Shares that did start are dropped with the step.
            self.arena.runs.clear();
        }
        started?;
        let Stepping { lanes, arena, .. } = self;
        let mut runs = std::mem::take(&mut arena.runs);
        let len = self.n * arena.sizes.n_embd;
        arena.sum.resize(len, 0.0);
        arena.y.resize(len, 0.0);
        for (at, (remote, run)) in self.layers[index].remotes.iter().zip(runs.drain(..)).enumerate()
        {
            arena.timeline.wait(remote.device, &[Work::Neurons(index)], run)?;
            let since = arena.timeline.now();
            let Lane { queue, scratch, .. } = lane_mut(lanes, remote.device);
            if at == 0 {
                queue.read_f32(&scratch.y, &mut arena.sum)?;
            } else {
                queue.read_f32(&scratch.y, &mut arena.y)?;
                arena.sum.iter_mut().zip(&arena.y).for_each(|(sum, y)| *sum += y);
            }
            arena.timeline.host(Work::HandOff(index), since);
        }
        arena.runs = runs;
        Ok(())
    }

    /// Starts the programs of the other devices of layer `index`.
    fn start(&mut self, index: usize, posted: &Posted<'_>) -> Result<()> {
        let Stepping { lanes, layers, remotes, arena, rung, .. } = self;
        arena.runs.clear();
        let n = arena.sizes.rungs[*rung];
        for (remote, programs) in layers[index].remotes.iter().zip(&remotes[index]) {
            let since = arena.timeline.now();
            let Lane { queue, scratch, lists, .. } = lane_mut(lanes, remote.device);
            if let (Some(posted), Some(lists)) = (posted.rows, lists) {
                let set = lists.resident(index, *rung);
                arena.sent.take(posted, remote.rows.clone(), set.members.desc().n_cols);
                arena.sent.write(queue, &set)?;
            }
            queue.write(&scratch.handed, bytemuck::cast_slice(posted.x))?;
            if let Some(weights) = &scratch.weights {
                queue.write(weights, bytemuck::cast_slice(posted.weights))?;
            }
            if self.n < n {
                pad(queue, scratch, self.n..n, &mut arena.x)?;
            }
            let program = programs.at_least(n).expect("the ladder ends at n_ubatch");
            arena.timeline.host(Work::HandOff(index), since);
            arena.runs.push(arena.timeline.replay(queue, program)?);
        }
        Ok(())
    }
}

/// Gives padded tokens an input that causes no work: zeros, and no expert.
fn pad(
    queue: &mut Queue,
    scratch: &Scratch<Tensor>,
    rows: Range<usize>,
    zeros: &mut Vec<f32>,
) -> Result<()> {
    for tensor in [Some(&scratch.handed), scratch.weights.as_ref()].into_iter().flatten() {
        let rows = tensor.rows(rows.clone());
        zeros.clear();
        zeros.resize(rows.desc().n_rows * rows.desc().n_cols, 0.0);
        queue.write(&rows, bytemuck::cast_slice(zeros))?;
    }
    Ok(())
}
