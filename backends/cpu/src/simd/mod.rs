//! The fast kernels, chosen once at run time: one binary serves every processor.
//!
//! A level is a set of instructions with a folder of its own; `Scalar` is plain Rust and what other
//! processors than x86-64 and AArch64 run. All levels take the same activations and sum
//! integers exactly, so they differ only in the order of f32 sums. That order is fixed: it depends on
//! the lengths alone, never on addresses or threads.
//!
//! Absent on purpose: threads, tensors, and any choice by size. The team above splits the work.
#![allow(unsafe_code, reason = "instructions and loads that the compiler cannot vouch for")]

mod activation;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod apart;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod panel_parts;
mod panel_rows;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod plain;
mod portable;
mod rows;
mod scalar;
mod scalar_panel;
mod store;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sum_rows;
mod tile;
mod transposed;

#[cfg(test)]
mod activation_tests;
#[cfg(test)]
mod panel_tests;
#[cfg(test)]
mod tests;

use std::ops::Range;

use hal::format::{Format, Q8Row, TransposedLayout};

pub use activation::ActivateFn;
pub use attention::{CacheKernels, HeadRows, PAD, ScoresFn, SoftmaxFn, StoreFn, WeighFn, WidenFn};
pub use panel::{FillFn, PANEL_LEN, PANEL_ROWS, PanelFn, TokenRows, panel_stretch};
pub use rows::{Matrix, RowIds, RowRun, RowsFn, prefetch};

/// `y += sum of h * row(id)` over a list of `(id, h)`: `matrix` `[n_rows, n]`, `y` `[n]`.
pub type SumRowsFn = fn(matrix: Matrix<'_>, list: &[(u32, f32)], y: &mut [f32]);
/// `y += sum of h * row(slot)` over a list of `(slot, h)`, `y` `[n_out]`.
///
/// Neighbours in the list that belong to the same group of neurons share the reading of its scales,
/// so a list in the order of neurons is the fastest. Nothing is read of slots that are not listed.
pub type TransposedFn =
    fn(layout: &TransposedLayout, bytes: &[u8], list: &[(u32, f32)], y: &mut [f32]);

/// [`hal::format::quantize_q8`]: `x` `[n]` to `q`, `d` and `sum`.
type QuantizeFn = fn(x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]);

/// The activations of one token.
#[derive(Clone, Copy, Debug)]
pub enum ActView<'a> {
    /// For F32, F16 and BF16 weights.
    F32(&'a [f32]),
    /// For quantised weights.
    Q8(Q8View<'a>),
}

/// A [`Q8Row`] by reference.
#[derive(Clone, Copy, Debug)]
pub struct Q8View<'a> {
    /// `[n]`, n a multiple of 32
    pub q: &'a [i8],
    /// `[n / 32]`
    pub d: &'a [f32],
    /// `[n / 32]`
    pub sum: &'a [i32],
}

impl<'a> From<&'a Q8Row> for ActView<'a> {
    fn from(row: &'a Q8Row) -> Self {
        ActView::Q8(Q8View { q: &row.q, d: &row.d, sum: &row.sum })
    }
}

impl<'a> From<&'a [f32]> for ActView<'a> {
    fn from(x: &'a [f32]) -> Self {
        ActView::F32(x)
    }
}

/// A set of instructions that kernels are written for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
    /// NEON.
    Neon,
}

impl Level {
    /// Every level; of those that one processor can have, slowest first.
    pub const ALL: [Level; 4] = [Level::Scalar, Level::Avx2, Level::Avx512, Level::Neon];

    /// The level's name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
            Level::Neon => "neon",
        }
    }
}

/// What a level provides. Its functions may be called only where its instructions exist.
struct Table {
    dot: fn(Format) -> Dot,
    sum_rows: fn(Format) -> SumRowsFn,
    transposed: fn(Format) -> TransposedFn,
    panel: Panel,
    quantize: QuantizeFn,
    sum_squares: fn(&[f32]) -> f32,
    attention: &'static attention::Attention,
    activate: ActivateFn,
}

/// How panels are made and multiplied.
struct Panel {
    fill: FillFn,
    times: PanelFn,
}

/// A product for one and for four tokens.
struct Dot {
    one: RowsFn<1>,
    four: RowsFn<4>,
}

/// The kernels of one level that this processor has.
#[derive(Clone, Copy)]
pub struct Kernels {
    level: Level,
    table: &'static Table,
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("level", &self.level).finish_non_exhaustive()
    }
}

impl Kernels {
    /// The kernels of `level`; `None` if this processor lacks the instructions.
    #[must_use]
    pub fn select(level: Level) -> Option<Self> {
        let table = match level {
            Level::Scalar => Some(&scalar::TABLE),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::detected().then_some(&avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::detected().then_some(&avx512::TABLE),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::Avx512 => None,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::detected().then_some(&neon::TABLE),
            #[cfg(not(target_arch = "aarch64"))]
            Level::Neon => None,
        };
        table.map(|table| Self { level, table })
    }

    /// The fastest kernels that this processor can run.
    #[must_use]
    pub fn best() -> Self {
        let plain = Self { level: Level::Scalar, table: &scalar::TABLE };
        Level::ALL.into_iter().rev().find_map(Self::select).unwrap_or(plain)
    }

    /// The level of these kernels.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The products of weight rows with one token's activations, which must be of the kind
    /// [`Format::activation`] names and as long as a row; the function panics if they are not.
    #[must_use]
    pub fn rows(&self, format: Format) -> RowsFn<1> {
        (self.table.dot)(format).one
    }

    /// [`Kernels::rows`] with four tokens at once; each product has the same bits.
    #[must_use]
    pub fn rows4(&self, format: Format) -> RowsFn<4> {
        (self.table.dot)(format).four
    }

    /// The product of one weight row with one token's activations.
    #[must_use]
    pub fn dot(&self, format: Format, row: &[u8], x: ActView<'_>) -> f32 {
        let mut out = [[0.0]];
        self.rows(format)(&RowRun::one(row), [x], &mut out);
        out[0][0]
    }

    /// Adds multiples of rows in the ordinary layout.
    #[must_use]
    pub fn sum_rows(&self, format: Format) -> SumRowsFn {
        (self.table.sum_rows)(format)
    }

    /// Adds multiples of rows of a [`TransposedLayout`] of this format.
    #[must_use]
    pub fn transposed(&self, format: Format) -> TransposedFn {
        (self.table.transposed)(format)
    }

    /// Fills a panel with rows of weights.
    ///
    /// # Panics
    /// If there are more than [`PANEL_ROWS`] rows, or longer ones than [`panel_stretch`].
    pub fn fill_panel(&self, format: Format, rows: &[&[u8]], panel: &mut [f32]) {
        (self.table.panel.fill)(format, rows, panel);
    }

    /// Adds the products of a panel with several tokens to `sums`, a row for each.
    ///
    /// `k` are the columns that the panel was filled with.
    pub fn times_panel(
        &self,
        format: Format,
        panel: &[f32],
        k: Range<usize>,
        x: &TokenRows<'_>,
        sums: &mut [[f32; PANEL_ROWS]],
    ) {
        (self.table.panel.times)(format, panel, k, x, sums);
    }

    /// [`hal::format::quantize_q8`], to the bit.
    pub fn quantize(&self, x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
        (self.table.quantize)(x, q, d, sum);
    }

    /// The sum of squares of `x`.
    #[must_use]
    pub fn sum_squares(&self, x: &[f32]) -> f32 {
        (self.table.sum_squares)(x)
    }

    /// What attention needs of a cache in `format`, one of [`hal::op::KV_FORMATS`].
    ///
    /// # Panics
    /// For another format.
    #[must_use]
    pub fn cache(&self, format: Format) -> CacheKernels {
        (self.table.attention.cache)(format).expect("checked by hal: a format of the cache")
    }

    /// Softmax of padded scores.
    #[must_use]
    pub fn softmax(&self) -> SoftmaxFn {
        self.table.attention.softmax
    }

    /// Activation functions.
    #[must_use]
    pub fn activate(&self) -> ActivateFn {
        self.table.activate
    }
}
