//! The feed-forward block that computes only the active neurons.
//!
//! The code treats a block without experts as one expert that every token uses. Tokens are
//! processed in tiles. A tile takes four steps: quantise x and find the tokens of each expert;
//! compute the neurons' values; sum the down rows of each expert (prefill only); write y. `decode`
//! (small batches) computes slices of rows, `prefill` panels of rows.

use std::ops::Range;

use hal::op::{self, Down, Skip};
use hal::{Layout, Operand, Rows, Tensor};

use super::activation::NeuronActivation;
use super::operand::{Acts, Weight, optional_view, rows_per_chunk};
use super::panels::{PanelCut, Panels};
use super::{Context, Kernel, nth_range};
use crate::buffer::{ReadView, Scratch, WriteView};

mod cut;
mod decode;
mod down;
mod experts;
mod gaussian;
mod list;
mod needed_rows;
mod prefill;

pub(super) use cut::Workspace;
use cut::{Cut, SLICE};
use down::DownByNeuron;
use experts::{ExpertChunk, ExpertPairs};
use gaussian::Tests;
use list::RowList;
use prefill::Prefill;

/// Steps per tile, without those of a Gaussian cut.
const STEPS: usize = 4;

/// A step of a tile.
enum Step {
    /// One of [`gaussian::STEPS`], which follow the first of [`STEPS`].
    Tests(usize),
    /// One of [`STEPS`].
    Neurons(usize),
}

/// The reason why an op runs on the slow reference implementation; `None` if it has a fast kernel.
pub(super) fn unsupported<T: Operand>(op: &op::SparseFfn<T>) -> Option<&'static str> {
    let cut = matches!(op.skip, Skip::GaussianCut(_)) && op.experts.is_some();
    cut.then_some("with a Gaussian cut of experts has no fast kernel")
}

/// The down matrix in either orientation, and the op's buffers for it.
#[derive(Debug)]
enum Output {
    ByNeuron { down: DownByNeuron, partial: WriteView<f32> },
    ByOutput { down: Weight, h: WriteView<f32>, acts: Acts, rows: usize },
}

#[derive(Debug)]
pub(super) struct SparseFfn {
    cut: Cut,
    gate: Option<Weight>,
    up: Weight,
    bias_gate: Option<ReadView<f32>>,
    bias_up: Option<ReadView<f32>>,
    bias_down: Option<ReadView<f32>>,
    threshold: Option<ReadView<f32>>,
    /// Test values; `None` without a Gaussian cut.
    tests: Option<Tests>,
    experts: ExpertPairs,
    list: Option<RowList>,
    x: Acts,
    y: WriteView<f32>,
    active: WriteView<f32>,
    hits: Option<WriteView<f32>>,
    union: Option<WriteView<f32>>,
    n_active: WriteView<u32>,
    /// [`hal::op::UnionCounts`] of each slice of a tile.
    slice_counts: WriteView<u32>,
    output: Output,
    prefill: Option<Prefill>,
    n_in: usize,
    neurons: NeuronActivation,
    skip: Skip,
    /// Crossover from row lists to the dense pass: see [`hal::op::SparseFfn::dense_from`].
    dense_from: f32,
    accumulate: bool,
}

impl SparseFfn {
    pub(super) fn new(op: &op::SparseFfn<Tensor>, context: &Context<'_>) -> SparseFfn {
        let (spans, cut, bind) = (
            Workspace::new(op, context.n_threads, &mut Scratch::default()),
            Cut::new(op),
            &context.bind,
        );
        let output = match op.orientation {
            Down::ByNeuron => Output::ByNeuron {
                down: DownByNeuron::new(&op.down, context),
                partial: bind.scratch(&spans.partial),
            },
            Down::AcrossNeurons => {
                let (down, h) = (Weight::new(&op.down, context), bind.scratch(&spans.h));
                let acts = Acts::new(h.read_view(), spans.h_q8.as_ref(), context);
                Output::ByOutput { down, h, acts, rows: rows_per_chunk(down.rows.row_bytes()) }
            }
        };
        SparseFfn {
            cut,
            gate: op.gate.as_ref().map(|gate| Weight::new(gate, context)),
            up: Weight::new(&op.up, context),
            bias_gate: optional_view(op.bias_gate.as_ref(), context),
            bias_up: optional_view(op.bias_up.as_ref(), context),
            bias_down: optional_view(op.bias_down.as_ref(), context),
            threshold: optional_view(op.threshold.as_ref(), context),
            tests: Tests::new(op.skip, &spans.tests, |span| bind.scratch(span)),
            experts: ExpertPairs::new(op, &cut, &spans.experts, context),
            list: match &op.rows {
                Rows::All => None,
                Rows::Active(set) => Some(RowList::new(set, bind.scratch(&spans.starts), context)),
            },
            x: Acts::new(bind.read(&op.x), spans.x.as_ref(), context),
            y: bind.write(&op.y),
            active: bind.write(&op.active),
            hits: op.hits.as_ref().map(|hits| bind.write(hits)),
            union: op.union.as_ref().map(|union| bind.write(union)),
            n_active: bind.scratch(&spans.n_active),
            slice_counts: bind.scratch(&spans.slice_counts),
            output,
            prefill: cut.is_prefill.then(|| Prefill {
                panels: Panels::new(&spans.panels, context),
                mask: bind.scratch(&spans.mask),
                h: bind.scratch(&spans.h),
            }),
            n_in: op.x.desc().n_cols,
            neurons: NeuronActivation {
                kind: op.kind,
                activation: op.activation,
                activate: context.simd.activate(),
                soft_cap: context.simd.soft_cap(),
            },
            skip: op.skip,
            dense_from: op.dense_from,
            accumulate: op.accumulate,
        }
    }

    /// Number of phases of a tile.
    fn n_steps(&self) -> usize {
        STEPS + self.tests.as_ref().map_or(0, |_| gaussian::STEPS)
    }

    /// The tile of a phase, and its step.
    fn step(&self, phase: usize) -> (Range<usize>, Step) {
        let n = self.n_steps();
        let step = match phase % n {
            0 => Step::Neurons(0),
            step if step <= n - STEPS => Step::Tests(step - 1),
            step => Step::Neurons(step - (n - STEPS)),
        };
        (nth_range(phase / n, self.cut.tile, self.cut.n_tokens), step)
    }

    /// Initialises columns `cols` of y for token `t`: keeps the previous contents if the op
    /// accumulates, otherwise zeroes them, then adds the biases.
    fn init_output(&self, t: usize, slot: usize, cols: &Range<usize>) -> &mut [f32] {
        let y = self.y.columns(t, cols.clone());
        if !self.accumulate {
            y.fill(0.0);
        }
        if let Some(bias) = &self.bias_down {
            for expert in self.experts.pairs_of_token(slot).map(|pair| self.experts.expert(pair)) {
                let factor = self.experts.weight(expert, t);
                let bias = &bias.row(expert)[cols.clone()];
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += factor * b);
            }
        }
        y
    }

    /// The first row of an expert's down matrix; for down matrices with one row per output.
    fn down_matrix_start(&self, part: &ExpertChunk<'_>) -> usize {
        part.rows.start / self.cut.expert_rows.max(1) * self.cut.n_out
    }

    /// Number of chunks of an expert with `n_pairs` pairs and `n_rows` rows.
    fn expert_chunks(&self, n_pairs: usize, n_rows: usize) -> usize {
        match self.prefill {
            Some(_) => PanelCut::new(n_pairs, n_rows).n_chunks(),
            None => n_rows.div_ceil(self.cut.slice),
        }
    }
}

impl Kernel for SparseFfn {
    fn n_phases(&self) -> usize {
        self.n_steps() * self.cut.n_tokens.div_ceil(self.cut.tile.max(1))
    }

    fn chunks(&self, phase: usize) -> usize {
        let (tile, step) = match self.step(phase) {
            (tile, Step::Tests(step)) => return self.test_chunks(step, &tile),
            (tile, Step::Neurons(step)) => (tile, step),
        };
        match (step, &self.prefill) {
            (0, _) if self.x.quantizes() => tile.len(),
            (0, _) => tile.len().min(1),
            (_, Some(_)) => self.prefill_chunks(step, &tile),
            (_, None) => self.decode_chunks(step, &tile),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        let (tile, step) = match (self.step(phase), &self.tests) {
            ((tile, Step::Tests(step)), Some(tests)) => {
                return self.test_run(tests, step, chunk, &tile, worker);
            }
            ((_, Step::Tests(_)), None) => return,
            ((tile, Step::Neurons(step)), _) => (tile, step),
        };
        match (step, &self.prefill) {
            (0, _) => {
                self.x.quantize(tile.start + chunk, chunk);
                if chunk == 0 {
                    self.experts.find_pairs(&tile, |pairs, rows| self.expert_chunks(pairs, rows));
                    if !self.cut.is_prefill {
                        self.slice_counts.row(0).fill(0);
                    }
                    if let Some(list) = &self.list {
                        list.find_slices(self.experts.slice_starts());
                    }
                }
            }
            (_, Some(prefill)) => self.prefill_run(prefill, step, chunk, &tile, worker),
            (_, None) => self.decode_run(step, chunk, &tile),
        }
    }
}

fn is_transposed(tensor: &Tensor) -> bool {
    match tensor.desc().layout {
        Layout::Rows => false,
        Layout::Transposed { .. } => true,
    }
}
