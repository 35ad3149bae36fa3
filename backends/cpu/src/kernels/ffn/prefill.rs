//! Prefill. Gate and up are multiplied by panels if the tokens need more than half of a panel's
//! products, otherwise row by row. Down is multiplied by panels or neuron by neuron.
//!
//! With experts, the tokens that use an expert are gathered from the whole tile. An expert that
//! hardly any token uses is multiplied row by row.

use std::ops::Range;

use hal::Operand;
use hal::op::{self, Skip};

use super::super::nth_range;
use super::super::operand::Weight;
use super::super::panels::{FEW_TOKENS, PanelCut, Panels, TILE};
use super::experts::ExpertChunk;
use super::list::membership_bit;
use super::{Output, SLICE, SparseFfn};
use crate::buffer::WriteView;
use simd::{ActView, PANEL_ROWS, RowIds, TokenRows};

/// Maximum bytes of a tile's neuron values and of the experts' sums; tiles have fewer tokens if
/// needed to stay within the limit.
const VALUE_BYTES: usize = 32 << 20;
/// Target number of chunks per tile if down has one row per neuron.
const N_CHUNKS: usize = 32;
/// Maximum number of tokens of a chunk if down has one row per neuron: few enough that their sums
/// stay in a core's cache.
const CHUNK_TOKENS: usize = 16;
/// Panels per run of neurons; down adds the neurons of one run at a time.
const PANELS: usize = SLICE / PANEL_ROWS;

/// Workspace of a prefill tile.
#[derive(Debug)]
pub(super) struct Prefill {
    pub(super) panels: Panels,
    /// Active neurons of each panel, one bit per neuron: `[n_pairs, panels of an expert]`.
    pub(super) mask: WriteView<u32>,
    /// Values of the neurons: `[n_pairs, expert_rows]`, unless they are quantised immediately.
    pub(super) h: WriteView<f32>,
}

/// Tokens per tile; `None` if the batch is so small that it runs as in decode.
pub(super) fn tile_tokens<T: Operand>(
    op: &op::SparseFfn<T>,
    n_used: usize,
    expert_rows: usize,
) -> Option<usize> {
    let y = op.y.desc();
    let sums = match (&op.experts, op.orientation) {
        (Some(_), op::Down::ByNeuron) => y.n_cols,
        (None, _) | (_, op::Down::AcrossNeurons) => 0,
    };
    let bytes = n_used * (expert_rows + sums).max(1) * size_of::<f32>();
    let tile = (VALUE_BYTES / bytes).clamp(FEW_TOKENS + 1, TILE);
    (y.n_rows > FEW_TOKENS).then(|| tile.min(y.n_rows))
}

/// A panel of neurons of an expert, and the tokens for which a worker computes the panel.
struct Panel<'a> {
    /// Index of the panel in its expert.
    number: usize,
    part: ExpertChunk<'a>,
    tile: &'a Range<usize>,
    worker: usize,
}

impl SparseFfn {
    fn chunk_tokens(tokens: &Range<usize>) -> usize {
        tokens.len().div_ceil(N_CHUNKS).min(CHUNK_TOKENS)
    }

    /// Number of chunks of a step other than the first.
    pub(super) fn prefill_chunks(&self, step: usize, tokens: &Range<usize>) -> usize {
        match (step, &self.output) {
            (1, _) => self.experts.n_chunks(),
            (2, Output::ByNeuron { .. }) if self.experts.has_router() => {
                self.experts.n_pairs().div_ceil(CHUNK_TOKENS)
            }
            (2, _) => 0,
            (_, Output::ByNeuron { .. }) => tokens.len().div_ceil(Self::chunk_tokens(tokens)),
            (_, Output::ByOutput { .. }) => PanelCut::new(tokens.len(), self.cut.n_out).n_chunks(),
        }
    }

    pub(super) fn prefill_run(
        &self,
        prefill: &Prefill,
        step: usize,
        chunk: usize,
        tokens: &Range<usize>,
        worker: usize,
    ) {
        match (step, &self.output) {
            (1, _) => self.prefill_neurons(prefill, chunk, tokens, worker),
            (2, _) => self.prefill_sums(prefill, chunk),
            (_, Output::ByNeuron { .. }) => self.prefill_rows(prefill, chunk, tokens),
            (_, Output::ByOutput { .. }) => self.prefill_product(prefill, chunk, tokens, worker),
        }
    }

    /// Multiplies a panel of rows by `n` tokens, into the worker's `place`-th buffer.
    pub(super) fn multiply<'a>(
        prefill: &'a Prefill,
        weight: &Weight,
        rows: &Range<usize>,
        x: &TokenRows<'_>,
        n: usize,
        worker: usize,
        place: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        if n > FEW_TOKENS {
            prefill.panels.multiply(weight, rows, x, n, worker, place)
        } else {
            prefill.panels.multiply_few(weight, rows, x, n, worker, place)
        }
    }

    /// Computes the values of a panel of neurons for some tokens of its expert.
    fn prefill_neurons(&self, prefill: &Prefill, chunk: usize, tile: &Range<usize>, worker: usize) {
        let whole = self.experts.chunk(chunk);
        let (members, rows) = PanelCut::new(whole.slots.len(), whole.rows.len()).chunk(whole.index);
        let start = whole.rows.start;
        let part = ExpertChunk {
            rows: start + rows.start..start + rows.end,
            pairs: whole.pairs.start + members.start..whole.pairs.start + members.end,
            slots: &whole.slots[members],
            ..whole
        };
        let at = Panel { number: rows.start / PANEL_ROWS, part, tile, worker };
        // A local copy, because the words of one panel are a whole row apart in `prefill.mask`.
        let mut mask = [0; TILE];
        let mask = &mut mask[..at.part.slots.len()];
        self.prefill_needed_rows(&at, mask);
        let (first, bias) = match &self.gate {
            Some(gate) => (gate, &self.bias_gate),
            None => (&self.up, &self.bias_up),
        };
        let tests = match &self.tests {
            Some(known) => {
                let tests = prefill.panels.sums(at.part.slots.len(), at.worker, 0);
                known.copy_panel(&at.part.rows, at.part.slots, tests);
                tests
            }
            None => self.prefill_needed_products(prefill, &at, mask, first, 0),
        };
        if let (Some(bias), None) = (bias, &self.tests) {
            let bias = &bias.as_slice()[at.part.rows.clone()];
            for tests in &mut *tests {
                tests.iter_mut().zip(bias).for_each(|(test, b)| *test += b);
            }
        }
        if self.skip != Skip::Never {
            for (mask, tests) in mask.iter_mut().zip(&*tests) {
                for ((id, test), bit) in at.part.rows.clone().zip(tests).zip(0..) {
                    *mask &= !(u32::from(!self.is_active(id as u32, *test)) << bit);
                }
            }
        }
        let ups = match &self.gate {
            Some(_) => &*self.prefill_needed_products(prefill, &at, mask, &self.up, 1),
            None => &*tests,
        };
        self.prefill_values(prefill, &at, mask, tests, ups);
    }

    /// Sets a bit in `mask` for each neuron of the panel that a token needs: all neurons, or those
    /// whose list entry has the token's membership bit.
    fn prefill_needed_rows(&self, at: &Panel<'_>, mask: &mut [u32]) {
        let part = &at.part;
        let Some(list) = &self.list else {
            return mask.fill(u32::MAX >> (PANEL_ROWS - part.rows.len()));
        };
        let slice = self.experts.slice_index(part.expert, at.number * PANEL_ROWS / self.cut.slice);
        list.for_rows(slice, &part.rows, &mut |id, members| {
            let bit = id as usize - part.rows.start;
            for (mask, &slot) in mask.iter_mut().zip(part.slots) {
                *mask |= membership_bit(members, at.tile.start + slot as usize) << bit;
            }
        });
    }

    /// Multiplies the panel's rows of `weight` by the tokens that need them; the products are in
    /// the worker's `place`-th buffer. Entries of other tokens are unspecified.
    fn prefill_needed_products<'a>(
        &self,
        prefill: &'a Prefill,
        at: &Panel<'_>,
        mask: &[u32],
        weight: &Weight,
        place: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        let (part, n) = (&at.part, at.part.slots.len());
        let n_active: usize = mask.iter().map(|mask| mask.count_ones() as usize).sum();
        // A single product costs about twice as much as one product of a whole panel.
        if 2 * n_active > n * part.rows.len() {
            let tile = at.tile;
            let all = self.x.rows(weight.activation, tile.start, 0..tile.len(), self.n_in);
            let ids = if self.experts.has_router() {
                RowIds::List(part.slots)
            } else {
                RowIds::From(part.slots.first().map_or(0, |&slot| slot as usize))
            };
            let x = TokenRows { ids, ..all };
            return Self::multiply(prefill, weight, &part.rows, &x, n, at.worker, place);
        }
        let sums = prefill.panels.sums(n, at.worker, place);
        let view = |member: usize| {
            let slot = part.slots[member] as usize;
            self.x.view(weight.activation, at.tile.start + slot, slot)
        };
        for (i, row) in part.rows.clone().enumerate() {
            let mut users = (0..n).filter(|&member| mask[member] >> i & 1 == 1);
            while let Some(first) = users.next() {
                let mut four = [first; 4];
                let rest = four.iter_mut().skip(1).zip(&mut users);
                let n = 1 + rest.map(|(to, member)| *to = member).count();
                let xs: [ActView<'_>; 4] = four.map(view);
                let values = weight.multiply_row(weight.rows.row(row), &xs[..n]);
                for (member, value) in four.into_iter().zip(values).take(n) {
                    sums[member][i] = value;
                }
            }
        }
        sums
    }

    /// Stores a panel's mask and input of down: adds up's bias if there is a gate, applies the
    /// activation and the expert weight, and zeroes inactive neurons.
    fn prefill_values(
        &self,
        prefill: &Prefill,
        at: &Panel<'_>,
        mask: &[u32],
        tests: &[[f32; PANEL_ROWS]],
        ups: &[[f32; PANEL_ROWS]],
    ) {
        let part = &at.part;
        let (first, n) = (at.number * PANEL_ROWS, part.rows.len());
        let tokens = part.pairs.clone().zip(part.slots).zip(mask);
        for (((pair, &slot), &mask), (tests, ups)) in tokens.zip(tests.iter().zip(ups)) {
            prefill.mask.columns(pair, at.number..at.number + 1)[0] = mask;
            let (mut values, mut ups) = (*tests, *ups);
            if let (Some(_), Some(bias)) = (&self.gate, &self.bias_up) {
                let bias = &bias.as_slice()[part.rows.clone()];
                ups.iter_mut().zip(bias).for_each(|(up, b)| *up += b);
            }
            self.neurons.apply(&mut values, &mut ups);
            let weight = self.experts.weight(part.expert, at.tile.start + slot as usize);
            let values = &mut values[..n];
            if mask != u32::MAX || weight != 1.0 {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = if mask >> i & 1 == 0 { 0.0 } else { *value * weight };
                }
            }
            match &self.output {
                Output::ByOutput { acts, .. } if acts.quantizes() => {
                    acts.quantize_blocks(values, pair, at.number);
                }
                Output::ByNeuron { .. } | Output::ByOutput { .. } => {
                    prefill.h.columns(pair, first..first + n).copy_from_slice(values);
                }
            }
        }
    }

    /// Down with one row per output: computes a panel of outputs for some tokens, expert by expert.
    fn prefill_product(&self, prefill: &Prefill, chunk: usize, tile: &Range<usize>, worker: usize) {
        let Output::ByOutput { down, acts, .. } = &self.output else { return };
        let (slots, cols) = PanelCut::new(tile.len(), self.cut.n_out).chunk(chunk);
        // Without experts, y is initialised just before the only products are added.
        let at_once = !self.experts.has_router() && self.cut.expert_rows > 0;
        if !at_once {
            for slot in slots.clone() {
                self.init_output(tile.start + slot, slot, &cols);
            }
        }
        for part in self.experts.chunks_used_by(slots).filter(|part| !part.rows.is_empty()) {
            let first = self.down_matrix_start(&part);
            let rows = first + cols.start..first + cols.end;
            let (pairs, n) = (part.pairs.clone(), part.slots.len());
            let h = acts.rows(down.activation, pairs.start, pairs, self.cut.expert_rows);
            let sums = Self::multiply(prefill, down, &rows, &h, n, worker, 0);
            for (&slot, sums) in part.slots.iter().zip(sums) {
                let (slot, t) = (slot as usize, tile.start + slot as usize);
                let y = if at_once {
                    self.init_output(t, slot, &cols)
                } else {
                    self.y.columns(t, cols.clone())
                };
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y += *sum);
            }
        }
        if chunk == 0 {
            (0..tile.len()).for_each(|slot| self.prefill_count(prefill, tile, slot));
        }
    }

    /// Adds to `y` the down rows of one run's neurons that are active for a pair.
    fn prefill_add(
        &self,
        prefill: &Prefill,
        part: &ExpertChunk<'_>,
        run: usize,
        pair: usize,
        y: &mut [f32],
    ) {
        let Output::ByNeuron { down, .. } = &self.output else { return };
        let (mask, h) = (prefill.mask.read_row(pair), prefill.h.read_row(pair));
        let (mut list, mut len) = ([(0, 0.0); SLICE], 0);
        for panel in nth_range(run, PANELS, part.rows.len().div_ceil(PANEL_ROWS)) {
            let mut left = mask[panel];
            while left != 0 {
                let row = panel * PANEL_ROWS + left.trailing_zeros() as usize;
                list[len] = ((part.rows.start + row) as u32, h[row]);
                len += 1;
                left &= left - 1;
            }
        }
        down.add(&list[..len], y);
    }

    /// Down with one row per neuron and with experts: computes the sums of some pairs, one run of
    /// neurons at a time.
    fn prefill_sums(&self, prefill: &Prefill, chunk: usize) {
        let Output::ByNeuron { partial, .. } = &self.output else { return };
        let pairs = nth_range(chunk, CHUNK_TOKENS, self.experts.n_pairs());
        for part in self.experts.expert_runs(pairs) {
            part.pairs.clone().for_each(|pair| partial.row(pair).fill(0.0));
            for run in 0..part.rows.len().div_ceil(SLICE) {
                for pair in part.pairs.clone() {
                    self.prefill_add(prefill, &part, run, pair, partial.row(pair));
                }
            }
        }
    }

    /// Down with one row per neuron: computes all outputs of some tokens. Without experts it adds
    /// one run of neurons at a time; with experts it adds the sums of `prefill_sums`.
    fn prefill_rows(&self, prefill: &Prefill, chunk: usize, tile: &Range<usize>) {
        let Output::ByNeuron { partial, .. } = &self.output else { return };
        let slots = nth_range(chunk, Self::chunk_tokens(tile), tile.len());
        for slot in slots.clone() {
            let y = self.init_output(tile.start + slot, slot, &(0..self.cut.n_out));
            self.prefill_count(prefill, tile, slot);
            if self.experts.has_router() {
                for pair in self.experts.pairs_of_token(slot) {
                    y.iter_mut().zip(partial.read_row(pair)).for_each(|(y, v)| *y += v);
                }
            }
        }
        if self.experts.has_router() {
            return;
        }
        for part in self.experts.chunks_used_by(slots) {
            for run in 0..part.rows.len().div_ceil(SLICE) {
                for (pair, &slot) in part.pairs.clone().zip(part.slots) {
                    let y = self.y.row(tile.start + slot as usize);
                    self.prefill_add(prefill, &part, run, pair, y);
                }
            }
        }
    }

    fn prefill_count(&self, prefill: &Prefill, tile: &Range<usize>, slot: usize) {
        let count = |pair: usize| {
            let n_panels = self.experts.n_rows(self.experts.expert(pair)).div_ceil(PANEL_ROWS);
            prefill.mask.read_row(pair)[..n_panels]
                .iter()
                .map(|mask| mask.count_ones())
                .sum::<u32>()
        };
        let n: u32 = self.experts.pairs_of_token(slot).map(count).sum();
        self.active.columns(0, tile.start + slot..tile.start + slot + 1)[0] += n as f32;
    }
}
