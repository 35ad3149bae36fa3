//! Multiplies the rows of gate or up that at least one token needs. Either each row is multiplied
//! by the tokens that need it (lists), or all rows of the slice by all tokens (dense). The measured
//! crossover `dense_from` decides.
//!
//! Both methods give the same bits, because a product depends only on its row and its token. Lists
//! need less arithmetic; the dense pass needs no call per row and reads memory in order.

use std::ops::Range;

use super::super::nth_range;
use super::super::operand::{Weight, rows_per_chunk};
use super::cut::SLICE;
use crate::buffer::ReadView;
use simd::{ActView, RowIds};

/// Maximum number of tokens per kernel call when a row is multiplied by the tokens that need it.
const AT_ONCE: usize = 4;
/// Maximum number of tokens per kernel call of the dense pass.
const AT_ONCE_DENSE: usize = 8;

/// The rows of one slice that any token needs, and the tokens that need each row.
pub(super) struct NeededRows {
    pub(super) ids: [u32; SLICE],
    /// A bit per token for each row: whether the token needs the row.
    pub(super) tokens: [u16; SLICE],
    pub(super) len: usize,
    /// Whether the rows are consecutive.
    pub(super) is_run: bool,
    /// Number of kernel calls that lists would need.
    n_calls: u32,
}

impl NeededRows {
    pub(super) fn new(is_run: bool) -> NeededRows {
        NeededRows { ids: [0; SLICE], tokens: [0; SLICE], len: 0, is_run, n_calls: 0 }
    }

    #[inline(always)]
    pub(super) fn push(&mut self, id: u32, tokens: u16) {
        self.ids[self.len] = id;
        self.tokens[self.len] = tokens;
        self.len += 1;
        self.n_calls += tokens.count_ones().div_ceil(AT_ONCE as u32);
    }

    /// The rows from index `i` on.
    fn rows(&self, i: usize) -> RowIds<'_> {
        if self.is_run {
            RowIds::From(self.ids[i] as usize)
        } else {
            RowIds::List(&self.ids[i..self.len])
        }
    }

    /// Kernel calls with lists, divided by those for all `n_rows` rows and `n` tokens in lists.
    fn call_ratio(&self, n_rows: usize, n: usize) -> f32 {
        self.n_calls as f32 / (n_rows * n.div_ceil(AT_ONCE)).max(1) as f32
    }
}

/// The inputs of a chunk's tokens.
pub(super) struct Inputs<'a, const N: usize> {
    /// One entry per token; entries from `n` on repeat the last token's.
    pub(super) xs: [ActView<'a>; N],
    pub(super) n: usize,
}

/// Gate or up, with its bias.
#[derive(Clone, Copy)]
pub(super) struct Projection<'a> {
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a ReadView<f32>>,
}

impl Projection<'_> {
    #[inline(always)]
    fn bias_of(&self, id: u32) -> f32 {
        self.bias.map_or(0.0, |bias| bias.as_slice()[id as usize])
    }

    /// Whether [`Self::for_needed_rows`] computes all of `rows` for all tokens.
    #[inline(always)]
    pub(super) fn is_dense<const N: usize>(
        &self,
        needed: &NeededRows,
        rows: &Range<usize>,
        inputs: &Inputs<'_, N>,
        dense_from: f32,
    ) -> bool {
        N > 1 && needed.len > 0 && needed.call_ratio(rows.len(), inputs.n) >= dense_from
    }

    /// Calls `f(i, products)` for each needed row of the slice `rows`. `products` include the bias
    /// and are valid only for the tokens that need the row. Computes all rows for all tokens if
    /// [`Self::is_dense`].
    #[inline(always)]
    pub(super) fn for_needed_rows<const N: usize>(
        &self,
        needed: &NeededRows,
        rows: &Range<usize>,
        inputs: &Inputs<'_, N>,
        dense_from: f32,
        mut f: impl FnMut(usize, &[f32; N]),
    ) {
        if N == 1 {
            let mut out = [0.0f32; N];
            return self.weight.for_rows(needed.rows(0), needed.len, &inputs.xs, |i, products| {
                out[0] = products[0] + self.bias_of(needed.ids[i]);
                f(i, &out);
            });
        }
        if self.is_dense(needed, rows, inputs, dense_from) {
            return self.dense_pass(needed, rows, inputs, f);
        }
        let mut out = [0.0f32; N];
        for i in 0..needed.len {
            let mut left = needed.tokens[i];
            let bias = self.bias_of(needed.ids[i]);
            while left != 0 {
                let mut four = [0usize; AT_ONCE];
                let mut n = 0;
                while n < AT_ONCE && left != 0 {
                    four[n] = left.trailing_zeros() as usize;
                    left &= left - 1;
                    n += 1;
                }
                let xs = four.map(|token| inputs.xs[token]);
                self.weight.for_rows(needed.rows(i), 1, &xs[..n], |_, products| {
                    for (&token, product) in four.iter().zip(products) {
                        out[token] = product + bias;
                    }
                });
            }
            f(i, &out);
        }
    }

    /// The dense pass of [`Self::for_needed_rows`]: computes all rows of the slice.
    #[inline(always)]
    fn dense_pass<const N: usize>(
        &self,
        needed: &NeededRows,
        rows: &Range<usize>,
        inputs: &Inputs<'_, N>,
        mut f: impl FnMut(usize, &[f32; N]),
    ) {
        let mut all = [[0.0; N]; SLICE];
        // Few enough rows per pass that they stay in the L1 cache for all tokens.
        let pass_rows = rows_per_chunk(self.weight.rows.row_bytes());
        for number in 0..rows.len().div_ceil(pass_rows) {
            let some = nth_range(number, pass_rows, rows.len());
            let ids = RowIds::From(rows.start + some.start);
            for first in (0..inputs.n).step_by(AT_ONCE_DENSE) {
                let end = inputs.n.min(first + AT_ONCE_DENSE);
                self.weight.for_rows8(ids, some.len(), &inputs.xs[first..end], |i, products| {
                    all[some.start + i][first..end].copy_from_slice(products);
                });
            }
        }
        for (i, &id) in needed.ids[..needed.len].iter().enumerate() {
            let bias = self.bias_of(id);
            let products = &mut all[id as usize - rows.start];
            products.iter_mut().for_each(|product| *product += bias);
            f(i, products);
        }
    }
}
