//! Code shared by several kernels: the batch, weights, quantised activations.

use std::ops::Range;

use hal::format::{Activation, Format, Q8_BLOCK};
use hal::{Batch, BatchShape, BatchView, Operand, Tensor};

use super::Context;
use crate::buffer::{ReadView, Scratch, Span, WeightRows, WriteView};
use simd::{ActView, Kernels, Q8View, RowIds, RowRun, RowsFn, TokenRows};

#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    words: ReadView<u32>,
    shape: BatchShape,
}

impl Step {
    pub(super) fn new(batch: &Batch<Tensor>, context: &Context<'_>) -> Step {
        Step { words: context.bind.read(&batch.words), shape: batch.shape }
    }

    pub(super) fn view(&self) -> BatchView<'_> {
        BatchView::new(self.words.as_slice(), self.shape)
    }

    /// Number of the step's tokens in a program recorded for `n_rows`; the other rows are padding.
    pub(super) fn n_tokens(&self, n_rows: usize) -> usize {
        self.view().n_tokens().min(n_rows)
    }
}

pub(super) fn optional_view(
    tensor: Option<&Tensor>,
    context: &Context<'_>,
) -> Option<ReadView<f32>> {
    tensor.map(|tensor| context.bind.read(tensor))
}

/// A row-major weight matrix, with the kernels of its format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    pub(super) rows: WeightRows,
    pub(super) activation: Activation,
    pub(super) format: Format,
    /// Prefetch distance in bytes.
    prefetch: usize,
    one: RowsFn<1>,
    four: RowsFn<4>,
    eight: RowsFn<8>,
}

impl Weight {
    pub(super) fn new(tensor: &Tensor, context: &Context<'_>) -> Weight {
        let format = tensor.desc().format;
        let rows = context.bind.weights(tensor);
        Weight {
            rows,
            activation: format.activation(),
            format,
            prefetch: context.prefetch,
            one: context.simd.rows(format),
            four: context.simd.rows4(format),
            eight: context.simd.rows8(format),
        }
    }

    /// Multiplies the first `n` rows of `ids` by one to four tokens and calls `f(i, products)` for
    /// each row. Also prefetches the following rows of `ids`.
    #[inline(always)]
    pub(super) fn for_rows(
        &self,
        ids: RowIds<'_>,
        n: usize,
        xs: &[ActView<'_>],
        mut f: impl FnMut(usize, &[f32]),
    ) {
        match *xs {
            [x] => self.multiply_rows(self.one, ids, n, [x], |i, [y]| f(i, &[y])),
            [a, b] => self.multiply_rows(self.four, ids, n, [a, b, b, b], |i, y| f(i, &y[..2])),
            [a, b, c] => self.multiply_rows(self.four, ids, n, [a, b, c, c], |i, y| f(i, &y[..3])),
            [a, b, c, d] => self.multiply_rows(self.four, ids, n, [a, b, c, d], |i, y| f(i, &y)),
            _ => unreachable!("a chunk has one to four tokens"),
        }
    }

    /// [`Weight::for_rows`] for up to eight tokens.
    #[inline(always)]
    pub(super) fn for_rows8(
        &self,
        ids: RowIds<'_>,
        n: usize,
        xs: &[ActView<'_>],
        mut f: impl FnMut(usize, &[f32]),
    ) {
        if xs.len() <= 4 {
            return self.for_rows(ids, n, xs, f);
        }
        let eight = std::array::from_fn(|i| xs[i.min(xs.len() - 1)]);
        self.multiply_rows(self.eight, ids, n, eight, |i, y| f(i, &y[..xs.len()]));
    }

    #[inline(always)]
    fn multiply_rows<const N: usize>(
        &self,
        kernel: RowsFn<N>,
        ids: RowIds<'_>,
        n: usize,
        xs: [ActView<'_>; N],
        mut f: impl FnMut(usize, [f32; N]),
    ) {
        const AT_ONCE: usize = 64;
        let mut products = [[0.0; N]; AT_ONCE];
        for first in (0..n).step_by(AT_ONCE) {
            let products = &mut products[..AT_ONCE.min(n - first)];
            let run = RowRun::new(self.rows.matrix(), ids.skip(first), self.prefetch);
            kernel(&run, xs, products);
            (first..).zip(products).for_each(|(i, products)| f(i, *products));
        }
    }

    /// Multiplies one row, or whole blocks of a row, by one to four tokens. Unused entries of the
    /// result are unspecified.
    #[inline]
    pub(super) fn multiply_row(&self, row: &[u8], xs: &[ActView<'_>]) -> [f32; 4] {
        let run = RowRun::single(row);
        let mut out = [[0.0; 4]];
        let last = xs.len() - 1;
        match *xs {
            [x] => (self.one)(&run, [x], out.as_flattened_mut()[..1].as_chunks_mut().0),
            _ => (self.four)(&run, std::array::from_fn(|t| xs[t.min(last)]), &mut out),
        }
        out[0]
    }
}

/// Rows of a matrix per chunk, about 32 KiB: enough to outweigh the cost of scheduling, few enough
/// that every thread gets chunks.
pub(super) fn rows_per_chunk(row_bytes: usize) -> usize {
    const CHUNK_BYTES: usize = 32 << 10;
    (CHUNK_BYTES / row_bytes.max(1)).clamp(4, 512).next_multiple_of(4)
}

/// Workspace for activations in Q8 blocks.
#[derive(Debug)]
pub(super) struct Q8Span {
    q: Span<i8>,
    d: Span<f32>,
    sum: Span<i32>,
}

impl Q8Span {
    /// Reserves memory for `n_rows` rows of `n_cols` values; `None` if no format of `formats` takes
    /// Q8 activations.
    pub(super) fn new(
        formats: &[Option<Format>],
        n_rows: usize,
        n_cols: usize,
        scratch: &mut Scratch,
    ) -> Option<Q8Span> {
        let mut formats = formats.iter().flatten();
        formats.any(|format| format.activation() == Activation::Q8).then(|| {
            let n_blocks = n_cols.div_ceil(Q8_BLOCK);
            Q8Span {
                q: scratch.take(n_rows, n_blocks * Q8_BLOCK),
                d: scratch.take(n_rows, n_blocks),
                sum: scratch.take(n_rows, n_blocks),
            }
        })
    }
}

/// Rows of activations in F32 and, if a weight format takes Q8 activations, in Q8 blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acts {
    x: ReadView<f32>,
    q8: Option<(WriteView<i8>, WriteView<f32>, WriteView<i32>)>,
    simd: Kernels,
}

impl Acts {
    pub(super) fn new(x: ReadView<f32>, span: Option<&Q8Span>, context: &Context<'_>) -> Acts {
        let bind = &context.bind;
        let q8 = span.map(|s| (bind.scratch(&s.q), bind.scratch(&s.d), bind.scratch(&s.sum)));
        Acts { x, q8, simd: context.simd }
    }

    /// Whether the activations are also needed in Q8 blocks.
    pub(super) fn quantizes(&self) -> bool {
        self.q8.is_some()
    }

    /// Quantises row `row` of x into slot `slot`.
    pub(super) fn quantize(&self, row: usize, slot: usize) {
        if let Some((q, d, sum)) = &self.q8 {
            self.simd.quantize(self.x.row(row), q.row(slot), d.row(slot), sum.row(slot));
        }
    }

    /// Quantises `values`, the blocks of a row from `block` on, into slot `slot`.
    pub(super) fn quantize_blocks(&self, values: &[f32], slot: usize, block: usize) {
        if let Some((q, d, sum)) = &self.q8 {
            let blocks = block..block + values.len().div_ceil(Q8_BLOCK);
            let q = q.columns(slot, blocks.start * Q8_BLOCK..blocks.end * Q8_BLOCK);
            let (d, sum) = (d.columns(slot, blocks.clone()), sum.columns(slot, blocks));
            self.simd.quantize(values, q, d, sum);
        }
    }

    /// Consecutive rows from `row` on, or their quantised forms in `slots`, depending on `kind`.
    pub(super) fn rows(
        &self,
        kind: Activation,
        row: usize,
        slots: Range<usize>,
        n_cols: usize,
    ) -> TokenRows<'_> {
        let acts = match (kind, &self.q8) {
            (Activation::Q8, Some((q, d, sum))) => ActView::Q8(Q8View {
                q: q.read_rows(slots.clone()),
                d: d.read_rows(slots.clone()),
                sum: sum.read_rows(slots),
            }),
            (Activation::Q8, None) => unreachable!("the plan reserved this memory"),
            (Activation::F32, _) => ActView::F32(self.x.rows(row..row + slots.len())),
        };
        TokenRows { acts, n_cols, ids: RowIds::From(0) }
    }

    /// Row `row`, or its quantised form in `slot`, depending on `kind`.
    #[inline]
    pub(super) fn view(&self, kind: Activation, row: usize, slot: usize) -> ActView<'_> {
        match (kind, &self.q8) {
            (Activation::Q8, Some((q, d, sum))) => ActView::Q8(Q8View {
                q: q.read_row(slot),
                d: d.read_row(slot),
                sum: sum.read_row(slot),
            }),
            (Activation::Q8, None) => unreachable!("the plan reserved this memory"),
            (Activation::F32, _) => ActView::F32(self.x.row(row)),
        }
    }

    /// The views of up to four consecutive rows; only the first `rows.len()` are valid.
    pub(super) fn four_rows(
        &self,
        kind: Activation,
        rows: Range<usize>,
        first_slot: usize,
    ) -> [ActView<'_>; 4] {
        let last = rows.len().saturating_sub(1);
        std::array::from_fn(|i| {
            let i = i.min(last);
            self.view(kind, rows.start + i, first_slot + i)
        })
    }
}
