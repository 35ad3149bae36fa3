//! The feed-forward block that computes only the neurons that count.
//!
//! Tokens are worked on in tiles. A tile takes four phases: round x; slices of neurons (gate, test, up, and, where
//! down lies by neuron, its rows into a partial sum of the slice's own); round h; finish (merge the partial sums in
//! the order of the slices, or multiply by down's rows). Slices are ranges of rows, fixed by their number alone, so
//! that a list's length and other tokens' wishes change nothing of a token's sum. Many tokens go
//! another way through the same phases: see `prompt`.

use std::ops::Range;

use hal::op::{self, Down, Skip};
use hal::{Layout, Operand, Rows, Tensor};

use super::activation::Neurons;
use super::operand::{Acts, Weight, maybe, rows_per_chunk};
use super::panels::Panels;
use super::{Context, Kernel, piece};
use crate::buffer::{Reads, Scratch, Writes};
use crate::simd::{ActView, RowIds};

mod cut;
mod down;
mod list;
mod prompt;

pub(super) use cut::Spans;
use cut::{Cut, SLICE, TILE};
use down::ByNeuron;
use list::{Groups, List};
use prompt::Prompt;

/// Columns per chunk of the merge.
const COLS: usize = 512;

/// Why an op is left to the reference, if it is.
pub(super) fn unsupported<T: Operand>(op: &op::SparseFfn<T>) -> Option<&'static str> {
    let cut = matches!(op.skip, Skip::GaussianCut(_));
    cut.then_some("with a cut by mean and deviation has no fast kernel")
}

/// What becomes of a neuron's value.
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
    groups: Option<Groups>,
    list: Option<List>,
    x: Acts,
    y: Writes<f32>,
    active: Writes<f32>,
    carried: Writes<u32>,
    output: Output,
    prompt: Option<Prompt>,
    n_in: usize,
    neurons: Neurons,
    skip: Skip,
    accumulate: bool,
}

/// The rows of one slice that some token wants, and which of the tile's tokens do.
struct Wanted {
    ids: [u32; SLICE],
    tokens: [u16; SLICE],
    len: usize,
    /// Whether each row follows the one before it.
    is_run: bool,
}

impl Wanted {
    fn push(&mut self, id: u32, tokens: u16) {
        self.ids[self.len] = id;
        self.tokens[self.len] = tokens;
        self.len += 1;
    }

    /// The rows from the `i`-th on.
    fn rows(&self, i: usize) -> RowIds<'_> {
        match self.is_run {
            true => RowIds::From(self.ids[i] as usize),
            false => RowIds::List(&self.ids[i..self.len]),
        }
    }
}

/// Values to carry through to down, per token of the tile: `(row, h)`.
struct Carried<const N: usize> {
    values: [[(u32, f32); SLICE]; N],
    len: [usize; N],
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
            groups: Groups::new(op, context),
            list: match &op.rows {
                Rows::All => None,
                Rows::Active(set) => Some(List::new(set, bind.scratch(&spans.starts), context)),
            },
            x: Acts::new(bind.read(&op.x), spans.x.as_ref(), context),
            y: bind.write(&op.y),
            active: bind.write(&op.active),
            carried: bind.scratch(&spans.carried),
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
            accumulate: op.accumulate,
        }
    }

    fn tile(&self, tile: usize) -> Range<usize> {
        piece(tile, self.cut.tile, self.cut.n_tokens)
    }

    /// Rounds a token's x; once a tile, notes where the slices begin in the list.
    fn prepare(&self, tile: &Range<usize>, slot: usize) {
        self.x.round(tile.start + slot, slot);
        if let (0, Some(list)) = (slot, &self.list) {
            list.index(self.cut.slice);
        }
    }

    /// The rows of a slice that tokens of the tile want.
    fn wanted(&self, slice: usize, tile: &Range<usize>) -> Wanted {
        let is_run = self.list.is_none() && self.groups.is_none();
        let mut wanted = Wanted { ids: [0; SLICE], tokens: [0; SLICE], len: 0, is_run };
        let all = (1u32 << tile.len()).wrapping_sub(1) as u16;
        let mut push = |id: u32, tokens: u16| {
            let tokens = match &self.groups {
                Some(groups) => tokens & groups.tokens(id, tile),
                None => tokens,
            };
            if tokens != 0 {
                wanted.push(id, tokens);
            }
        };
        let rows = piece(slice, self.cut.slice, self.cut.n_rows);
        match &self.list {
            None => rows.for_each(|id| push(id as u32, all)),
            Some(list) => {
                list.for_rows(slice, &rows, &mut |id, members| {
                    push(id, list::of_tile(members, tile) & all);
                });
            }
        }
        wanted
    }

    /// The tile's activations as `weight` takes them.
    fn views<const N: usize>(&self, weight: &Weight, tile: &Range<usize>) -> [ActView<'_>; N] {
        let last = tile.len() - 1;
        std::array::from_fn(|slot| {
            let slot = slot.min(last);
            self.x.view(weight.activation, tile.start + slot, slot)
        })
    }

    /// Calls `f(i, products)` for each of the wanted rows times those of the tile's tokens that want it, with its
    /// bias; places of other tokens are unspecified.
    #[inline(always)]
    fn for_wanted<const N: usize>(
        (weight, bias): (&Weight, Option<&Reads<f32>>),
        wanted: &Wanted,
        xs: &[ActView<'_>; N],
        mut f: impl FnMut(usize, &[f32; N]),
    ) {
        let bias = |i: usize| bias.map_or(0.0, |bias| bias.all()[wanted.ids[i] as usize]);
        let mut out = [0.0f32; N];
        if N == 1 {
            return weight.for_rows(wanted.rows(0), wanted.len, xs, |i, products| {
                out[0] = products[0] + bias(i);
                f(i, &out);
            });
        }
        for i in 0..wanted.len {
            let mut left = wanted.tokens[i];
            while left != 0 {
                let mut four = [0usize; 4];
                let mut n = 0;
                while n < 4 && left != 0 {
                    four[n] = left.trailing_zeros() as usize;
                    left &= left - 1;
                    n += 1;
                }
                let xs = four.map(|slot| xs[slot]);
                weight.for_rows(wanted.rows(i), 1, &xs[..n], |_, products| {
                    for (&slot, product) in four.iter().zip(products) {
                        out[slot] = product + bias(i);
                    }
                });
            }
            f(i, &out);
        }
    }

    /// Whether the test value lets a neuron through.
    #[inline]
    fn passes(&self, id: u32, test: f32) -> bool {
        // Written so that a value that is no number passes.
        let below = |limit: f32| self.neurons.activated(test).abs() < limit;
        !match self.skip {
            Skip::Never | Skip::GaussianCut(_) => false,
            Skip::NotPositive => test <= 0.0,
            Skip::Below(limit) => below(limit),
            Skip::BelowPerRow => {
                self.threshold.is_some_and(|limits| below(limits.all()[id as usize]))
            }
        }
    }

    /// Gate, test and up of a slice, for tiles of up to `N` tokens.
    fn values<const N: usize>(&self, slice: usize, tile: &Range<usize>) -> Carried<N> {
        let wanted = self.wanted(slice, tile);
        let mut carried = Carried { values: [[(0, 0.0); SLICE]; N], len: [0; N] };
        let mut kept = Wanted { ids: [0; SLICE], tokens: [0; SLICE], len: 0, is_run: false };
        let mut tests = [[0.0f32; N]; SLICE];
        let up = (&self.up, self.bias_up.as_ref());
        let first = match &self.gate {
            Some(gate) => (gate, self.bias_gate.as_ref()),
            None => up,
        };
        Self::for_wanted(first, &wanted, &self.views(first.0, tile), |i, products: &[f32; N]| {
            let (id, mut passing) = (wanted.ids[i], 0);
            for slot in (0..tile.len()).filter(|slot| wanted.tokens[i] >> slot & 1 == 1) {
                passing |= u16::from(self.passes(id, products[slot])) << slot;
            }
            if passing != 0 {
                tests[kept.len] = *products;
                kept.push(id, passing);
            }
        });
        kept.is_run = wanted.is_run && kept.len == wanted.len;
        // What is carried through, packed.
        let mut pairs = [[[0.0f32; SLICE]; 2]; N];
        let mut carry = |i: usize, up: &[f32; N]| {
            for slot in (0..tile.len()).filter(|slot| kept.tokens[i] >> slot & 1 == 1) {
                let at = carried.len[slot];
                carried.values[slot][at].0 = kept.ids[i];
                (pairs[slot][0][at], pairs[slot][1][at]) = (tests[i][slot], up[slot]);
                carried.len[slot] += 1;
            }
        };
        match self.gate {
            Some(_) => Self::for_wanted(up, &kept, &self.views(up.0, tile), carry),
            None => (0..kept.len).for_each(|i| carry(i, &[0.0; N])),
        }
        for (slot, [tests, ups]) in pairs.iter_mut().enumerate() {
            let n = carried.len[slot];
            self.neurons.values(&mut tests[..n], &mut ups[..n]);
            for ((id, value), h) in carried.values[slot][..n].iter_mut().zip(tests) {
                let weight = |groups: &Groups| groups.weight(*id, tile.start + slot);
                *value = *h * self.groups.as_ref().map_or(1.0, weight);
            }
        }
        carried
    }

    fn slice<const N: usize>(&self, slice: usize, tile: &Range<usize>) {
        let carried = self.values::<N>(slice, tile);
        for slot in 0..tile.len() {
            let values = &carried.values[slot][..carried.len[slot]];
            self.carried.part(slice, slot..slot + 1)[0] = values.len() as u32;
            match &self.output {
                Output::ByNeuron { down, partial } if !values.is_empty() => {
                    let y = partial.row(slice * self.cut.tile + slot);
                    y.fill(0.0);
                    down.add(values, y);
                }
                Output::ByNeuron { .. } => {}
                Output::Across { h, .. } => {
                    let rows = piece(slice, self.cut.slice, self.cut.n_rows);
                    let h = h.part(slot, rows.clone());
                    h.fill(0.0);
                    values.iter().for_each(|&(id, value)| h[id as usize - rows.start] = value);
                }
            }
        }
    }

    /// Sums and offsets for some columns of a token's y.
    fn finish(&self, tile: usize, chunk: usize) {
        let tokens = self.tile(tile);
        match &self.output {
            Output::ByNeuron { partial, .. } => {
                let n_pieces = self.cut.n_out.div_ceil(COLS);
                let slot = chunk / n_pieces;
                let cols = piece(chunk % n_pieces, COLS, self.cut.n_out);
                let y = self.begin(tokens.start + slot, &cols);
                for slice in 0..self.cut.n_slices {
                    if self.carried.reads_row(slice)[slot] > 0 {
                        let part = partial.reads_row(slice * self.cut.tile + slot);
                        y.iter_mut().zip(&part[cols.clone()]).for_each(|(y, v)| *y += v);
                    }
                }
            }
            Output::Across { down, acts, rows, .. } => {
                let cols = piece(chunk, *rows, self.cut.n_out);
                for first in tokens.clone().step_by(4) {
                    let four = first..tokens.end.min(first + 4);
                    let slots = first - tokens.start..four.end - tokens.start;
                    let xs = acts.four(down.activation, slots.clone(), slots.start);
                    let mut ys = four.map(|t| self.begin(t, &cols));
                    let mut ys: [&mut [f32]; 4] =
                        std::array::from_fn(|_| ys.next().unwrap_or_default());
                    let (ids, xs) = (RowIds::From(cols.start), &xs[..slots.len()]);
                    down.for_rows(ids, cols.len(), xs, |i, values| {
                        ys.iter_mut().zip(values).for_each(|(y, value)| y[i] += value);
                    });
                }
            }
        }
        if chunk == 0 {
            self.count(&tokens);
        }
    }

    /// Some columns of y as they are before anything is added: what was there, and the offsets.
    fn begin(&self, t: usize, cols: &Range<usize>) -> &mut [f32] {
        let y = self.y.part(t, cols.clone());
        if !self.accumulate {
            y.fill(0.0);
        }
        if let Some(bias) = &self.bias_down {
            for g in 0..bias.n_rows() {
                let factor = self.groups.as_ref().map_or(1.0, |groups| groups.of_group(g, t));
                let bias = &bias.row(g)[cols.clone()];
                if factor != 0.0 {
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += factor * b);
                }
            }
        }
        y
    }

    fn count(&self, tokens: &Range<usize>) {
        let active = self.active.part(0, tokens.clone());
        for (slot, active) in active.iter_mut().enumerate() {
            let slices = 0..self.cut.n_slices;
            let sum: u32 = slices.map(|slice| self.carried.reads_row(slice)[slot]).sum();
            *active += sum as f32;
        }
    }
}

impl Kernel for SparseFfn {
    fn n_phases(&self) -> usize {
        4 * self.cut.n_tokens.div_ceil(self.cut.tile.max(1))
    }

    fn chunks(&self, phase: usize) -> usize {
        let tile = self.tile(phase / 4);
        if self.prompt.is_some() {
            return self.prompt_chunks(phase % 4, &tile);
        }
        let tokens = tile.len();
        match (phase % 4, &self.output) {
            (0, _) if self.x.rounds() || self.list.is_some() => tokens,
            (0, _) => 0,
            (1, _) => self.cut.n_slices,
            (2, Output::Across { acts, .. }) if acts.rounds() => tokens,
            (2, _) => 0,
            (_, Output::ByNeuron { .. }) => tokens * self.cut.n_out.div_ceil(COLS),
            (_, Output::Across { rows, .. }) => self.cut.n_out.div_ceil(*rows),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        let (tile, step) = (phase / 4, phase % 4);
        let tokens = self.tile(tile);
        if let Some(prompt) = &self.prompt {
            return self.prompt_run(prompt, (step, chunk), &tokens, worker);
        }
        match (step, &self.output) {
            (0, _) => self.prepare(&tokens, chunk),
            (1, _) if tokens.len() == 1 => self.slice::<1>(chunk, &tokens),
            (1, _) => self.slice::<TILE>(chunk, &tokens),
            (2, Output::Across { acts, .. }) => acts.round(chunk, chunk),
            (2, Output::ByNeuron { .. }) => {}
            _ => self.finish(tile, chunk),
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
