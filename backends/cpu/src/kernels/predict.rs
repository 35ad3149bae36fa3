//! Predicts the active neurons of a step: two small matrices (fc1, fc2), a threshold, and row
//! lists.
//!
//! The five phases: quantise x; multiply by fc1; quantise the result (x if there is no fc1);
//! multiply by fc2 and compare the scores with the threshold; fill the lists. Each chunk of neurons
//! fills the range of the lists after the ranges of earlier chunks, so the lists are in the
//! order of neurons whichever thread runs a chunk. Prefill multiplies both matrices panel by panel.

use std::ops::Range;

use hal::op::{self, HiddenActivation};
use hal::{Operand, RowSet, Slot, Tensor};

use super::operand::{Acts, Q8Span, Weight, optional_view, rows_per_chunk};
use super::panels::{FEW_TOKENS, PanelCut, PanelSpans, Panels, TILE};
use super::{Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::{PANEL_ROWS, RowIds};

pub(super) struct Workspace {
    first: Option<FirstMatrixSpans>,
    /// Input of the second matrix.
    q8: Option<Q8Span>,
    /// `[n_ff, words]`: bit `t % 32` of word `t / 32` is set if the neuron is active for token `t`.
    bits: Span<u32>,
    /// `[chunks, 2]`: number of active neurons of each chunk, resident and absent.
    counts: Span<u32>,
    panels: PanelSpans,
}

struct FirstMatrixSpans {
    x: Option<Q8Span>,
    /// `[n_tokens, rank]`
    hidden: Span<f32>,
}

fn neurons_per_chunk<T: Operand>(op: &op::Predict<T>) -> usize {
    let fc2 = op.fc2.desc();
    if op.x.desc().n_rows > FEW_TOKENS {
        PANEL_ROWS
    } else {
        rows_per_chunk(fc2.format.row_bytes(fc2.n_cols).unwrap_or(1))
    }
}

impl Workspace {
    pub(super) fn new<T: Operand>(
        op: &op::Predict<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let (x, fc2) = (op.x.desc(), op.fc2.desc());
        let first = op.fc1.as_ref().map(|fc1| FirstMatrixSpans {
            x: Q8Span::new(&[Some(fc1.desc().format)], x.n_rows, x.n_cols, scratch),
            hidden: scratch.take(x.n_rows, fc1.desc().n_rows),
        });
        Self {
            first,
            q8: Q8Span::new(&[Some(fc2.format)], x.n_rows, fc2.n_cols, scratch),
            bits: scratch.take(fc2.n_rows, x.n_rows.div_ceil(32)),
            counts: scratch.take(fc2.n_rows.div_ceil(neurons_per_chunk(op)), 2),
            panels: PanelSpans::new(x.n_rows, 1, n_threads, scratch),
        }
    }
}

#[derive(Debug)]
struct RowList {
    ids: WriteView<u32>,
    count: WriteView<u32>,
    members: WriteView<u32>,
}

impl RowList {
    fn new(set: &RowSet<Tensor>, context: &Context<'_>) -> Self {
        Self {
            ids: context.bind.write(&set.ids),
            count: context.bind.write(&set.count),
            members: context.bind.write(&set.members),
        }
    }

    /// Writes entry `at`: the row and its membership bits.
    fn write_entry(&self, at: usize, row: u32, bits: &[u32]) {
        self.ids.columns(0, at..at + 1)[0] = row;
        let (members, more) = self.members.row(at).split_at_mut(bits.len());
        members.copy_from_slice(bits);
        more.fill(0);
    }
}

#[derive(Debug)]
struct FirstMatrix {
    x: Acts,
    n_in: usize,
    weight: Weight,
    rows: usize,
    hidden: WriteView<f32>,
    hidden_activation: HiddenActivation,
    /// Used only in prefill.
    cut: Option<PanelCut>,
}

#[derive(Debug)]
pub(super) struct Predict {
    first: Option<FirstMatrix>,
    n_tokens: usize,
    /// Input of the second matrix.
    acts: Acts,
    /// Width of the second matrix's input.
    rank: usize,
    fc2: Weight,
    bias: Option<ReadView<f32>>,
    /// Neurons per chunk.
    neurons: usize,
    bits: WriteView<u32>,
    counts: WriteView<u32>,
    slots: ReadView<u32>,
    resident: RowList,
    absent: Option<RowList>,
    threshold: f32,
    panels: Panels,
}

impl FirstMatrix {
    fn new(
        op: &op::Predict<Tensor>,
        fc1: &Tensor,
        spans: &FirstMatrixSpans,
        context: &Context<'_>,
    ) -> FirstMatrix {
        let weight = Weight::new(fc1, context);
        let n_tokens = op.x.desc().n_rows;
        FirstMatrix {
            x: Acts::new(context.bind.read(&op.x), spans.x.as_ref(), context),
            n_in: op.x.desc().n_cols,
            rows: rows_per_chunk(weight.rows.row_bytes()),
            weight,
            hidden: context.bind.scratch(&spans.hidden),
            hidden_activation: op.hidden,
            cut: (n_tokens > FEW_TOKENS).then(|| PanelCut::new(n_tokens, fc1.desc().n_rows)),
        }
    }

    fn run(&self, chunk: usize, worker: usize, n_tokens: usize, panels: &Panels) {
        // NaN is kept, so it reaches the scores.
        let activate = |v: f32| match self.hidden_activation {
            HiddenActivation::Relu if v <= 0.0 => 0.0,
            HiddenActivation::Relu | HiddenActivation::Linear => v,
        };
        if let Some(cut) = &self.cut {
            let (tokens, rows) = cut.chunk(chunk);
            let x = self.x.rows(self.weight.activation, tokens.start, tokens.clone(), self.n_in);
            let sums = panels.multiply(&self.weight, &rows, &x, tokens.len(), worker, 0);
            for (t, sums) in tokens.zip(sums) {
                let hidden = self.hidden.columns(t, rows.clone());
                hidden.iter_mut().zip(sums).for_each(|(to, &mut v)| *to = activate(v));
            }
            return;
        }
        let rows = nth_range(chunk, self.rows, self.hidden.n_cols());
        multiply(&self.weight, &self.x, &rows, n_tokens, |first, row, values| {
            for (t, &v) in (first..).zip(values) {
                self.hidden.columns(t, row..row + 1)[0] = activate(v);
            }
        });
    }
}

/// Multiplies `rows` of `weight` by every token. Calls `f(first_token, row, values)` with the
/// values of up to four tokens.
fn multiply(
    weight: &Weight,
    acts: &Acts,
    rows: &Range<usize>,
    n_tokens: usize,
    mut f: impl FnMut(usize, usize, &[f32]),
) {
    for first in (0..n_tokens).step_by(4) {
        let tokens = first..n_tokens.min(first + 4);
        let xs = acts.four_rows(weight.activation, tokens.clone(), first);
        weight.for_rows(RowIds::From(rows.start), rows.len(), &xs[..tokens.len()], |i, values| {
            f(first, rows.start + i, values);
        });
    }
}

impl Predict {
    pub(super) fn new(op: &op::Predict<Tensor>, context: &Context<'_>) -> Predict {
        let (spans, bind) =
            (Workspace::new(op, context.n_threads, &mut Scratch::default()), &context.bind);
        let first = op.fc1.as_ref().zip(spans.first.as_ref());
        let first = first.map(|(fc1, spans)| FirstMatrix::new(op, fc1, spans, context));
        let input =
            first.as_ref().map_or_else(|| bind.read(&op.x), |first| first.hidden.read_view());
        Predict {
            first,
            n_tokens: op.x.desc().n_rows,
            acts: Acts::new(input, spans.q8.as_ref(), context),
            rank: op.fc2.desc().n_cols,
            neurons: neurons_per_chunk(op),
            fc2: Weight::new(&op.fc2, context),
            bias: optional_view(op.bias.as_ref(), context),
            bits: bind.scratch(&spans.bits),
            counts: bind.scratch(&spans.counts),
            slots: bind.read(&op.slots),
            resident: RowList::new(&op.resident, context),
            absent: op.absent.as_ref().map(|set| RowList::new(set, context)),
            threshold: op.threshold,
            panels: Panels::new(&spans.panels, context),
        }
    }

    fn score_neurons(&self, chunk: usize, worker: usize) {
        let rows = nth_range(chunk, self.neurons, self.bits.n_rows());
        rows.clone().for_each(|row| self.bits.row(row).fill(0));
        // The comparison is negated, so NaN scores count as active.
        let active_bit = |row: usize| {
            let bias = self.bias.as_ref().map_or(0.0, |bias| bias.as_slice()[row]);
            move |(t, &score): (usize, &f32)| {
                let dropped = score + bias < self.threshold;
                u32::from(!dropped) << t
            }
        };
        if self.n_tokens <= FEW_TOKENS {
            multiply(&self.fc2, &self.acts, &rows, self.n_tokens, |first, row, values| {
                let active = values.iter().enumerate().map(active_bit(row)).sum::<u32>();
                self.bits.columns(row, first / 32..first / 32 + 1)[0] |= active << (first % 32);
            });
            return self.count_active(chunk, &rows);
        }
        for first in (0..self.n_tokens).step_by(TILE) {
            let tokens = first..self.n_tokens.min(first + TILE);
            let x = self.acts.rows(self.fc2.activation, first, tokens.clone(), self.rank);
            let sums = self.panels.multiply(&self.fc2, &rows, &x, tokens.len(), worker, 0);
            for (i, row) in rows.clone().enumerate() {
                let bits = self.bits.columns(row, first / 32..tokens.end.div_ceil(32));
                for (bits, sums) in bits.iter_mut().zip(sums.chunks(32)) {
                    *bits = sums.iter().map(|sums| &sums[i]).enumerate().map(active_bit(row)).sum();
                }
            }
        }
        self.count_active(chunk, &rows);
    }

    fn count_active(&self, chunk: usize, rows: &Range<usize>) {
        let mut counts = [0; 2];
        self.for_each_active(rows, |slot, _| counts[usize::from(is_absent(slot))] += 1);
        self.counts.row(chunk).copy_from_slice(&counts);
    }

    /// Calls `f(slot, bits)` for each neuron of `rows` that is active for any token, in ascending
    /// order.
    fn for_each_active(&self, rows: &Range<usize>, mut f: impl FnMut(Slot, &[u32])) {
        let slots = &self.slots.as_slice()[rows.clone()];
        for (row, &slot) in rows.clone().zip(slots) {
            let bits = self.bits.read_row(row);
            if bits.iter().any(|&word| word != 0) {
                f(Slot::decode(slot), bits);
            }
        }
    }

    fn fill_lists(&self, chunk: usize) {
        let mut at = [0; 2];
        for before in 0..chunk {
            let counts = self.counts.read_row(before);
            at = [at[0] + counts[0] as usize, at[1] + counts[1] as usize];
        }
        let rows = nth_range(chunk, self.neurons, self.bits.n_rows());
        self.for_each_active(&rows, |slot, bits| {
            let (list, row) = match slot {
                Slot::Resident(row) => (Some(&self.resident), row),
                Slot::Absent(row) => (self.absent.as_ref(), row),
            };
            let at = &mut at[usize::from(is_absent(slot))];
            if let Some(list) = list {
                list.write_entry(*at, row, bits);
            }
            *at += 1;
        });
        if rows.end == self.bits.n_rows() {
            self.resident.count.row(0)[0] = at[0] as u32;
            if let Some(absent) = &self.absent {
                absent.count.row(0)[0] = at[1] as u32;
            }
        }
    }
}

fn is_absent(slot: Slot) -> bool {
    match slot {
        Slot::Resident(_) => false,
        Slot::Absent(_) => true,
    }
}

impl Kernel for Predict {
    fn n_phases(&self) -> usize {
        5
    }

    fn chunks(&self, phase: usize) -> usize {
        match (phase, &self.first) {
            (0, Some(first)) if first.x.quantizes() => {
                self.n_tokens.div_ceil(cheap_rows(first.n_in))
            }
            (1, Some(first)) => match &first.cut {
                Some(cut) => cut.n_chunks(),
                None => first.hidden.n_cols().div_ceil(first.rows),
            },
            (2, _) if self.acts.quantizes() => self.n_tokens,
            (0..=2, _) => 0,
            _ => self.bits.n_rows().div_ceil(self.neurons),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        match (phase, &self.first) {
            (0, Some(first)) => {
                let tokens = nth_range(chunk, cheap_rows(first.n_in), self.n_tokens);
                tokens.for_each(|t| first.x.quantize(t, t));
            }
            (1, Some(first)) => first.run(chunk, worker, self.n_tokens, &self.panels),
            (2, _) => self.acts.quantize(chunk, chunk),
            (3, _) => self.score_neurons(chunk, worker),
            (4, _) => self.fill_lists(chunk),
            _ => {}
        }
    }
}
