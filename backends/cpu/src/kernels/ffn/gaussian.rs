//! [`hal::op::Skip::GaussianCut`]: the cut-off depends on a token's test values in the whole block,
//! so all of them are computed first, and the cut-off is subtracted. The steps that follow read them
//! instead of multiplying by the gate.

use std::ops::Range;

use hal::Operand;
use hal::op::{self, Skip};

use super::super::nth_range;
use super::super::panels::PanelCut;
use super::SparseFfn;
use super::cut::Cut;
use crate::buffer::{Scratch, Span, WriteView};
use simd::{PANEL_ROWS, RowIds};

/// Steps of a tile that compute the test values.
pub(super) const STEPS: usize = 2;

/// Workspace: the test values of a tile, `[tile, n_rows]`; empty for another [`Skip`].
pub(super) struct TestSpan(Span<f32>);

impl TestSpan {
    pub(super) fn new<T: Operand>(
        op: &op::SparseFfn<T>,
        cut: &Cut,
        scratch: &mut Scratch,
    ) -> TestSpan {
        let rows = factor(op.skip).map_or(0, |_| cut.tile);
        TestSpan(scratch.take(rows, op.up.desc().n_rows))
    }
}

/// The cut-off's factor on the standard deviation; `None` for another [`Skip`].
fn factor(skip: Skip) -> Option<f32> {
    match skip {
        Skip::GaussianCut(factor) => Some(factor),
        Skip::Never | Skip::NotPositive | Skip::BelowPerRow => None,
    }
}

/// The test values of a tile, minus the cut-offs.
#[derive(Debug)]
pub(super) struct Tests {
    factor: f32,
    values: WriteView<f32>,
}

impl Tests {
    /// `None` for an op without a Gaussian cut. `bind` makes the view of a span.
    pub(super) fn new(
        skip: Skip,
        span: &TestSpan,
        bind: impl FnOnce(&Span<f32>) -> WriteView<f32>,
    ) -> Option<Tests> {
        factor(skip).map(|factor| Tests { factor, values: bind(&span.0) })
    }

    /// The values of row `id` for the tokens in `slots`.
    #[inline]
    pub(super) fn of_row<const N: usize>(&self, id: u32, slots: &[u32]) -> [f32; N] {
        let mut values = [0.0; N];
        for (value, &slot) in values.iter_mut().zip(slots) {
            *value = self.values.read_row(slot as usize)[id as usize];
        }
        values
    }

    /// Copies the values of `rows`, at most a panel, for each token in `slots`.
    pub(super) fn copy_panel(
        &self,
        rows: &Range<usize>,
        slots: &[u32],
        to: &mut [[f32; PANEL_ROWS]],
    ) {
        for (to, &slot) in to.iter_mut().zip(slots) {
            to[..rows.len()].copy_from_slice(&self.values.read_row(slot as usize)[rows.clone()]);
        }
    }

    /// Subtracts the cut-off from the values of the token in `slot`.
    fn cut(&self, slot: usize) {
        let values = self.values.row(slot);
        let n = values.len().max(1) as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        let cut = (mean + f64::from(self.factor) * variance.sqrt()) as f32;
        values.iter_mut().for_each(|value| *value -= cut);
    }
}

impl SparseFfn {
    /// Number of chunks of one of [`STEPS`].
    pub(super) fn test_chunks(&self, step: usize, tile: &Range<usize>) -> usize {
        match (step, &self.prefill) {
            (0, Some(_)) => PanelCut::new(tile.len(), self.cut.expert_rows).n_chunks(),
            (0, None) => self.cut.expert_rows.div_ceil(self.cut.slice),
            _ => tile.len(),
        }
    }

    /// Runs a chunk of one of [`STEPS`]: products of some rows, or a token's cut-off.
    pub(super) fn test_run(
        &self,
        tests: &Tests,
        step: usize,
        chunk: usize,
        tile: &Range<usize>,
        worker: usize,
    ) {
        if step > 0 {
            return tests.cut(chunk);
        }
        let (weight, bias) = match &self.gate {
            Some(gate) => (gate, &self.bias_gate),
            None => (&self.up, &self.bias_up),
        };
        let (slots, rows) = match &self.prefill {
            Some(prefill) => {
                let cut = PanelCut::new(tile.len(), self.cut.expert_rows);
                let (slots, rows) = cut.chunk(chunk);
                let first = tile.start + slots.start;
                let x = self.x.rows(weight.activation, first, slots.clone(), self.n_in);
                let sums = Self::multiply(prefill, weight, &rows, &x, slots.len(), worker, 0);
                for (slot, sums) in slots.clone().zip(sums) {
                    let values = tests.values.columns(slot, rows.clone());
                    values.copy_from_slice(&sums[..rows.len()]);
                }
                (slots, rows)
            }
            None => {
                let rows = nth_range(chunk, self.cut.slice, self.cut.expert_rows);
                for first in (0..tile.len()).step_by(4) {
                    let slots = first..tile.len().min(first + 4);
                    let tokens = tile.start + slots.start..tile.start + slots.end;
                    let xs = self.x.four_rows(weight.activation, tokens, first);
                    let mut values =
                        slots.clone().map(|slot| tests.values.columns(slot, rows.clone()));
                    let mut values: [&mut [f32]; 4] =
                        std::array::from_fn(|_| values.next().unwrap_or_default());
                    let ids = RowIds::From(rows.start);
                    weight.for_rows(ids, rows.len(), &xs[..slots.len()], |i, products| {
                        values.iter_mut().zip(products).for_each(|(to, value)| to[i] = *value);
                    });
                }
                (0..tile.len(), rows)
            }
        };
        let Some(bias) = bias else { return };
        for slot in slots {
            let values = tests.values.columns(slot, rows.clone()).iter_mut();
            values.zip(&bias.as_slice()[rows.clone()]).for_each(|(value, b)| *value += b);
        }
    }
}
