//! Many tokens at once: gate and up by panels where most of a panel's neurons and tokens are wanted, else by rows;
//! down by panels or neuron by neuron.

use std::ops::Range;

use hal::Operand;
use hal::op;

use super::super::operand::Weight;
use super::super::panels::{FEW_TOKENS, PanelCut, Panels};
use super::super::piece;
use super::{Output, SLICE, SparseFfn};
use crate::buffer::Writes;
use crate::simd::{ActView, PANEL_ROWS};

/// Bytes of values between up and down above which tiles get smaller.
const VALUE_BYTES: usize = 32 << 20;
/// Most tokens of a tile.
const TILE: usize = 512;
/// Chunks of a tile whose down lies by neuron.
const N_CHUNKS: usize = 32;
/// Most tokens of such a chunk: their sums stay in a core's cache while the rows pass by.
const CHUNK_TOKENS: usize = 16;

/// What else a tile of many tokens needs.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) panels: Panels,
    /// Which neurons of each panel are carried through: `[tile, n_panels]`.
    pub(super) kept: Writes<u32>,
    /// Their values: `[tile, n_rows]`, unless they are rounded at once.
    pub(super) h: Writes<f32>,
}

/// Tokens of a tile if an op goes this way.
pub(super) fn tile<T: Operand>(op: &op::SparseFfn<T>) -> Option<usize> {
    let n_tokens = op.y.desc().n_rows;
    let row_bytes = op.up.desc().n_rows.max(1) * size_of::<f32>();
    let tile = (VALUE_BYTES / row_bytes).clamp(FEW_TOKENS + 1, TILE);
    (op.group_of.is_none() && n_tokens > FEW_TOKENS).then(|| tile.min(n_tokens))
}

/// A panel of neurons and the tokens of a tile that a worker computes it for.
struct Part<'a> {
    tile: &'a Range<usize>,
    slots: &'a Range<usize>,
    rows: &'a Range<usize>,
    worker: usize,
}

impl Part<'_> {
    fn panel(&self) -> usize {
        self.rows.start / PANEL_ROWS
    }

    /// Which of the panel's neurons the token in `slot` keeps.
    #[allow(clippy::mut_from_ref, reason = "the part's own: see `crate::buffer`")]
    fn kept<'a>(&self, prompt: &'a Prompt, slot: usize) -> &'a mut u32 {
        &mut prompt.kept.part(slot, self.panel()..self.panel() + 1)[0]
    }
}

impl SparseFfn {
    fn neuron_cut(&self, tokens: &Range<usize>) -> PanelCut {
        PanelCut::new(tokens.len(), self.cut.n_rows)
    }

    fn chunk_tokens(tokens: &Range<usize>) -> usize {
        tokens.len().div_ceil(N_CHUNKS).min(CHUNK_TOKENS)
    }

    pub(super) fn prompt_chunks(&self, step: usize, tokens: &Range<usize>) -> usize {
        match (step, &self.output) {
            (0, _) if self.x.rounds() || self.list.is_some() => tokens.len(),
            (1, _) => self.neuron_cut(tokens).n_chunks(),
            (0 | 2, _) => 0,
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
            (0, _) => self.prepare(tokens, chunk),
            (1, _) => self.prompt_neurons(prompt, chunk, tokens, worker),
            (_, Output::ByNeuron { .. }) => self.prompt_rows(prompt, chunk, tokens),
            (_, Output::Across { .. }) => self.prompt_product(prompt, chunk, tokens, worker),
        }
    }

    /// The values of a panel of neurons for some tokens.
    fn prompt_neurons(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let (slots, rows) = self.neuron_cut(tile).chunk(chunk);
        let at = Part { tile, slots: &slots, rows: &rows, worker };
        self.prompt_wanted(prompt, &at);
        let (first, bias) = match &self.gate {
            Some(gate) => (gate, &self.bias_gate),
            None => (&self.up, &self.bias_up),
        };
        let tests = self.prompt_products(prompt, &at, first, 0);
        for (slot, tests) in slots.clone().zip(&mut *tests) {
            let kept = at.kept(prompt, slot);
            for ((id, test), bit) in rows.clone().zip(tests).zip(0..) {
                *test += bias.as_ref().map_or(0.0, |bias| bias.all()[id]);
                *kept &= !(u32::from(!self.passes(id as u32, *test)) << bit);
            }
        }
        let ups = match &self.gate {
            Some(_) => &*self.prompt_products(prompt, &at, &self.up, 1),
            None => &*tests,
        };
        for ((slot, tests), ups) in slots.clone().zip(&*tests).zip(ups) {
            let kept = *at.kept(prompt, slot);
            let (mut values, mut ups) = (*tests, *ups);
            if let (Some(_), Some(bias)) = (&self.gate, &self.bias_up) {
                ups.iter_mut().zip(&bias.all()[rows.clone()]).for_each(|(up, b)| *up += b);
            }
            self.neurons.values(&mut values, &mut ups);
            let values = &mut values[..rows.len()];
            for (i, value) in values.iter_mut().enumerate() {
                if kept >> i & 1 == 0 {
                    *value = 0.0;
                }
            }
            match &self.output {
                Output::Across { acts, .. } if acts.rounds() => {
                    acts.round_part(values, slot, at.panel());
                }
                Output::ByNeuron { .. } | Output::Across { .. } => {
                    prompt.h.part(slot, rows.clone()).copy_from_slice(values)
                }
            }
        }
    }

    /// Which neurons of the panel each token wants: all, or those of the list that name it.
    fn prompt_wanted(&self, prompt: &Prompt, at: &Part<'_>) {
        let all = u32::MAX >> (PANEL_ROWS - at.rows.len());
        let wanted = if self.list.is_some() { 0 } else { all };
        at.slots.clone().for_each(|slot| *at.kept(prompt, slot) = wanted);
        let Some(list) = &self.list else { return };
        list.for_rows(at.rows.start / self.cut.slice, at.rows, &mut |id, members| {
            let bit = id as usize - at.rows.start;
            for slot in at.slots.clone() {
                let t = at.tile.start + slot;
                *at.kept(prompt, slot) |= (members[t / 32] >> (t % 32) & 1) << bit;
            }
        });
    }

    /// The products of the panel's rows of `weight` with the tokens that keep them, in place `place` of the sums;
    /// those of others are unspecified.
    fn prompt_products<'a>(
        &self,
        prompt: &'a Prompt,
        at: &Part<'_>,
        weight: &Weight,
        place: usize,
    ) -> &'a mut [[f32; PANEL_ROWS]] {
        let (n, slots) = (at.slots.len(), at.slots);
        let kept = slots.clone().map(|slot| at.kept(prompt, slot).count_ones() as usize);
        // A product of its own costs a neuron and token about twice its part of a panel.
        if 2 * kept.sum::<usize>() > n * at.rows.len() {
            let first = at.tile.start + slots.start;
            let x = self.x.rows(weight.activation, first, slots.clone(), self.n_in);
            return prompt.panels.times(weight, at.rows, &x, n, at.worker, place);
        }
        let sums = prompt.panels.sums(n, at.worker, place);
        let view = |slot: usize| self.x.view(weight.activation, at.tile.start + slot, slot);
        for (i, row) in at.rows.clone().enumerate() {
            let mut wants = slots.clone().filter(|&slot| *at.kept(prompt, slot) >> i & 1 == 1);
            while let Some(first) = wants.next() {
                let mut four = [first; 4];
                let rest = four.iter_mut().skip(1).zip(&mut wants);
                let n = 1 + rest.map(|(to, slot)| *to = slot).count();
                let xs: [ActView<'_>; 4] = four.map(view);
                let values = weight.times_row(weight.rows.row(row), &xs[..n]);
                for (slot, value) in four.into_iter().zip(values).take(n) {
                    sums[slot - slots.start][i] = value;
                }
            }
        }
        sums
    }

    /// Down across neurons: a panel of outputs for some tokens.
    fn prompt_product(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>, worker: usize) {
        let Output::Across { down, acts, .. } = &self.output else { return };
        let (slots, cols) = PanelCut::new(tile.len(), self.cut.n_out).chunk(chunk);
        let h = acts.rows(down.activation, slots.start, slots.clone(), self.cut.n_rows);
        let sums = prompt.panels.times(down, &cols, &h, slots.len(), worker, 0);
        for (slot, sums) in slots.zip(sums) {
            let y = self.begin(tile.start + slot, &cols);
            y.iter_mut().zip(sums).for_each(|(y, sum)| *y += *sum);
        }
        if chunk == 0 {
            (0..tile.len()).for_each(|slot| self.prompt_count(prompt, tile, slot));
        }
    }

    /// Down by neuron: all outputs of some tokens, a run of neurons after the other.
    fn prompt_rows(&self, prompt: &Prompt, chunk: usize, tile: &Range<usize>) {
        const PANELS: usize = SLICE / PANEL_ROWS;
        let Output::ByNeuron { down, .. } = &self.output else { return };
        let slots = piece(chunk, Self::chunk_tokens(tile), tile.len());
        for slot in slots.clone() {
            self.begin(tile.start + slot, &(0..self.cut.n_out));
            self.prompt_count(prompt, tile, slot);
        }
        let n_panels = self.cut.n_rows.div_ceil(PANEL_ROWS);
        for slice in 0..n_panels.div_ceil(PANELS) {
            for slot in slots.clone() {
                let (kept, h) = (prompt.kept.reads_row(slot), prompt.h.reads_row(slot));
                let (mut list, mut len) = ([(0, 0.0); SLICE], 0);
                for panel in piece(slice, PANELS, n_panels) {
                    let mut left = kept[panel];
                    while left != 0 {
                        let id = panel * PANEL_ROWS + left.trailing_zeros() as usize;
                        list[len] = (id as u32, h[id]);
                        len += 1;
                        left &= left - 1;
                    }
                }
                down.add(&list[..len], self.y.row(tile.start + slot));
            }
        }
    }

    fn prompt_count(&self, prompt: &Prompt, tile: &Range<usize>, slot: usize) {
        let kept = prompt.kept.reads_row(slot).iter().map(|kept| kept.count_ones()).sum::<u32>();
        self.active.part(0, tile.start + slot..tile.start + slot + 1)[0] += kept as f32;
    }
}
