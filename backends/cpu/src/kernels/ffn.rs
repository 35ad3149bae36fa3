//! The feed-forward block that computes only the active neurons.
//!
//! Tokens are processed in tiles. A tile takes four steps: quantise x and find which tokens use
//! which group; compute the neurons' values; sum up groups; write the result. Small batches go slice
//! by slice (`few`). Larger batches that use all rows go through the same steps by panels
//! (`prompt`). A block without groups is one group that every token uses. Rows that no token uses
//! are not read.

use std::ops::Range;

use hal::op::{self, Down, Skip};
use hal::{Layout, Operand, Rows, Tensor};

use super::activation::Neurons;
use super::operand::{Acts, Weight, maybe, rows_per_chunk};
use super::panels::{PanelCut, Panels};
use super::{Context, Kernel, piece};
use crate::buffer::{Reads, Scratch, Writes};

mod cut;
mod down;
mod few;
mod groups;
mod list;
mod prompt;
mod wanted;

pub(super) use cut::Spans;
use cut::{Cut, SLICE};
use down::ByNeuron;
use groups::{GroupChunk, Groups};
use list::List;
use prompt::Prompt;

/// Phases per tile.
const STEPS: usize = 4;

/// Why an op falls back to the reference, if it does.
pub(super) fn unsupported<T: Operand>(op: &op::SparseFfn<T>) -> Option<&'static str> {
    let cut = matches!(op.skip, Skip::GaussianCut(_));
    cut.then_some("with a Gaussian cut has no fast kernel")
}

/// Destination of the neurons' values.
#[derive(Debug)]
enum Output {
    ByNeuron { down: ByNeuron, partial: Writes<f32> },
    Across { down: Weight, h: Writes<f32>, acts: Acts, rows: usize },
}

#[derive(Debug)]
pub(super) struct SparseFfn {
    cut: Cut,
    gate: Option<Weight>,
    up: Weight,
    bias_gate: Option<Reads<f32>>,
    bias_up: Option<Reads<f32>>,
    bias_down: Option<Reads<f32>>,
    threshold: Option<Reads<f32>>,
    groups: Groups,
    list: Option<List>,
    x: Acts,
    y: Writes<f32>,
    active: Writes<f32>,
    hits: Option<Writes<f32>>,
    union: Option<Writes<f32>>,
    carried: Writes<u32>,
    /// [`hal::op::UnionCounts`] of each slice of a tile.
    slice_counts: Writes<u32>,
    output: Output,
    prompt: Option<Prompt>,
    n_in: usize,
    neurons: Neurons,
    skip: Skip,
    /// Crossover from lists of rows to all rows: see [`hal::op::SparseFfn::dense_from`].
    dense_from: f32,
    accumulate: bool,
}

impl SparseFfn {
    pub(super) fn new(op: &op::SparseFfn<Tensor>, context: &Context<'_>) -> SparseFfn {
        let (spans, cut, bind) = (
            Spans::new(op, context.n_threads, &mut Scratch::default()),
            Cut::new(op),
            &context.bind,
        );
        let output = match op.orientation {
            Down::ByNeuron => Output::ByNeuron {
                down: ByNeuron::new(&op.down, context),
                partial: bind.scratch(&spans.partial),
            },
            Down::AcrossNeurons => {
                let (down, h) = (Weight::new(&op.down, context), bind.scratch(&spans.h));
                let acts = Acts::new(h.reads(), spans.h_q8.as_ref(), context);
                Output::Across { down, h, acts, rows: rows_per_chunk(down.rows.n_cols()) }
            }
        };
        SparseFfn {
            cut,
            gate: op.gate.as_ref().map(|gate| Weight::new(gate, context)),
            up: Weight::new(&op.up, context),
            bias_gate: maybe(op.bias_gate.as_ref(), context),
            bias_up: maybe(op.bias_up.as_ref(), context),
            bias_down: maybe(op.bias_down.as_ref(), context),
            threshold: maybe(op.threshold.as_ref(), context),
            groups: Groups::new(op, &cut, &spans.groups, context),
            list: match &op.rows {
                Rows::All => None,
                Rows::Active(set) => Some(List::new(set, bind.scratch(&spans.starts), context)),
            },
            x: Acts::new(bind.read(&op.x), spans.x.as_ref(), context),
            y: bind.write(&op.y),
            active: bind.write(&op.active),
            hits: op.hits.as_ref().map(|hits| bind.write(hits)),
            union: op.union.as_ref().map(|union| bind.write(union)),
            carried: bind.scratch(&spans.carried),
            slice_counts: bind.scratch(&spans.slice_counts),
            output,
            prompt: cut.is_prompt.then(|| Prompt {
                panels: Panels::new(&spans.panels, context),
                kept: bind.scratch(&spans.kept),
                h: bind.scratch(&spans.h),
            }),
            n_in: op.x.desc().n_cols,
            neurons: Neurons {
                kind: op.kind,
                activation: op.activation,
                activate: context.simd.activate(),
            },
            skip: op.skip,
            dense_from: op.dense_from,
            accumulate: op.accumulate,
        }
    }

    fn tile(&self, tile: usize) -> Range<usize> {
        piece(tile, self.cut.tile, self.cut.n_tokens)
    }

    /// Initialises some columns of y of token `t`: the previous contents if they accumulate, and
    /// the biases.
    fn begin(&self, t: usize, slot: usize, cols: &Range<usize>) -> &mut [f32] {
        let y = self.y.part(t, cols.clone());
        if !self.accumulate {
            y.fill(0.0);
        }
        if let Some(bias) = &self.bias_down {
            for group in self.groups.of_token(slot).map(|pair| self.groups.group(pair)) {
                let factor = self.groups.weight(group, t);
                let bias = &bias.row(group)[cols.clone()];
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += factor * b);
            }
        }
        y
    }

    /// The first row of a group's matrix if down has one row per output.
    fn matrix_of(&self, part: &GroupChunk<'_>) -> usize {
        part.rows.start / self.cut.group_rows.max(1) * self.cut.n_out
    }

    /// Number of chunks for a group with this number of pairs and rows.
    fn group_chunks(&self, n_pairs: usize, n_rows: usize) -> usize {
        match self.prompt {
            Some(_) => PanelCut::new(n_pairs, n_rows).n_chunks(),
            None => n_rows.div_ceil(self.cut.slice),
        }
    }
}

impl Kernel for SparseFfn {
    fn n_phases(&self) -> usize {
        STEPS * self.cut.n_tokens.div_ceil(self.cut.tile.max(1))
    }

    fn chunks(&self, phase: usize) -> usize {
        let (tile, step) = (self.tile(phase / STEPS), phase % STEPS);
        match (step, &self.prompt) {
            (0, _) if self.x.rounds() => tile.len(),
            (0, _) => tile.len().min(1),
            (_, Some(_)) => self.prompt_chunks(step, &tile),
            (_, None) => self.few_chunks(step, &tile),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        let (tile, step) = (self.tile(phase / STEPS), phase % STEPS);
        match (step, &self.prompt) {
            (0, _) => {
                self.x.round(tile.start + chunk, chunk);
                if chunk == 0 {
                    self.groups.index(&tile, |pairs, rows| self.group_chunks(pairs, rows));
                    if !self.cut.is_prompt {
                        self.slice_counts.row(0).fill(0);
                    }
                    if let Some(list) = &self.list {
                        list.index(self.groups.slice_starts());
                    }
                }
            }
            (_, Some(prompt)) => self.prompt_run(prompt, step, chunk, &tile, worker),
            (_, None) => self.few_run(step, chunk, &tile),
        }
    }
}

/// Whether a tensor is a transposed matrix.
fn is_transposed(tensor: &Tensor) -> bool {
    match tensor.desc().layout {
        Layout::Rows => false,
        Layout::Transposed { .. } => true,
    }
}
