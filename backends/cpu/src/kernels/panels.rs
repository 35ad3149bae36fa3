//! Matrix products in prefill: each panel of rows is unpacked once and multiplied by a tile of
//! tokens.

use std::ops::Range;

use super::operand::Weight;
use super::{Context, nth_range};
use crate::buffer::{Scratch, Span, WriteView};
use simd::{Kernels, PANEL_LEN, PANEL_ROWS, RowIds, TokenRows, panel_columns, prefetch};

/// Programs of at most this number of tokens multiply row by row, so a token's bits do not depend
/// on the other tokens; larger programs multiply by panels.
pub(super) const FEW_TOKENS: usize = 16;

/// Maximum number of tokens of a tile: enough to make the cost of unpacking a panel negligible.
pub(super) const TILE: usize = 512;
/// Tiles of at most this number of tokens are not split, because unpacking would cost too much.
const SMALL_TILE: usize = 64;
/// Tiles are split until an op has this number of chunks, so every thread gets some.
const ENOUGH_CHUNKS: usize = 64;

/// How a matrix product is split: into tiles of tokens, then into panels of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PanelCut {
    n_tokens: usize,
    n_rows: usize,
    tile: usize,
}

impl PanelCut {
    pub(super) fn new(n_tokens: usize, n_rows: usize) -> PanelCut {
        PanelCut::of_matrices(n_tokens, n_rows, 1)
    }

    /// The cut of each of `n` matrices that one op multiplies.
    pub(super) fn of_matrices(n_tokens: usize, n_rows: usize, n: usize) -> PanelCut {
        let n_panels = n * n_rows.div_ceil(PANEL_ROWS);
        let mut tile = n_tokens.min(TILE);
        while tile > SMALL_TILE && n_panels * n_tokens.div_ceil(tile) < ENOUGH_CHUNKS {
            tile = tile.div_ceil(2);
        }
        PanelCut { n_tokens, n_rows, tile }
    }

    pub(super) fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(PANEL_ROWS)
    }

    pub(super) fn n_chunks(&self) -> usize {
        self.n_panels() * self.n_tokens.div_ceil(self.tile.max(1))
    }

    /// Tokens and rows of a chunk.
    pub(super) fn chunk(&self, chunk: usize) -> (Range<usize>, Range<usize>) {
        let (tile, panel) = (chunk / self.n_panels(), chunk % self.n_panels());
        (nth_range(tile, self.tile, self.n_tokens), nth_range(panel, PANEL_ROWS, self.n_rows))
    }
}

/// Workspace of each worker: a panel and the sums of a tile.
#[derive(Debug)]
pub(super) struct PanelSpans {
    panel: Span<f32>,
    sums: Span<[f32; PANEL_ROWS]>,
}

impl PanelSpans {
    /// Reserves memory for `n_sums` simultaneous products with up to `n_tokens` tokens; small
    /// batches need no memory.
    pub(super) fn new(
        n_tokens: usize,
        n_sums: usize,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> PanelSpans {
        let n_workers = if n_tokens > FEW_TOKENS { n_threads } else { 0 };
        PanelSpans {
            panel: scratch.take(n_workers, PANEL_LEN),
            sums: scratch.take(n_workers, n_sums * n_tokens.min(TILE)),
        }
    }
}

/// [`PanelSpans`] bound to memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panels {
    panel: WriteView<f32>,
    sums: WriteView<[f32; PANEL_ROWS]>,
    simd: Kernels,
}

impl Panels {
    pub(super) fn new(spans: &PanelSpans, context: &Context<'_>) -> Panels {
        let bind = &context.bind;
        Panels {
            panel: bind.scratch(&spans.panel),
            sums: bind.scratch(&spans.sums),
            simd: context.simd,
        }
    }

    /// The worker's `at`-th buffer of sums, for `n` tokens.
    #[allow(clippy::mut_from_ref, reason = "only one worker uses its sums: see `crate::buffer`")]
    pub(super) fn sums(&self, n: usize, worker: usize, at: usize) -> &mut [[f32; PANEL_ROWS]] {
        self.sums.columns(worker, at * n..(at + 1) * n)
    }

    /// [`Panels::multiply`] for a few tokens, row by row: a panel would cost more to unpack than to
    /// multiply.
    pub(super) fn multiply_few(
        &self,
        weight: &Weight,
        rows: &Range<usize>,
        x: &TokenRows<'_>,
        n: usize,
        worker: usize,
        at: usize,
    ) -> &mut [[f32; PANEL_ROWS]] {
        let sums = self.sums(n, worker, at);
        for first in (0..n).step_by(4) {
            let xs = [0, 1, 2, 3].map(|i| x.view((first + i).min(n - 1)));
            let sums = &mut sums[first..n.min(first + 4)];
            let xs = &xs[..sums.len()];
            weight.for_rows(RowIds::From(rows.start), rows.len(), xs, |i, products| {
                sums.iter_mut().zip(products).for_each(|(sums, product)| sums[i] = *product);
            });
        }
        sums
    }

    /// Multiplies `rows`, at most a panel, by `n` tokens. Returns one row of sums per token, in the
    /// worker's `at`-th buffer.
    pub(super) fn multiply(
        &self,
        weight: &Weight,
        rows: &Range<usize>,
        x: &TokenRows<'_>,
        n: usize,
        worker: usize,
        at: usize,
    ) -> &mut [[f32; PANEL_ROWS]] {
        let (panel, sums) = (self.panel.row(worker), self.sums(n, worker, at));
        sums.fill([0.0; PANEL_ROWS]);
        let (format, columns) = (weight.format, panel_columns(weight.format));
        let blocks = |k: &Range<usize>| {
            let at = |k: usize| k / format.block_values() * format.block_bytes();
            at(k.start)..at(k.end)
        };
        for i in 0..x.n_cols.div_ceil(columns) {
            let k = nth_range(i, columns, x.n_cols);
            let (bytes, next) = (blocks(&k), blocks(&nth_range(i + 1, columns, x.n_cols)));
            let mut parts: [&[u8]; PANEL_ROWS] = [&[]; PANEL_ROWS];
            for (part, row) in parts.iter_mut().zip(rows.clone()) {
                *part = &weight.rows.row(row)[bytes.clone()];
            }
            self.simd.fill_panel(format, &parts[..rows.len()], panel);
            for row in rows.clone() {
                prefetch(&weight.rows.row(row)[next.clone()]);
            }
            self.simd.multiply_panel(format, panel, k, x, sums);
        }
        sums
    }
}
