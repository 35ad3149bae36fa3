//! Replays programs and answers their hand-offs while the devices work.
//!
//! `record/` records the programs; `step/` decides which of them a step replays.

pub(crate) mod arena;
mod sent_rows;

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use hal::{Operand, PostedData, Program, Queue, Run, Tensor};

use placement::CPU;

use crate::error::{Error, Result};
use crate::load::lane::Lane;
use crate::load::{Layer, lane_mut};
use crate::ops::scratch::{Role, Scratch};
use crate::paging::{Needed, Paging, Stop};
use crate::record::{BucketPrograms, PagedLeg};
use crate::timeline::Work;
use arena::{LayerInputs, StepArena};
use sent_rows::read_rows;

/// A step in progress.
pub(crate) struct StepState<'a> {
    pub(crate) lanes: &'a mut [Option<Lane>],
    pub(crate) layers: &'a [Layer],
    /// For each layer, the programs of its shares on other devices.
    pub(crate) remotes: &'a [Vec<BucketPrograms>],
    /// For each layer, the programs that guess the next layer's experts on the CPU.
    pub(crate) guesses: &'a [BucketPrograms],
    pub(crate) arena: &'a mut StepArena,
    /// Weights that are partly on disk; `None` if all are in memory.
    pub(crate) paging: Option<&'a mut Paging>,
    /// The guessed router weights of the next layer; `None` if no program guesses them.
    pub(crate) guess: Option<&'a Tensor>,
    pub(crate) interrupt: &'a AtomicBool,
    /// Number of tokens, padding excluded.
    pub(crate) n: usize,
    /// Index of the recorded token count whose programs run.
    pub(crate) bucket: usize,
}

impl StepState<'_> {
    /// Copies the residual, and what layers pass on beside it, from one device to another.
    pub(crate) fn copy_residual(&mut self, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let StepState { lanes, arena, n, .. } = self;
        let since = arena.timeline.now();
        let of = |lanes: &mut [Option<Lane>], device| -> Vec<Tensor> {
            let scratch = &lane_mut(lanes, device).scratch;
            [&scratch.x].into_iter().chain(scratch.passed_on()).cloned().collect()
        };
        for (source, target) in of(lanes, from).into_iter().zip(of(lanes, to)) {
            arena.x.resize(arena.sizes.padded(*n) * source.desc().n_cols, 0.0);
            lane_mut(lanes, from).queue.read_f32(&source, &mut arena.x)?;
            lane_mut(lanes, to).queue.write(&target, bytemuck::cast_slice(&arena.x))?;
        }
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Copies the per-layer embeddings of the step to device `to`, unless it has them already.
    /// Device `from` must have them.
    pub(crate) fn copy_per_layer_embeddings(&mut self, from: usize, to: usize) -> Result<()> {
        let StepState { lanes, arena, n, .. } = self;
        let n_inputs = arena.sizes.n_inputs;
        if from == to || n_inputs == 0 || arena.inputs.devices.contains(&to) {
            return Ok(());
        }
        let since = arena.timeline.now();
        let len = arena.sizes.padded(*n) * n_inputs;
        let LayerInputs { rows, devices } = &mut arena.inputs;
        if devices.is_empty() {
            rows.resize(len, 0.0);
            let lane = lane_mut(lanes, from);
            lane.queue.read_f32(lane.scratch.at(Role::LayerInputs, n_inputs), rows)?;
            devices.push(from);
        }
        let lane = lane_mut(lanes, to);
        let inputs = lane.scratch.at(Role::LayerInputs, n_inputs);
        lane.queue.write(inputs, bytemuck::cast_slice(rows))?;
        devices.push(to);
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Copies the input of a block, and the router's weights, from one device to another.
    pub(crate) fn copy_block_input(&mut self, from: usize, to: usize) -> Result<()> {
        let StepState { lanes, arena, bucket, .. } = self;
        let since = arena.timeline.now();
        let (n, n_embd) = (arena.sizes.buckets[*bucket], arena.sizes.n_embd);
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
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }

    /// Copies the output of a block from device `from` to device `to`; if `joins` is set, adds it
    /// to the output on `to`.
    pub(crate) fn copy_block_output(&mut self, from: usize, to: usize, joins: bool) -> Result<()> {
        let StepState { lanes, arena, bucket, .. } = self;
        let since = arena.timeline.now();
        let n = arena.sizes.buckets[*bucket] * arena.sizes.n_embd;
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
        arena.timeline.record_host(Work::Copy, since);
        Ok(())
    }
}

/// A program of a step on one device.
pub(crate) struct StepProgram<'a> {
    pub(crate) device: usize,
    pub(crate) program: &'a Program,
    /// The layer of each mailbox of the program, in order.
    pub(crate) handed: &'a [usize],
    /// The work of each timed span of the program.
    pub(crate) works: &'a [Work],
}

impl StepProgram<'_> {
    /// Replays the program, answers its hand-offs and waits for its end. On an error, dropping the
    /// run ends all waits.
    pub(crate) fn replay(&self, step: &mut StepState<'_>) -> Result<()> {
        let run = self.replay_and_answer(step)?;
        step.arena.timeline.wait(self.device, self.works, run)?;
        step.check_interrupt()
    }

    /// Replays the program and answers its hand-offs. The program may still be running on return.
    pub(crate) fn replay_and_answer(&self, step: &mut StepState<'_>) -> Result<Run> {
        let home = lane_mut(step.lanes, self.device);
        let mut run = step.arena.timeline.replay(&mut home.queue, self.program, step.interrupt)?;
        // A program without hand-offs is not waited for here.
        for _ in self.handed {
            let Some(posted) = run.next_post()? else { break };
            let since = step.arena.timeline.now();
            step.check_interrupt()?;
            let index = self.handed[posted.mailbox];
            step.arena.timeline.record_host(Work::HandOff(index), since);
            step.answer(index, &posted)?;
            let since = step.arena.timeline.now();
            run.answer(&step.arena.sum[..step.n * step.arena.sizes.n_embd])?;
            step.arena.timeline.record_host(Work::HandOff(index), since);
        }
        Ok(run)
    }
}

impl StepState<'_> {
    /// Replays a segment of the CPU whose weights are partly on disk.
    pub(crate) fn replay_paged(&mut self, device: usize, legs: &[PagedLeg]) -> Result<()> {
        for PagedLeg { before, program, works } in legs {
            if let Some((layer, stop)) = *before {
                self.prepare_layer(device, layer, stop)?;
            }
            StepProgram { device, program, handed: &[], works }.replay(self)?;
        }
        Ok(())
    }

    /// Makes the weights of a layer resident that the step's tokens need after a stop.
    fn prepare_layer(&mut self, device: usize, layer: usize, stop: Stop) -> Result<()> {
        let StepState { lanes, arena, paging, guess, interrupt, n, bucket, .. } = self;
        let Some(paging) = paging else { return Ok(()) };
        let Lane { queue, scratch, lists, .. } = lane_mut(lanes, device);
        arena.weights.clear();
        let needed = match stop {
            Stop::Layer => Needed::Layer,
            Stop::Router => {
                if let Some(weights) = &scratch.weights {
                    arena.weights.resize(*n * arena.sizes.n_expert, 0.0);
                    queue.read_f32(&weights.rows(0..*n), &mut arena.weights)?;
                }
                Needed::Experts(&arena.weights)
            }
            Stop::Predictor => {
                let guessed = lists.as_ref().and_then(|lists| lists.guessed(*bucket));
                if let Some(lists) = lists {
                    read_rows(queue, &lists.resident(layer, *bucket), &mut arena.listed)?;
                }
                if let Some(guessed) = &guessed {
                    read_rows(queue, guessed, &mut arena.guessed)?;
                }
                Needed::Neurons { list: &arena.listed, guess: guessed.map(|_| &arena.guessed) }
            }
        };
        let since = arena.timeline.now();
        paging.prepare(layer, needed, interrupt)?;
        let guess = guess.filter(|_| stop == Stop::Router && paging.is_guessed(layer + 1));
        if let Some(guess) = guess {
            queue.read_f32(&guess.rows(0..*n), &mut arena.weights)?;
            paging.read_experts_ahead(layer, &arena.weights, |_| true);
        }
        arena.timeline.record_host(Work::Read(layer), since);
        Ok(())
    }

    /// Makes all weights of a layer resident.
    pub(crate) fn prepare_all(&mut self, layer: usize) -> Result<()> {
        let StepState { paging, interrupt, layers, .. } = self;
        let Some(paging) = paging else { return Ok(()) };
        paging.prepare_all(layer, |expert| layers[layer].has_expert(expert), interrupt)
    }

    /// Fails with [`Error::Interrupted`] once the user has interrupted the step.
    pub(crate) fn check_interrupt(&self) -> Result<()> {
        if self.interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Computes the shares of layer `index` on devices other than its home, from the data that the
    /// home posted. Sums their outputs in the order of the shares.
    fn answer(&mut self, index: usize, posted: &PostedData<'_>) -> Result<()> {
        // Starts all shares before it waits for the first, so that several devices work at once.
        let started = self.start_shares(index, posted);
        if started.is_err() {
            // Drops the runs of the shares that have started.
            self.arena.runs.clear();
        }
        started?;
        let StepState { lanes, arena, .. } = self;
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
            arena.timeline.record_host(Work::HandOff(index), since);
        }
        arena.runs = runs;
        Ok(())
    }

    /// Starts the shares of layer `index` on devices other than its home.
    fn start_shares(&mut self, index: usize, posted: &PostedData<'_>) -> Result<()> {
        self.arena.runs.clear();
        let shares = 0..self.layers[index].remotes.len();
        shares.into_iter().try_for_each(|at| self.start_share(index, at, posted))
    }

    /// Starts share `at` of layer `index`.
    fn start_share(&mut self, index: usize, at: usize, posted: &PostedData<'_>) -> Result<()> {
        let StepState { lanes, layers, remotes, arena, bucket, paging, interrupt, .. } = self;
        let n = arena.sizes.buckets[*bucket];
        let (remote, programs) = (&layers[index].remotes[at], &remotes[index][at]);
        let since = arena.timeline.now();
        let Lane { queue, scratch, lists, .. } = lane_mut(lanes, remote.device);
        let mut listed = None;
        if let (Some(posted), Some(lists)) = (posted.rows, lists) {
            let set = lists.resident(index, *bucket);
            let words = set.members.desc().n_cols;
            arena.sent.fill(posted, remote.rows.clone(), words);
            listed = paging.as_ref().map(|_| arena.sent.rows(words));
            arena.sent.write(queue, &set)?;
        }
        queue.write(&scratch.handed, bytemuck::cast_slice(posted.x))?;
        let expert_weights = match &remote.held {
            None => posted.weights,
            Some(held) => {
                held.weights(posted.weights, &mut arena.weights);
                &arena.weights
            }
        };
        if let Some(weights) = &scratch.weights {
            queue.write(weights, bytemuck::cast_slice(expert_weights))?;
        }
        if self.n < n {
            pad(queue, scratch, self.n..n, &mut arena.x)?;
        }
        let program = programs.at_least(n).expect("programs exist up to n_ubatch");
        arena.timeline.record_host(Work::HandOff(index), since);
        if let Some(paging) = paging.as_mut().filter(|_| remote.device == CPU) {
            let since = arena.timeline.now();
            let needed = match &listed {
                Some(list) => Needed::Neurons { list, guess: None },
                None => Needed::Experts(expert_weights),
            };
            paging.prepare(index, needed, interrupt)?;
            arena.timeline.record_host(Work::Read(index), since);
            self.guess_next(index, posted)?;
        }
        let StepState { lanes, arena, interrupt, .. } = self;
        let queue = &mut lane_mut(lanes, remote.device).queue;
        arena.runs.push(arena.timeline.replay(queue, program, interrupt)?);
        Ok(())
    }

    /// Guesses which experts of the layer after `index` the CPU will need, and requests reads of
    /// them, if it has that layer's router. Uses `y` of the CPU.
    fn guess_next(&mut self, index: usize, posted: &PostedData<'_>) -> Result<()> {
        let StepState { lanes, layers, guesses, arena, paging, guess, interrupt, n, .. } = self;
        let program = guesses.get(index).and_then(|programs| programs.at_least(*n));
        let (Some(paging), Some(guess), Some(program)) = (paging, guess, program) else {
            return Ok(());
        };
        let since = arena.timeline.now();
        let Lane { queue, scratch, .. } = lane_mut(lanes, CPU);
        queue.write(&scratch.y, bytemuck::cast_slice(posted.x))?;
        arena.timeline.record_host(Work::HandOff(index), since);
        let run = arena.timeline.replay(queue, program, interrupt)?;
        arena.timeline.wait(CPU, &[Work::Neurons(index)], run)?;
        let since = arena.timeline.now();
        let next = &layers[index + 1];
        arena.weights.resize(*n * guess.desc().n_cols, 0.0);
        queue.read_f32(&guess.rows(0..*n), &mut arena.weights)?;
        paging.read_experts_ahead(index, &arena.weights, |expert| next.has_expert(expert));
        arena.timeline.record_host(Work::Read(index), since);
        Ok(())
    }
}

/// Writes zeros to these rows of x and of the router's weights: the input of padded tokens.
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
