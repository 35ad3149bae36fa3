//! Panels: a range of columns of 32 weight rows, unpacked once and multiplied by a batch of tokens.
//!
//! A panel is transposed, so a vector has one column of several rows and no sum crosses lanes. Each
//! row is first unpacked into words (`RowWords`). Only this step depends on the format; formats
//! without code of their own in [`unpack`] use [`hal::format::Quants`]. Each level then transposes
//! the words with its own instructions:
//!
//! ```text
//! quantised  [128][32] words of four codes, [32][32] scales, [32][32] minimums (per group)
//! plain      [256][32] values
//! ```
//!
//! Codes have a bias added, because `vpdpbusd` (AVX-512) and `vpmaddubsw` (AVX2) need one unsigned
//! operand: integer sums start with the negated contribution of the bias. It is [`BIAS`], or with
//! AVX2 for formats with small codes the least that makes them unsigned ([`small_codes`]). Kernels for
//! signed codes subtract it.
//!
//! F32 sums are added group by group within a range of columns, then range by range. A token's
//! results depend only on its own activations.

use std::ops::Range;

use hal::format::{Format, Q8_BLOCK};

use super::tile::pad_with_zeros;
use super::{ActView, Q8View, RowIds};

/// Weight rows of a panel.
pub const PANEL_ROWS: usize = 32;
/// Floats per panel, for any format.
pub const PANEL_LEN: usize = WORDS * PANEL_ROWS;

/// Words per row of a panel.
pub(super) const WORDS: usize = 256;
/// Offsets of the scales and of the minimums among the words of a quantised row.
pub(super) const SCALES: usize = 128;
pub(super) const MINS: usize = 160;
/// The value added to codes of any format to make them unsigned bytes.
pub(super) const BIAS: i32 = 128;

/// Unpacks `rows` into `panel` `[PANEL_LEN]`; `rows` are the same columns of up to 32 rows, in
/// blocks of the format.
pub type FillFn = fn(format: Format, rows: &[&[u8]], panel: &mut [f32]);
/// Adds the products of a panel, which has columns `k` of its rows, to `sums`; `sums` has one row
/// per token of `x`.
pub type PanelFn = fn(
    format: Format,
    panel: &[f32],
    k: Range<usize>,
    x: &TokenRows<'_>,
    sums: &mut [[f32; PANEL_ROWS]],
);

/// The activations of several tokens.
#[derive(Clone, Copy, Debug)]
pub struct TokenRows<'a> {
    /// Rows of `n_cols` values.
    pub acts: ActView<'a>,
    /// Number of values of a token.
    pub n_cols: usize,
    /// The rows of the tokens.
    pub ids: RowIds<'a>,
}

impl<'a> TokenRows<'a> {
    /// The activations of the `t`-th token.
    #[inline]
    #[must_use]
    pub fn view(&self, t: usize) -> ActView<'a> {
        let (row, n) = (self.row(t), self.n_cols);
        match self.acts {
            ActView::F32(x) => ActView::F32(&x[row * n..][..n]),
            ActView::Q8(x) => {
                let blocks = row * n.div_ceil(Q8_BLOCK)..(row + 1) * n.div_ceil(Q8_BLOCK);
                ActView::Q8(Q8View {
                    q: &x.q[blocks.start * Q8_BLOCK..blocks.end * Q8_BLOCK],
                    d: &x.d[blocks.clone()],
                    sum: &x.sum[blocks],
                })
            }
        }
    }

    /// The row of the `t`-th token.
    #[inline(always)]
    pub(super) fn row(&self, t: usize) -> usize {
        match self.ids {
            RowIds::From(first) => first + t,
            RowIds::List(ids) => ids[t] as usize,
        }
    }

    /// The rows of `N` tokens from `first` on; the last of the `n` tokens replaces missing tokens.
    #[inline(always)]
    pub(super) fn tokens<const N: usize>(&self, first: usize, n: usize) -> [usize; N] {
        std::array::from_fn(|i| self.row((first + i).min(n - 1)))
    }

    /// Panics unless `acts` has `n` tokens whose columns `k` fit into a panel.
    pub(super) fn check_bounds(&self, n: usize, k: &Range<usize>, panel: &[f32]) {
        assert!(k.start <= k.end && k.end <= self.n_cols && panel.len() == PANEL_LEN);
        let n = match self.ids {
            RowIds::From(first) => first + n,
            RowIds::List(ids) => ids[..n].iter().copied().max().map_or(0, |last| last as usize + 1),
        };
        match self.acts {
            ActView::F32(x) => assert!(x.len() >= n * self.n_cols && k.len() <= WORDS),
            ActView::Q8(x) => {
                let n_blocks = n * (self.n_cols / Q8_BLOCK);
                let whole = k.start.is_multiple_of(Q8_BLOCK) && k.end.is_multiple_of(Q8_BLOCK);
                assert!(whole && self.n_cols.is_multiple_of(Q8_BLOCK) && k.len() <= 4 * SCALES);
                assert!(x.q.len() >= n_blocks * Q8_BLOCK);
                assert!(x.d.len() >= n_blocks && x.sum.len() >= n_blocks);
            }
        }
    }
}

/// Maximum number of values of a row in a panel.
#[must_use]
pub const fn panel_columns(format: Format) -> usize {
    match format.quants() {
        Some(_) => 4 * SCALES,
        None => WORDS,
    }
}

/// `L` unpacked rows.
#[repr(C, align(64))]
pub(super) struct RowWords<const L: usize>(pub [[u32; WORDS]; L]);

/// Fills a panel, `L` rows at a time. `unpack` unpacks a row into words whose codes have [`BIAS`]
/// added, as [`super::panel_rows::unpack`]; the panel's codes have `bias`. `transpose` writes
/// `[L][L]` words, from column `at` of all rows, to the panel from row `first` on.
///
/// Always inlined, so it is compiled for the caller's instructions.
#[inline(always)]
pub(super) fn fill_panel<const L: usize>(
    format: Format,
    rows: &[&[u8]],
    panel: &mut [f32],
    bias: i32,
    unpack: impl Fn(&[u8], &mut [u32; WORDS]),
    transpose: impl Fn(&RowWords<L>, usize, &mut [u32], usize),
) {
    assert!(rows.len() <= PANEL_ROWS && panel.len() == PANEL_LEN);
    let panel: &mut [u32] = bytemuck::cast_slice_mut(panel);
    let parts = match format.quants() {
        Some(quants) => {
            let n_groups = 4 * SCALES / quants.group;
            let n_mins = if quants.has_min { n_groups } else { 0 };
            [0..SCALES, SCALES..SCALES + n_groups, MINS..MINS + n_mins]
        }
        None => [0..WORDS, 0..0, 0..0],
    };
    let mut words = RowWords([[0; WORDS]; L]);
    for first in (0..PANEL_ROWS).step_by(L) {
        // Missing rows keep the values of earlier rows; their products are not used.
        for (row, words) in rows.iter().skip(first).zip(&mut words.0) {
            unpack(row, words);
            if bias != BIAS && format.quants().is_some() {
                let codes: &mut [u8] = bytemuck::cast_slice_mut(&mut words[..SCALES]);
                codes.iter_mut().for_each(|code| *code = code.wrapping_sub((BIAS - bias) as u8));
            }
        }
        for part in &parts {
            part.clone().step_by(L).for_each(|at| transpose(&words, at, panel, first));
        }
    }
}

/// The values that the kernels need in addition to the codes, for one token and a range of columns.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default)]
pub(super) struct Factors {
    /// `[group]`: initial integer sums, which are the negated contribution of the codes' bias.
    pub start: [i32; 32],
    /// `[block]`: scales of the activations.
    pub d: [f32; 16],
    /// `[group]`: `-d * sum of codes`, which the kernels multiply by the minimums.
    pub offset: [f32; 32],
}

impl Factors {
    /// Sets the factors of the token in row `t` for codes with `bias` added; `sums_of_16` sums the
    /// activations' codes of every 16 values. Writes in place, because copying `Factors` took measurable time. Entries past the range are
    /// unspecified.
    #[inline(always)]
    pub(super) fn set<const GROUP: usize, const MIN: bool>(
        &mut self,
        x: &TokenRows<'_>,
        t: usize,
        k: &Range<usize>,
        bias: i32,
        sums_of_16: impl Fn(&[i8], &mut [i32; 32]),
    ) {
        let (x8, first) = (x.acts.q8(), t * x.n_cols + k.start);
        self.d = pad_to_16(&x8.d[first / Q8_BLOCK..]);
        if GROUP == Q8_BLOCK {
            let sums: [i32; 16] = pad_to_16(&x8.sum[first / Q8_BLOCK..]);
            self.start[..16].copy_from_slice(&sums);
        } else {
            sums_of_16(&x8.q[first..][..k.len()], &mut self.start);
        }
        for g in 0..4 * SCALES / GROUP {
            if MIN {
                self.offset[g] = -self.d[g * GROUP / Q8_BLOCK] * self.start[g] as f32;
            }
            self.start[g] *= -bias;
        }
    }
}

/// The bias that makes the codes of `format` unsigned, and the greatest of these codes, where it is
/// small: sums of several products then fit in 16 bits.
#[cfg(target_arch = "x86_64")]
pub(super) const fn small_codes(format: Format) -> Option<(i32, i32)> {
    match format {
        Format::Q4_0 => Some((8, 15)),
        Format::Q4_1 | Format::Q4_K => Some((0, 15)),
        Format::Q5_0 => Some((16, 31)),
        Format::Q5_1 | Format::Q5_K => Some((0, 31)),
        Format::Q2_K => Some((0, 3)),
        Format::Q3_K => Some((4, 7)),
        Format::Q6_K => Some((32, 63)),
        Format::MXFP4 => Some((12, 24)),
        Format::Q1_0 => Some((1, 2)),
        Format::Q8_0
        | Format::IQ4_NL
        | Format::IQ4_XS
        | Format::IQ2_XXS
        | Format::IQ2_XS
        | Format::IQ2_S
        | Format::IQ3_XXS
        | Format::IQ3_S
        | Format::IQ1_S
        | Format::IQ1_M
        | Format::F32
        | Format::F16
        | Format::BF16
        | Format::U32 => None,
    }
}

/// The first 16 values, padded with zeros. A copy of constant length is faster.
#[inline(always)]
fn pad_to_16<T: Copy + Default>(from: &[T]) -> [T; 16] {
    from.first_chunk().copied().unwrap_or_else(|| pad_with_zeros(from))
}

/// The sum of every 16 codes, as plain loops.
#[inline(always)]
pub(super) fn sums_of_16(q: &[i8], sums: &mut [i32; 32]) {
    for (sum, q) in sums.iter_mut().zip(q.as_chunks::<16>().0) {
        *sum = q.iter().map(|&q| i32::from(q)).sum();
    }
}

/// `FILL` and `multiplication` of a SIMD level with instructions `$features`. The level provides
/// `vector`, `grid`, `bias`, `transpose`, `plain` and `quantised`; levels that share the rest have a
/// type `$products` each.
macro_rules! panel_kernels {
    ($features:literal $(, $products:ident: $bound:path)?) => {
        crate::panel::panel_products!($features $(, $products: $bound)?);

        pub(super) const FILL: FillFn = |format, rows, panel| {
            // SAFETY: `Kernels::select` returns this level only if it was detected.
            unsafe { fill(format, rows, panel) }
        };

        #[target_feature(enable = $features)]
        fn fill(format: Format, rows: &[&[u8]], panel: &mut [f32]) {
            fill_panel::<LANES>(
                format,
                rows,
                panel,
                bias(format),
                |row, words| {
                    super::super::panel_rows::unpack(
                        format,
                        row,
                        words,
                        |format, bytes, out| widen(format, bytes, out),
                        |table, pairs, codes| look_up_pairs(table, pairs, codes),
                        |format, row, codes, scales| grid::unpack(format, row, -128, codes, scales),
                    );
                },
                |words, at, panel, first| transpose(words, at, panel, first),
            );
        }

        /// Converts values of a format without blocks to floats.
        #[inline]
        #[target_feature(enable = $features)]
        fn widen(format: Format, bytes: &[u8], out: &mut [f32]) {
            match format.block_bytes() {
                4 => {
                    let words = bytes.as_chunks::<4>().0;
                    out.iter_mut().zip(words).for_each(|(v, word)| *v = f32::from_le_bytes(*word));
                }
                _ => {
                    let (steps, rest) = out.as_chunks_mut::<LANES>();
                    for (i, out) in steps.iter_mut().enumerate() {
                        store_ps(out, 0, widen_half(format, bytes, 2 * LANES * i));
                    }
                    if !rest.is_empty() {
                        let last: [u8; 2 * LANES] =
                            pad_with_zeros(&bytes[2 * LANES * steps.len()..]);
                        let mut values = [0.0; LANES];
                        store_ps(&mut values, 0, widen_half(format, &last, 0));
                        rest.copy_from_slice(&values[..rest.len()]);
                    }
                }
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn widen_half(format: Format, bytes: &[u8], at: usize) -> V {
            if format == Format::BF16 { widen_bf16(bytes, at) } else { widen_f16(bytes, at) }
        }
    };
}
pub(super) use panel_kernels;

/// `multiplication` of a SIMD level with instructions `$features`. The level provides `quantised` and
/// `plain`.
macro_rules! panel_products {
    ($features:literal $(, $products:ident: $bound:path)?) => {
        /// The kernel that multiplies panels.
        pub(super) const fn multiplication<$($products: $bound)?>() -> PanelFn {
            |format, panel, k, x, sums| {
                // SAFETY: `Kernels::select` returns this level only if it was detected.
                unsafe { multiply::<$($products)?>(format, panel, k, x, sums) }
            }
        }

        /// Calls the product function for the class of the format.
        #[inline(never)] // as the kernels of `dot_of_rows`
        #[target_feature(enable = $features)]
        fn multiply<$($products: $bound)?>(
            format: Format,
            panel: &[f32],
            k: Range<usize>,
            x: &TokenRows<'_>,
            sums: &mut [[f32; PANEL_ROWS]],
        ) {
            x.check_bounds(sums.len(), &k, panel);
            match format.quants().map(|quants| (quants.group, quants.has_min)) {
                None => plain(panel, &k, x, sums),
                Some((16, false)) => quantised::<$($products,)? 16, false>(format, panel, &k, x, sums),
                Some((16, true)) => quantised::<$($products,)? 16, true>(format, panel, &k, x, sums),
                Some((_, false)) => quantised::<$($products,)? 32, false>(format, panel, &k, x, sums),
                Some((_, true)) => quantised::<$($products,)? 32, true>(format, panel, &k, x, sums),
            }
        }
    };
}
pub(super) use panel_products;
