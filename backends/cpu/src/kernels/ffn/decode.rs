//! Decode and small batches. A chunk computes one slice of an expert's rows for the tokens that use
//! the expert: gate, the activity test, then up. If down has one row per neuron, the chunk also
//! sums the active neurons' rows of down. The last step adds the slices' sums in order.
//!
//! Slices depend only on the sizes of the matrices, so neither the length of a row list nor the
//! other tokens change a token's result.

use std::ops::Range;

use hal::format::Q8_BLOCK;
use hal::op::{Skip, UnionCounts};

use super::super::nth_range;
use super::super::operand::Weight;
use super::cut::{SLICE, TILE};
use super::experts::ExpertChunk;
use super::list::membership_bit;
use super::needed_rows::{Inputs, NeededRows, Projection};
use super::{Output, SparseFfn};
use simd::RowIds;

/// Number of counts per slice; they are in the order of [`UnionCounts`].
pub(super) const N_COUNTS: usize = UnionCounts::N;
/// Columns of y per chunk of the last step.
const COLS: usize = 512;

/// Active neurons per token: `(row, h)`.
struct ActiveRows<const N: usize> {
    values: [[(u32, f32); SLICE]; N],
    len: [usize; N],
}

/// Indices of the set bits, ascending.
fn tokens_of(mut bits: u16) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let token = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        token
    })
}

impl SparseFfn {
    /// Number of chunks of a step other than the first.
    pub(super) fn decode_chunks(&self, step: usize, tokens: &Range<usize>) -> usize {
        match (step, &self.output) {
            (1, _) => self.experts.n_chunks(),
            (2, _) => 0,
            (_, Output::ByNeuron { .. }) => tokens.len() * self.cut.n_out.div_ceil(COLS),
            (_, Output::ByOutput { rows, .. }) => self.cut.n_out.div_ceil(*rows),
        }
    }

    pub(super) fn decode_run(&self, step: usize, chunk: usize, tokens: &Range<usize>) {
        if step > 1 {
            return self.decode_output(tokens, chunk);
        }
        let whole = self.experts.chunk(chunk);
        let rows = nth_range(whole.index, self.cut.slice, whole.rows.len());
        let rows = whole.rows.start + rows.start..whole.rows.start + rows.end;
        let part = ExpertChunk { rows, ..whole };
        match part.slots.len() {
            1 => self.compute_slice::<1>(&part, tokens),
            2..=4 => self.compute_slice::<4>(&part, tokens),
            _ => self.compute_slice::<TILE>(&part, tokens),
        }
    }

    /// The rows of a slice that any token needs.
    fn needed_rows(&self, part: &ExpertChunk<'_>, tile: &Range<usize>) -> NeededRows {
        let mut needed = NeededRows::new(self.list.is_none());
        match &self.list {
            None => {
                let all = (1u32 << part.slots.len()).wrapping_sub(1) as u16;
                part.rows.clone().for_each(|id| needed.push(id as u32, all));
            }
            Some(list) => {
                let slice = self.experts.slice_index(part.expert, part.index);
                list.for_rows(slice, &part.rows, &mut |id, members| {
                    let tokens = part.slots.iter().map(|&slot| tile.start + slot as usize);
                    let bits =
                        tokens.zip(0..).map(|(t, i)| (membership_bit(members, t) as u16) << i);
                    let own = bits.fold(0, |own, bit| own | bit);
                    if own != 0 {
                        needed.push(id, own);
                    }
                });
            }
        }
        needed
    }

    /// The tokens' activations in the format that `weight` takes.
    fn inputs<const N: usize>(
        &self,
        weight: &Weight,
        part: &ExpertChunk<'_>,
        tile: &Range<usize>,
    ) -> Inputs<'_, N> {
        let last = part.slots.len() - 1;
        let xs = std::array::from_fn(|i| {
            let slot = part.slots[i.min(last)] as usize;
            self.x.view(weight.activation, tile.start + slot, slot)
        });
        Inputs { xs, n: part.slots.len() }
    }

    /// Computes gate, the activity test and up of a slice for up to `N` tokens; returns the values
    /// of the active neurons.
    fn active_rows<const N: usize>(
        &self,
        part: &ExpertChunk<'_>,
        tile: &Range<usize>,
    ) -> ActiveRows<N> {
        let needed = self.needed_rows(part, tile);
        let n = part.slots.len();
        let mut active_rows = ActiveRows { values: [[(0, 0.0); SLICE]; N], len: [0; N] };
        let mut active = NeededRows::new(false);
        let mut tests = [[0.0f32; N]; SLICE];
        let up = Projection { weight: &self.up, bias: self.bias_up.as_ref() };
        let first = match &self.gate {
            Some(weight) => Projection { weight, bias: self.bias_gate.as_ref() },
            None => up,
        };
        let inputs = self.inputs(first.weight, part, tile);
        let dense_from = self.dense_from;
        let mut dense = 0;
        let mut test = |i: usize, products: &[f32; N]| {
            let (id, mut passing) = (needed.ids[i], 0);
            for token in tokens_of(needed.tokens[i]) {
                passing |= u16::from(self.is_active(id, products[token])) << token;
            }
            if passing != 0 {
                tests[active.len] = *products;
                active.push(id, passing);
            }
        };
        if let Some(known) = &self.tests {
            (0..needed.len).for_each(|i| test(i, &known.of_row(needed.ids[i], part.slots)));
        } else {
            dense += u32::from(first.is_dense(&needed, &part.rows, &inputs, dense_from));
            first.for_needed_rows(&needed, &part.rows, &inputs, dense_from, test);
        }
        active.is_run = needed.is_run && active.len == needed.len;
        // Test values and up's products of each token's active neurons, without gaps.
        let mut pairs = [[[0.0f32; SLICE]; 2]; N];
        let mut push_active = |i: usize, up: &[f32; N]| {
            for token in tokens_of(active.tokens[i]) {
                let at = active_rows.len[token];
                active_rows.values[token][at].0 = active.ids[i];
                (pairs[token][0][at], pairs[token][1][at]) = (tests[i][token], up[token]);
                active_rows.len[token] += 1;
            }
        };
        match self.gate {
            Some(_) => {
                let inputs = self.inputs(up.weight, part, tile);
                dense += u32::from(up.is_dense(&active, &part.rows, &inputs, dense_from));
                up.for_needed_rows(&active, &part.rows, &inputs, dense_from, push_active);
            }
            None => (0..active.len).for_each(|i| push_active(i, &[0.0; N])),
        }
        if N > 1 {
            let (n_rows, n_matrices) = (part.rows.len() as u32, 1 + u32::from(self.gate.is_some()));
            let slice = self.experts.slice_index(part.expert, part.index);
            let counts = [n_rows, active.len as u32, n_matrices * n_rows, dense * n_rows];
            let at = slice * N_COUNTS..(slice + 1) * N_COUNTS;
            self.slice_counts.columns(0, at).copy_from_slice(&counts);
        }
        for (token, [tests, ups]) in pairs.iter_mut().enumerate().take(n) {
            let n = active_rows.len[token];
            self.neurons.apply(&mut tests[..n], &mut ups[..n]);
            let weight = self.experts.weight(part.expert, tile.start + part.slots[token] as usize);
            for ((_, value), h) in active_rows.values[token][..n].iter_mut().zip(tests) {
                *value = *h * weight;
            }
        }
        active_rows
    }

    fn compute_slice<const N: usize>(&self, part: &ExpertChunk<'_>, tile: &Range<usize>) {
        let active_rows = self.active_rows::<N>(part, tile);
        for (token, pair) in part.pairs.clone().enumerate() {
            let values = &active_rows.values[token][..active_rows.len[token]];
            self.n_active.columns(pair, part.index..part.index + 1)[0] = values.len() as u32;
            if let Some(hits) = &self.hits {
                // Each row is in exactly one slice, and each slice in one chunk, so no other chunk
                // writes these entries.
                let hits = hits.columns(0, part.rows.clone());
                values.iter().for_each(|(id, _)| hits[*id as usize - part.rows.start] += 1.0);
            }
            match &self.output {
                Output::ByNeuron { down, partial } if !values.is_empty() => {
                    let y = partial.row(pair * self.cut.expert_slices + part.index);
                    y.fill(0.0);
                    down.add(values, y);
                }
                Output::ByNeuron { .. } => {}
                Output::ByOutput { h, acts, .. } => {
                    let mut placed = [0.0; SLICE];
                    for &(id, value) in values {
                        placed[id as usize - part.rows.start] = value;
                    }
                    let (first, placed) = (part.index * self.cut.slice, &placed[..part.rows.len()]);
                    if acts.quantizes() {
                        acts.quantize_blocks(placed, pair, first / Q8_BLOCK);
                    } else {
                        h.columns(pair, first..first + placed.len()).copy_from_slice(placed);
                    }
                }
            }
        }
    }

    /// Writes some columns of y: the biases, and the slices' sums or the products with down. Chunk
    /// 0 also adds the counts of active neurons.
    fn decode_output(&self, tokens: &Range<usize>, chunk: usize) {
        match &self.output {
            Output::ByNeuron { partial, .. } => {
                let n_pieces = self.cut.n_out.div_ceil(COLS);
                let slot = chunk / n_pieces;
                let cols = nth_range(chunk % n_pieces, COLS, self.cut.n_out);
                let y = self.init_output(tokens.start + slot, slot, &cols);
                for pair in self.experts.pairs_of_token(slot) {
                    let slices = self.n_active_of(pair);
                    for (slice, _) in slices.iter().enumerate().filter(|(_, n)| **n > 0) {
                        let part = partial.read_row(pair * self.cut.expert_slices + slice);
                        y.iter_mut().zip(&part[cols.clone()]).for_each(|(y, v)| *y += v);
                    }
                }
            }
            Output::ByOutput { rows, .. } => {
                self.decode_product(tokens, &nth_range(chunk, *rows, self.cut.n_out));
            }
        }
        if let (Some(union), 0) = (&self.union, chunk) {
            // The counts are added as integers first: a large F32 sum would lose small summands.
            let mut counts = [0u32; N_COUNTS];
            for slice in self.slice_counts.read_row(0).chunks_exact(N_COUNTS) {
                counts.iter_mut().zip(slice).for_each(|(sum, n)| *sum += *n);
            }
            union.row(0).iter_mut().zip(counts).for_each(|(sum, n)| *sum += n as f32);
        }
        if chunk == 0 {
            let active = self.active.columns(0, tokens.clone());
            for (slot, active) in active.iter_mut().enumerate() {
                let pairs = self.experts.pairs_of_token(slot);
                *active += pairs.map(|pair| self.n_active_of(pair).iter().sum::<u32>()).sum::<u32>()
                    as f32;
            }
        }
    }

    /// Number of active neurons in each slice of a pair.
    fn n_active_of(&self, pair: usize) -> &[u32] {
        let expert = self.experts.expert(pair);
        let n_slices =
            self.experts.slice_index(expert + 1, 0) - self.experts.slice_index(expert, 0);
        &self.n_active.read_row(pair)[..n_slices]
    }

    /// Multiplies rows `cols` of a down matrix with one row per output by the neurons' values and
    /// adds the products to y, expert by expert.
    fn decode_product(&self, tokens: &Range<usize>, cols: &Range<usize>) {
        let Output::ByOutput { down, acts, .. } = &self.output else { return };
        for slot in 0..tokens.len() {
            self.init_output(tokens.start + slot, slot, cols);
        }
        for part in
            self.experts.expert_runs(0..self.experts.n_pairs()).filter(|part| !part.rows.is_empty())
        {
            let first = self.down_matrix_start(&part) + cols.start;
            for (four, slots) in part.pairs.clone().step_by(4).zip(part.slots.chunks(4)) {
                let pairs = four..four + slots.len();
                let xs = acts.four_rows(down.activation, pairs.clone(), pairs.start);
                let mut ys = slots
                    .iter()
                    .map(|&slot| self.y.columns(tokens.start + slot as usize, cols.clone()));
                let mut ys: [&mut [f32]; 4] =
                    std::array::from_fn(|_| ys.next().unwrap_or_default());
                down.for_rows(RowIds::From(first), cols.len(), &xs[..slots.len()], |i, values| {
                    ys.iter_mut().zip(values).for_each(|(y, value)| y[i] += value);
                });
            }
        }
    }

    /// Whether neuron `id` with test value `test` is active.
    #[inline]
    pub(super) fn is_active(&self, id: u32, test: f32) -> bool {
        // The comparisons are negated, so NaN counts as active.
        let below = |limit: f32| self.neurons.activate(test).abs() < limit;
        !match self.skip {
            Skip::Never => false,
            Skip::NotPositive => test <= 0.0,
            // The cut-off is already subtracted.
            Skip::GaussianCut(_) => test < 0.0,
            Skip::BelowPerRow => {
                self.threshold.is_some_and(|limits| below(limits.as_slice()[id as usize]))
            }
        }
    }
}
