//! Many tokens at once, all rows: gate and up by panels, down by panels or neuron by neuron.
//!
//! With groups, the tokens that use one are taken together wherever they stand in the tile; few of them go row by row.

use std::ops::Range;

use hal::op;
use hal::{Operand, Rows};

use super::super::operand::Weight;
use super::super::panels::{FEW_TOKENS, PanelCut, Panels};
use super::super::piece;
use super::groups::Part;
use super::{Output, SLICE, SparseFfn};
use crate::buffer::Writes;
use crate::simd::{ActView, PANEL_ROWS, RowIds, TokenRows};

/// Bytes of values between up and down, and of sums of groups, above which tiles get smaller.
const VALUE_BYTES: usize = 32 << 20;
/// Most tokens of a tile.
const TILE: usize = 512;
/// Chunks of a tile whose down lies by neuron.
const N_CHUNKS: usize = 32;
/// Most tokens of such a chunk: their sums stay in a core's cache while the rows pass by.
const CHUNK_TOKENS: usize = 16;
/// Panels whose neurons are summed at once.
const PANELS: usize = SLICE / PANEL_ROWS;

/// What else a tile of many tokens needs.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) panels: Panels,
    /// Which neurons of each panel are carried through: `[n_pairs, panels of a group]`.
    pub(super) kept: Writes<u32>,
    /// Their values: `[n_pairs, group_rows]`, unless they are rounded at once.
    pub(super) h: Writes<f32>,
}

/// Tokens of a tile if an op goes this way.
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
    let all = matches!(op.rows, Rows::All);
    (all && y.n_rows > FEW_TOKENS).then(|| tile.min(y.n_rows))
}

impl SparseFfn {
    fn chunk_tokens(tokens: &Range<usize>) -> usize {
        tokens.len().div_ceil(N_CHUNKS).min(CHUNK_TOKENS)
    }

    /// Chunks of a step but the first.
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
        (step, chunk): (usize, usize),
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

    /// A panel of rows times some tokens, in place `at` of the worker's sums.
    fn products<'a>(
        prompt: &'a Prompt,
        (weight, rows): (&Weight, &Range<usize>),
        (x, n): (&TokenRows<'_>, usize),
        worker: usize,
        at: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        match n > FEW_TOKENS {
            true => prompt.panels.times(weight, rows, x, n, worker, at),
            false => prompt.panels.times_few(weight, rows, x, n, worker, at),
        }
    }

    /// The values of a panel of neurons for some tokens that use them.
    fn prompt_neurons(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let whole = self.groups.part(chunk);
        let (members, panel_rows) =
            PanelCut::new(whole.slots.len(), whole.rows.len()).chunk(whole.chunk);
        let start = whole.rows.start;
        let part = Part {
            rows: start + panel_rows.start..start + panel_rows.end,
            pairs: whole.pairs.start + members.start..whole.pairs.start + members.end,
            slots: &whole.slots[members],
            ..whole
        };
        let (rows, n, panel) = (&part.rows, part.slots.len(), panel_rows.start / PANEL_ROWS);
        let product = |weight: &Weight, at: usize| {
            let all = self.x.rows(weight.activation, tile.start, 0..tile.len(), self.n_in);
            let x = TokenRows { ids: RowIds::List(part.slots), ..all };
            Self::products(prompt, (weight, rows), (&x, n), worker, at)
        };
        let (first, bias) = match &self.gate {
            Some(gate) => (gate, &self.bias_gate),
            None => (&self.up, &self.bias_up),
        };
        let tests = product(first, 0);
        let mut n_kept = 0;
        for (pair, tests) in part.pairs.clone().zip(&mut *tests) {
            let mut kept = 0u32;
            for ((id, test), bit) in rows.clone().zip(tests).zip(0..) {
                *test += bias.as_ref().map_or(0.0, |bias| bias.all()[id]);
                kept |= u32::from(self.passes(id as u32, *test)) << bit;
            }
            prompt.kept.part(pair, panel..panel + 1)[0] = kept;
            n_kept += kept.count_ones() as usize;
        }
        // A product of its own costs a neuron and token about twice its part of a panel.
        let ups = match self.gate.is_some() && 2 * n_kept > n * rows.len() {
            true => Some(&*product(&self.up, 1)),
            false => None,
        };
        let ups = match (ups, &self.gate) {
            (Some(ups), _) => ups,
            (None, Some(_)) => self.prompt_ups(prompt, &part, panel, tile, worker),
            (None, None) => tests,
        };
        self.prompt_values(prompt, &part, panel, tile, (tests, ups));
    }

    /// Up only where it is wanted, four tokens at a time.
    fn prompt_ups<'a>(
        &self,
        prompt: &'a Prompt,
        part: &Part<'_>,
        panel: usize,
        tile: &Range<usize>,
        worker: usize,
    ) -> &'a [[f32; PANEL_ROWS]] {
        let ups = prompt.panels.sums(part.slots.len(), worker, 1);
        let view = |member: usize| {
            let slot = part.slots[member] as usize;
            self.x.view(self.up.activation, tile.start + slot, slot)
        };
        for (i, row) in part.rows.clone().enumerate() {
            let kept = |member: &usize| {
                prompt.kept.reads_row(part.pairs.start + member)[panel] >> i & 1 == 1
            };
            let mut wants = (0..part.slots.len()).filter(kept);
            while let Some(first) = wants.next() {
                let mut four = [first; 4];
                let rest = four.iter_mut().skip(1).zip(&mut wants);
                let n = 1 + rest.map(|(to, member)| *to = member).count();
                let xs: [ActView<'_>; 4] = four.map(view);
                let values = self.up.times_row(self.up.rows.row(row), &xs[..n]);
                for (member, value) in four.into_iter().zip(values).take(n) {
                    ups[member][i] = value;
                }
            }
        }
        ups
    }

    /// From the products of a panel to what meets down.
    fn prompt_values(
        &self,
        prompt: &Prompt,
        part: &Part<'_>,
        panel: usize,
        tile: &Range<usize>,
        (tests, ups): (&[[f32; PANEL_ROWS]], &[[f32; PANEL_ROWS]]),
    ) {
        let n = part.rows.len();
        let first = panel * PANEL_ROWS;
        let tokens = part.pairs.clone().zip(part.slots);
        for ((pair, &slot), (tests, ups)) in tokens.zip(tests.iter().zip(ups)) {
            let kept = prompt.kept.reads_row(pair)[panel];
            let (mut values, mut ups) = (*tests, *ups);
            if let (Some(_), Some(bias)) = (&self.gate, &self.bias_up) {
                let bias = &bias.all()[part.rows.clone()];
                ups.iter_mut().zip(bias).for_each(|(up, b)| *up += b);
            }
            self.neurons.values(&mut values, &mut ups);
            let weight = self.groups.weight(part.group, tile.start + slot as usize);
            let values = &mut values[..n];
            for (i, value) in values.iter_mut().enumerate() {
                *value = if kept >> i & 1 == 0 { 0.0 } else { *value * weight };
            }
            match &self.output {
                Output::Across { acts, .. } if acts.rounds() => {
                    acts.round_part(values, pair, panel);
                }
                Output::ByNeuron { .. } | Output::Across { .. } => {
                    prompt.h.part(pair, first..first + n).copy_from_slice(values);
                }
            }
        }
    }

    /// Down across neurons: a panel of outputs for some tokens, group after group.
    fn prompt_product(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let Output::Across { down, acts, .. } = &self.output else { return };
        let (slots, cols) = PanelCut::new(tile.len(), self.cut.n_out).chunk(chunk);
        for slot in slots.clone() {
            self.begin(tile.start + slot, slot, &cols);
        }
        for part in self.groups.used_by(slots).filter(|part| !part.rows.is_empty()) {
            let first = self.matrix_of(&part);
            let rows = first + cols.start..first + cols.end;
            let (pairs, n) = (part.pairs.clone(), part.slots.len());
            let h = acts.rows(down.activation, pairs.start, pairs, self.cut.group_rows);
            let sums = Self::products(prompt, (down, &rows), (&h, n), worker, 0);
            for (&slot, sums) in part.slots.iter().zip(sums) {
                let y = self.y.part(tile.start + slot as usize, cols.clone());
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y += *sum);
            }
        }
        if chunk == 0 {
            (0..tile.len()).for_each(|slot| self.prompt_count(prompt, tile, slot));
        }
    }

    /// Adds the rows of down of a run of neurons that a pair carries through.
    fn prompt_add(&self, prompt: &Prompt, part: &Part<'_>, run: usize, pair: usize, y: &mut [f32]) {
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

    /// Down by neuron with groups: sums for some pairs, a run of neurons after the other.
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

    /// Down by neuron: all outputs of some tokens. Without groups a run of neurons after the other, with them the
    /// sums that are there.
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
