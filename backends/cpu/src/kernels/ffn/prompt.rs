//! Prefill: gate and up by panels if most of a panel's neurons are needed by most tokens,
//! otherwise by rows; down by panels or neuron by neuron.
//!
//! With groups, the tokens that use a group are gathered from anywhere in the tile; small numbers
//! of them go row by row.

use std::ops::Range;

use hal::Operand;
use hal::op::{self, Skip};

use super::super::operand::Weight;
use super::super::panels::{FEW_TOKENS, PanelCut, Panels, TILE};
use super::super::piece;
use super::groups::GroupChunk;
use super::list::wants;
use super::{Output, SLICE, SparseFfn};
use crate::buffer::Writes;
use crate::simd::{ActView, PANEL_ROWS, RowIds, TokenRows};

/// Tiles are made smaller above this many bytes of neuron values and of group sums.
const VALUE_BYTES: usize = 32 << 20;
/// Chunks of a tile if down has one row per neuron.
const N_CHUNKS: usize = 32;
/// Maximum number of tokens of such a chunk: their sums stay in a core's cache while the rows
/// stream through.
const CHUNK_TOKENS: usize = 16;
/// Panels whose neurons are summed at once.
const PANELS: usize = SLICE / PANEL_ROWS;

/// Additional state of a prefill tile.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) panels: Panels,
    /// Active neurons of each panel, a bit each: `[n_pairs, panels of a group]`.
    pub(super) kept: Writes<u32>,
    /// Values of the neurons: `[n_pairs, group_rows]`, unless they are quantised at once.
    pub(super) h: Writes<f32>,
}

/// Tokens per tile if an op takes this path.
pub(super) fn tile<T: Operand>(
    op: &op::SparseFfn<T>,
    n_used: usize,
    group_rows: usize,
) -> Option<usize> {
    let y = op.y.desc();
    let sums = match (&op.groups, op.orientation) {
        (Some(_), op::Down::ByNeuron) => y.n_cols,
        (None, _) | (_, op::Down::AcrossNeurons) => 0,
    };
    let bytes = n_used * (group_rows + sums).max(1) * size_of::<f32>();
    let tile = (VALUE_BYTES / bytes).clamp(FEW_TOKENS + 1, TILE);
    (y.n_rows > FEW_TOKENS).then(|| tile.min(y.n_rows))
}

/// A panel of neurons of a group, and the tokens that a worker computes it for.
struct Panel<'a> {
    /// Index of the panel in its group.
    number: usize,
    part: GroupChunk<'a>,
    tile: &'a Range<usize>,
    worker: usize,
}

impl SparseFfn {
    fn chunk_tokens(tokens: &Range<usize>) -> usize {
        tokens.len().div_ceil(N_CHUNKS).min(CHUNK_TOKENS)
    }

    /// Chunks of a step except the first step.
    pub(super) fn prompt_chunks(&self, step: usize, tokens: &Range<usize>) -> usize {
        match (step, &self.output) {
            (1, _) => self.groups.n_chunks(),
            (2, Output::ByNeuron { .. }) if self.groups.are_chosen() => {
                self.groups.n_pairs().div_ceil(CHUNK_TOKENS)
            }
            (2, _) => 0,
            (_, Output::ByNeuron { .. }) => tokens.len().div_ceil(Self::chunk_tokens(tokens)),
            (_, Output::Across { .. }) => PanelCut::new(tokens.len(), self.cut.n_out).n_chunks(),
        }
    }

    pub(super) fn prompt_run(
        &self,
        prompt: &Prompt,
        step: usize,
        chunk: usize,
        tokens: &Range<usize>,
        worker: usize,
    ) {
        match (step, &self.output) {
            (1, _) => self.prompt_neurons(prompt, chunk, tokens, worker),
            (2, _) => self.prompt_sums(prompt, chunk),
            (_, Output::ByNeuron { .. }) => self.prompt_rows(prompt, chunk, tokens),
            (_, Output::Across { .. }) => self.prompt_product(prompt, chunk, tokens, worker),
        }
    }

    /// A panel of rows times some tokens, at index `place` of the worker's sums.
    fn products<'a>(
        prompt: &'a Prompt,
        weight: &Weight,
        rows: &Range<usize>,
        x: &TokenRows<'_>,
        n: usize,
        worker: usize,
        place: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        if n > FEW_TOKENS {
            prompt.panels.times(weight, rows, x, n, worker, place)
        } else {
            prompt.panels.times_few(weight, rows, x, n, worker, place)
        }
    }

    /// The values of a panel of neurons for some tokens that use them.
    fn prompt_neurons(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let whole = self.groups.chunk(chunk);
        let (members, rows) = PanelCut::new(whole.slots.len(), whole.rows.len()).chunk(whole.index);
        let start = whole.rows.start;
        let part = GroupChunk {
            rows: start + rows.start..start + rows.end,
            pairs: whole.pairs.start + members.start..whole.pairs.start + members.end,
            slots: &whole.slots[members],
            ..whole
        };
        let at = Panel { number: rows.start / PANEL_ROWS, part, tile, worker };
        // A local copy, since the words of one panel are a whole row apart in `prompt.kept`.
        let mut kept = [0; TILE];
        let kept = &mut kept[..at.part.slots.len()];
        self.prompt_wanted(&at, kept);
        let (first, bias) = match &self.gate {
            Some(gate) => (gate, &self.bias_gate),
            None => (&self.up, &self.bias_up),
        };
        let tests = self.prompt_wanted_products(prompt, &at, kept, first, 0);
        if let Some(bias) = bias {
            let bias = &bias.all()[at.part.rows.clone()];
            for tests in &mut *tests {
                tests.iter_mut().zip(bias).for_each(|(test, b)| *test += b);
            }
        }
        if self.skip != Skip::Never {
            for (kept, tests) in kept.iter_mut().zip(&*tests) {
                for ((id, test), bit) in at.part.rows.clone().zip(tests).zip(0..) {
                    *kept &= !(u32::from(!self.passes(id as u32, *test)) << bit);
                }
            }
        }
        let ups = match &self.gate {
            Some(_) => &*self.prompt_wanted_products(prompt, &at, kept, &self.up, 1),
            None => &*tests,
        };
        self.prompt_values(prompt, &at, kept, tests, ups);
    }

    /// Neurons of the panel that each of its tokens needs, a bit each: all, or those whose list
    /// entry names the token.
    fn prompt_wanted(&self, at: &Panel<'_>, kept: &mut [u32]) {
        let part = &at.part;
        let Some(list) = &self.list else {
            return kept.fill(u32::MAX >> (PANEL_ROWS - part.rows.len()));
        };
        let slice = self.groups.slice(part.group, at.number * PANEL_ROWS / self.cut.slice);
        list.for_rows(slice, &part.rows, &mut |id, members| {
            let bit = id as usize - part.rows.start;
            for (kept, &slot) in kept.iter_mut().zip(part.slots) {
                *kept |= wants(members, at.tile.start + slot as usize) << bit;
            }
        });
    }

    /// The products of the panel's rows of `weight` with the tokens that need them, at index
    /// `place` of the sums; other entries are unspecified.
    fn prompt_wanted_products<'a>(
        &self,
        prompt: &'a Prompt,
        at: &Panel<'_>,
        kept: &[u32],
        weight: &Weight,
        place: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        let (part, n) = (&at.part, at.part.slots.len());
        let n_kept: usize = kept.iter().map(|kept| kept.count_ones() as usize).sum();
        // A separate product costs about twice as much per neuron and token as its share of a
        // panel.
        if 2 * n_kept > n * part.rows.len() {
            let tile = at.tile;
            let all = self.x.rows(weight.activation, tile.start, 0..tile.len(), self.n_in);
            let ids = if self.groups.are_chosen() {
                RowIds::List(part.slots)
            } else {
                RowIds::From(part.slots.first().map_or(0, |&slot| slot as usize))
            };
            let x = TokenRows { ids, ..all };
            return Self::products(prompt, weight, &part.rows, &x, n, at.worker, place);
        }
        let sums = prompt.panels.sums(n, at.worker, place);
        let view = |member: usize| {
            let slot = part.slots[member] as usize;
            self.x.view(weight.activation, at.tile.start + slot, slot)
        };
        for (i, row) in part.rows.clone().enumerate() {
            let mut wants = (0..n).filter(|&member| kept[member] >> i & 1 == 1);
            while let Some(first) = wants.next() {
                let mut four = [first; 4];
                let rest = four.iter_mut().skip(1).zip(&mut wants);
                let n = 1 + rest.map(|(to, member)| *to = member).count();
                let xs: [ActView<'_>; 4] = four.map(view);
                let values = weight.times_row(weight.rows.row(row), &xs[..n]);
                for (member, value) in four.into_iter().zip(values).take(n) {
                    sums[member][i] = value;
                }
            }
        }
        sums
    }

    /// From the products of a panel to the input of down.
    fn prompt_values(
        &self,
        prompt: &Prompt,
        at: &Panel<'_>,
        kept: &[u32],
        tests: &[[f32; PANEL_ROWS]],
        ups: &[[f32; PANEL_ROWS]],
    ) {
        let part = &at.part;
        let (first, n) = (at.number * PANEL_ROWS, part.rows.len());
        let tokens = part.pairs.clone().zip(part.slots).zip(kept);
        for (((pair, &slot), &kept), (tests, ups)) in tokens.zip(tests.iter().zip(ups)) {
            prompt.kept.part(pair, at.number..at.number + 1)[0] = kept;
            let (mut values, mut ups) = (*tests, *ups);
            if let (Some(_), Some(bias)) = (&self.gate, &self.bias_up) {
                let bias = &bias.all()[part.rows.clone()];
                ups.iter_mut().zip(bias).for_each(|(up, b)| *up += b);
            }
            self.neurons.values(&mut values, &mut ups);
            let weight = self.groups.weight(part.group, at.tile.start + slot as usize);
            let values = &mut values[..n];
            if kept != u32::MAX || weight != 1.0 {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = if kept >> i & 1 == 0 { 0.0 } else { *value * weight };
                }
            }
            match &self.output {
                Output::Across { acts, .. } if acts.rounds() => {
                    acts.round_part(values, pair, at.number);
                }
                Output::ByNeuron { .. } | Output::Across { .. } => {
                    prompt.h.part(pair, first..first + n).copy_from_slice(values);
                }
            }
        }
    }

    /// Down with one row per output: a panel of outputs for some tokens, group by group.
    fn prompt_product(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let Output::Across { down, acts, .. } = &self.output else { return };
        let (slots, cols) = PanelCut::new(tile.len(), self.cut.n_out).chunk(chunk);
        // With one group, its products are the only term, so that y is written once.
        let at_once = !self.groups.are_chosen() && self.cut.group_rows > 0;
        if !at_once {
            for slot in slots.clone() {
                self.begin(tile.start + slot, slot, &cols);
            }
        }
        for part in self.groups.used_by(slots).filter(|part| !part.rows.is_empty()) {
            let first = self.matrix_of(&part);
            let rows = first + cols.start..first + cols.end;
            let (pairs, n) = (part.pairs.clone(), part.slots.len());
            let h = acts.rows(down.activation, pairs.start, pairs, self.cut.group_rows);
            let sums = Self::products(prompt, down, &rows, &h, n, worker, 0);
            for (&slot, sums) in part.slots.iter().zip(sums) {
                let (slot, t) = (slot as usize, tile.start + slot as usize);
                let y =
                    if at_once { self.begin(t, slot, &cols) } else { self.y.part(t, cols.clone()) };
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y += *sum);
            }
        }
        if chunk == 0 {
            (0..tile.len()).for_each(|slot| self.prompt_count(prompt, tile, slot));
        }
    }

    /// Adds the rows of down of a run of neurons that are active for a pair.
    fn prompt_add(
        &self,
        prompt: &Prompt,
        part: &GroupChunk<'_>,
        run: usize,
        pair: usize,
        y: &mut [f32],
    ) {
        let Output::ByNeuron { down, .. } = &self.output else { return };
        let (kept, h) = (prompt.kept.reads_row(pair), prompt.h.reads_row(pair));
        let (mut list, mut len) = ([(0, 0.0); SLICE], 0);
        for panel in piece(run, PANELS, part.rows.len().div_ceil(PANEL_ROWS)) {
            let mut left = kept[panel];
            while left != 0 {
                let row = panel * PANEL_ROWS + left.trailing_zeros() as usize;
                list[len] = ((part.rows.start + row) as u32, h[row]);
                len += 1;
                left &= left - 1;
            }
        }
        down.add(&list[..len], y);
    }

    /// Down with one row per neuron and with groups: sums for some pairs, one run of neurons after
    /// the other.
    fn prompt_sums(&self, prompt: &Prompt, chunk: usize) {
        let Output::ByNeuron { partial, .. } = &self.output else { return };
        let pairs = piece(chunk, CHUNK_TOKENS, self.groups.n_pairs());
        for part in self.groups.runs(pairs) {
            part.pairs.clone().for_each(|pair| partial.row(pair).fill(0.0));
            for run in 0..part.rows.len().div_ceil(SLICE) {
                for pair in part.pairs.clone() {
                    self.prompt_add(prompt, &part, run, pair, partial.row(pair));
                }
            }
        }
    }

    /// Down with one row per neuron: all outputs of some tokens. Without groups one run of neurons
    /// after the other, with groups the sums computed before.
    fn prompt_rows(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>) {
        let Output::ByNeuron { partial, .. } = &self.output else { return };
        let slots = piece(chunk, Self::chunk_tokens(tile), tile.len());
        for slot in slots.clone() {
            let y = self.begin(tile.start + slot, slot, &(0..self.cut.n_out));
            self.prompt_count(prompt, tile, slot);
            if self.groups.are_chosen() {
                for pair in self.groups.of_token(slot) {
                    y.iter_mut().zip(partial.reads_row(pair)).for_each(|(y, v)| *y += v);
                }
            }
        }
        if self.groups.are_chosen() {
            return;
        }
        for part in self.groups.used_by(slots) {
            for run in 0..part.rows.len().div_ceil(SLICE) {
                for (pair, &slot) in part.pairs.clone().zip(part.slots) {
                    let y = self.y.row(tile.start + slot as usize);
                    self.prompt_add(prompt, &part, run, pair, y);
                }
            }
        }
    }

    fn prompt_count(&self, prompt: &Prompt, tile: &Range<usize>, slot: usize) {
        let count = |pair: usize| {
            let n_panels = self.groups.n_rows(self.groups.group(pair)).div_ceil(PANEL_ROWS);
            prompt.kept.reads_row(pair)[..n_panels]
                .iter()
                .map(|kept| kept.count_ones())
                .sum::<u32>()
        };
        let n: u32 = self.groups.of_token(slot).map(count).sum();
        self.active.part(0, tile.start + slot..tile.start + slot + 1)[0] += n as f32;
    }
}
