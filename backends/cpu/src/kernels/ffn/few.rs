//! Decode and small batches: slices of a group's rows for the tokens that use it (gate, test, up, and, if down
//! has one row per neuron, its rows added to the slice's own sum), then the sums in the order of
//! the slices.
//!
//! Slices depend on sizes alone, so that neither a list's length nor other tokens change a token's
//! sum.

use std::ops::Range;

use hal::format::Q8_BLOCK;
use hal::op::Skip;

use super::super::operand::Weight;
use super::super::piece;
use super::cut::{SLICE, TILE};
use super::groups::Part;
use super::list::wants;
use super::{Output, SparseFfn};
use crate::buffer::Reads;
use crate::simd::{ActView, RowIds};

/// Columns per chunk when sums are merged.
const COLS: usize = 512;

/// The rows of one slice that any token wants, and the tokens that want each.
struct Wanted {
    ids: [u32; SLICE],
    tokens: [u16; SLICE],
    len: usize,
    /// Whether the rows are consecutive.
    is_run: bool,
}

impl Wanted {
    fn push(&mut self, id: u32, tokens: u16) {
        self.ids[self.len] = id;
        self.tokens[self.len] = tokens;
        self.len += 1;
    }

    /// The rows from index `i` on.
    fn rows(&self, i: usize) -> RowIds<'_> {
        match self.is_run {
            true => RowIds::From(self.ids[i] as usize),
            false => RowIds::List(&self.ids[i..self.len]),
        }
    }
}

/// Active neurons per token: `(row, h)`.
struct Carried<const N: usize> {
    values: [[(u32, f32); SLICE]; N],
    len: [usize; N],
}

impl SparseFfn {
    /// Chunks of a step except the first step.
    pub(super) fn few_chunks(&self, step: usize, tokens: &Range<usize>) -> usize {
        match (step, &self.output) {
            (1, _) => self.groups.n_chunks(),
            (2, _) => 0,
            (_, Output::ByNeuron { .. }) => tokens.len() * self.cut.n_out.div_ceil(COLS),
            (_, Output::Across { rows, .. }) => self.cut.n_out.div_ceil(*rows),
        }
    }

    pub(super) fn few_run(&self, (step, chunk): (usize, usize), tokens: &Range<usize>) {
        if step > 1 {
            return self.few_finish(tokens, chunk);
        }
        let whole = self.groups.part(chunk);
        let rows = piece(whole.chunk, self.cut.slice, whole.rows.len());
        let rows = whole.rows.start + rows.start..whole.rows.start + rows.end;
        let part = Part { rows, ..whole };
        match part.slots.len() {
            1 => self.slice::<1>(&part, tokens),
            2..=4 => self.slice::<4>(&part, tokens),
            _ => self.slice::<TILE>(&part, tokens),
        }
    }

    /// The rows of a slice that any token wants.
    fn wanted(&self, part: &Part<'_>, tile: &Range<usize>) -> Wanted {
        let is_run = self.list.is_none();
        let mut wanted = Wanted { ids: [0; SLICE], tokens: [0; SLICE], len: 0, is_run };
        match &self.list {
            None => {
                let all = (1u32 << part.slots.len()).wrapping_sub(1) as u16;
                part.rows.clone().for_each(|id| wanted.push(id as u32, all));
            }
            Some(list) => {
                let slice = self.groups.slice(part.group, part.chunk);
                list.for_rows(slice, &part.rows, &mut |id, members| {
                    let tokens = part.slots.iter().map(|&slot| tile.start + slot as usize);
                    let bits = tokens.zip(0..).map(|(t, i)| (wants(members, t) as u16) << i);
                    let own = bits.fold(0, |own, bit| own | bit);
                    if own != 0 {
                        wanted.push(id, own);
                    }
                });
            }
        }
        wanted
    }

    /// The tokens' activations in the format that `weight` takes.
    fn views<const N: usize>(
        &self,
        weight: &Weight,
        part: &Part<'_>,
        tile: &Range<usize>,
    ) -> [ActView<'_>; N] {
        let last = part.slots.len() - 1;
        std::array::from_fn(|i| {
            let slot = part.slots[i.min(last)] as usize;
            self.x.view(weight.activation, tile.start + slot, slot)
        })
    }

    /// Calls `f(i, products)` for each wanted row with its products, bias included, for the tokens
    /// that want it; entries of other tokens are unspecified.
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
                let xs = four.map(|token| xs[token]);
                weight.for_rows(wanted.rows(i), 1, &xs[..n], |_, products| {
                    for (&token, product) in four.iter().zip(products) {
                        out[token] = product + bias(i);
                    }
                });
            }
            f(i, &out);
        }
    }

    /// Gate, test and up of a slice, for up to `N` tokens.
    fn values<const N: usize>(&self, part: &Part<'_>, tile: &Range<usize>) -> Carried<N> {
        let wanted = self.wanted(part, tile);
        let n = part.slots.len();
        let mut carried = Carried { values: [[(0, 0.0); SLICE]; N], len: [0; N] };
        let mut kept = Wanted { ids: [0; SLICE], tokens: [0; SLICE], len: 0, is_run: false };
        let mut tests = [[0.0f32; N]; SLICE];
        let up = (&self.up, self.bias_up.as_ref());
        let first = match &self.gate {
            Some(gate) => (gate, self.bias_gate.as_ref()),
            None => up,
        };
        let xs = self.views(first.0, part, tile);
        Self::for_wanted(first, &wanted, &xs, |i, products: &[f32; N]| {
            let (id, mut passing) = (wanted.ids[i], 0);
            for token in (0..n).filter(|token| wanted.tokens[i] >> token & 1 == 1) {
                passing |= u16::from(self.passes(id, products[token])) << token;
            }
            if passing != 0 {
                tests[kept.len] = *products;
                kept.push(id, passing);
            }
        });
        kept.is_run = wanted.is_run && kept.len == wanted.len;
        // Active neurons, compacted.
        let mut pairs = [[[0.0f32; SLICE]; 2]; N];
        let mut carry = |i: usize, up: &[f32; N]| {
            for token in (0..n).filter(|token| kept.tokens[i] >> token & 1 == 1) {
                let at = carried.len[token];
                carried.values[token][at].0 = kept.ids[i];
                (pairs[token][0][at], pairs[token][1][at]) = (tests[i][token], up[token]);
                carried.len[token] += 1;
            }
        };
        match self.gate {
            Some(_) => Self::for_wanted(up, &kept, &self.views(up.0, part, tile), carry),
            None => (0..kept.len).for_each(|i| carry(i, &[0.0; N])),
        }
        for (token, [tests, ups]) in pairs.iter_mut().enumerate().take(n) {
            let n = carried.len[token];
            self.neurons.values(&mut tests[..n], &mut ups[..n]);
            let weight = self.groups.weight(part.group, tile.start + part.slots[token] as usize);
            for ((_, value), h) in carried.values[token][..n].iter_mut().zip(tests) {
                *value = *h * weight;
            }
        }
        carried
    }

    fn slice<const N: usize>(&self, part: &Part<'_>, tile: &Range<usize>) {
        let carried = self.values::<N>(part, tile);
        for (token, pair) in part.pairs.clone().enumerate() {
            let values = &carried.values[token][..carried.len[token]];
            self.carried.part(pair, part.chunk..part.chunk + 1)[0] = values.len() as u32;
            if let Some(hits) = &self.hits {
                // A row is in exactly one slice, and a slice is one chunk, so that no other chunk
                // writes these entries.
                let hits = hits.part(0, part.rows.clone());
                values.iter().for_each(|(id, _)| hits[*id as usize - part.rows.start] += 1.0);
            }
            match &self.output {
                Output::ByNeuron { down, partial } if !values.is_empty() => {
                    let y = partial.row(pair * self.cut.group_slices + part.chunk);
                    y.fill(0.0);
                    down.add(values, y);
                }
                Output::ByNeuron { .. } => {}
                Output::Across { h, acts, .. } => {
                    let mut placed = [0.0; SLICE];
                    for &(id, value) in values {
                        placed[id as usize - part.rows.start] = value;
                    }
                    let (first, placed) = (part.chunk * self.cut.slice, &placed[..part.rows.len()]);
                    match acts.rounds() {
                        true => acts.round_part(placed, pair, first / Q8_BLOCK),
                        false => {
                            h.part(pair, first..first + placed.len()).copy_from_slice(placed);
                        }
                    }
                }
            }
        }
    }

    /// Sums and biases for some columns of y.
    fn few_finish(&self, tokens: &Range<usize>, chunk: usize) {
        match &self.output {
            Output::ByNeuron { partial, .. } => {
                let n_pieces = self.cut.n_out.div_ceil(COLS);
                let slot = chunk / n_pieces;
                let cols = piece(chunk % n_pieces, COLS, self.cut.n_out);
                let y = self.begin(tokens.start + slot, slot, &cols);
                for pair in self.groups.of_token(slot) {
                    let slices = self.carried_of(pair);
                    for (slice, _) in slices.iter().enumerate().filter(|(_, n)| **n > 0) {
                        let part = partial.reads_row(pair * self.cut.group_slices + slice);
                        y.iter_mut().zip(&part[cols.clone()]).for_each(|(y, v)| *y += v);
                    }
                }
            }
            Output::Across { rows, .. } => {
                self.few_product(tokens, &piece(chunk, *rows, self.cut.n_out));
            }
        }
        if chunk == 0 {
            let active = self.active.part(0, tokens.clone());
            for (slot, active) in active.iter_mut().enumerate() {
                let pairs = self.groups.of_token(slot);
                *active +=
                    pairs.map(|pair| self.carried_of(pair).iter().sum::<u32>()).sum::<u32>() as f32;
            }
        }
    }

    /// Number of active neurons in each slice of a pair.
    fn carried_of(&self, pair: usize) -> &[u32] {
        let group = self.groups.group(pair);
        let n_slices = self.groups.slice(group + 1, 0) - self.groups.slice(group, 0);
        &self.carried.reads_row(pair)[..n_slices]
    }

    /// Some rows of a down matrix with one row per output times the neurons' values, group by
    /// group.
    fn few_product(&self, tokens: &Range<usize>, cols: &Range<usize>) {
        let Output::Across { down, acts, .. } = &self.output else { return };
        for slot in 0..tokens.len() {
            self.begin(tokens.start + slot, slot, cols);
        }
        for part in self.groups.runs(0..self.groups.n_pairs()).filter(|part| !part.rows.is_empty())
        {
            let first = self.matrix_of(&part) + cols.start;
            for (four, slots) in part.pairs.clone().step_by(4).zip(part.slots.chunks(4)) {
                let pairs = four..four + slots.len();
                let xs = acts.four(down.activation, pairs.clone(), pairs.start);
                let mut ys = slots
                    .iter()
                    .map(|&slot| self.y.part(tokens.start + slot as usize, cols.clone()));
                let mut ys: [&mut [f32]; 4] =
                    std::array::from_fn(|_| ys.next().unwrap_or_default());
                down.for_rows(RowIds::From(first), cols.len(), &xs[..slots.len()], |i, values| {
                    ys.iter_mut().zip(values).for_each(|(y, value)| y[i] += value);
                });
            }
        }
    }

    /// Whether a neuron is active by its test value.
    #[inline]
    pub(super) fn passes(&self, id: u32, test: f32) -> bool {
        // Written so that NaN passes.
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
}
