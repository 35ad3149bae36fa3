//! The SIMD kernels. They are selected once at run time, so one binary runs on every processor.
//!
//! A SIMD level is an instruction set with its own folder, or `Scalar`: plain Rust for every
//! processor, in `scalar.rs` and `portable.rs`. All levels take the same activations and sum
//! integers exactly, so they differ only in the order and rounding of f32 sums. The order depends
//! only on lengths, never on addresses or threads.
//!
//! This crate uses no threads or tensors; the caller splits the work and chooses kernels by size.
#![allow(unsafe_code, reason = "SIMD intrinsics and unaligned loads")]

mod activation;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod cache_blocks;
mod grid;
#[cfg(target_arch = "aarch64")]
mod neon;
mod panel;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod panel_passes;
mod panel_rows;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod plain;
mod portable;
mod recurrent;
mod rows;
mod scalar;
mod scalar_panel;
mod store;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sum_rows;
mod tile;
mod transposed;

use std::ops::Range;

use hal::format::{Format, Q8Row, TransposedLayout};

pub use activation::{ActivateFn, GateFn, SoftCapFn};
pub use attention::{
    AddWeightedFn, CacheKernels, HeadRows, PAD, RowKernels, ScoresFn, SoftmaxFn, StoreFn, WidenFn,
};
pub use panel::{FillFn, PANEL_LEN, PANEL_ROWS, PanelFn, TokenRows, panel_columns};
pub use recurrent::{
    DeltaColumns, DeltaFn, DeltaToken, ExpFn, MAX_DELTA_COLUMNS, MultiplyAddFn, ScanFn, ScanRates,
    ScanRatesFn, ScanToken, WkvFn, WkvToken,
};
pub use rows::{DEFAULT_PREFETCH, FAR_PREFETCH, Matrix, RowIds, RowRun, RowsFn, prefetch};

/// Adds the sum of `h * row(id)` over a list of `(id, h)` to `y`: `matrix` is `[n_rows, n]`, `y` is
/// `[n]`.
pub type SumRowsFn = fn(matrix: Matrix<'_>, list: &[(u32, f32)], y: &mut [f32]);
/// Adds the sum of `h * row(slot)` over a list of `(slot, h)` to `y`, which is `[n_out]`.
///
/// Consecutive entries of the same group of neurons share one read of the group's scales, so a list
/// in the order of neurons is fastest. Slots that are not listed are not read.
pub type TransposedFn =
    fn(layout: &TransposedLayout, bytes: &[u8], list: &[(u32, f32)], y: &mut [f32]);

/// [`hal::format::quantize_q8`] of `x` `[n]` into `q`, `d` and `sum`.
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
    /// Codes, `[n]`; n is a multiple of 32.
    pub q: &'a [i8],
    /// Scale of each block, `[n / 32]`.
    pub d: &'a [f32],
    /// Sum of each block's codes, `[n / 32]`.
    pub sum: &'a [i32],
}

impl<'a> From<&'a Q8Row> for ActView<'a> {
    #[inline]
    fn from(row: &'a Q8Row) -> Self {
        ActView::Q8(Q8View { q: &row.q, d: &row.d, sum: &row.sum })
    }
}

impl<'a> From<&'a [f32]> for ActView<'a> {
    #[inline]
    fn from(x: &'a [f32]) -> Self {
        ActView::F32(x)
    }
}

/// A SIMD level: an instruction set for which kernels exist, or plain Rust.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Plain Rust.
    Scalar,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX2, FMA and F16C, with AVX-VNNI for prompts.
    AvxVnni,
    /// AVX-512 F, BW, VL and VNNI, and BMI2.
    Avx512,
    /// NEON.
    Neon,
    /// NEON with dot products of bytes (`sdot`; the feature `dotprod`): Apple M1, Graviton 2,
    /// Cortex-A76 and newer.
    NeonDot,
    /// [`Level::NeonDot`] with products of matrices of bytes (`smmla`; the feature `i8mm`) for panels:
    /// Apple M2, Graviton 3, Cortex-A710 and newer.
    NeonMatrix,
}

impl Level {
    /// Every level; the levels of one architecture are ordered from slowest to fastest.
    pub const ALL: [Level; 7] = [
        Level::Scalar,
        Level::Avx2,
        Level::AvxVnni,
        Level::Avx512,
        Level::Neon,
        Level::NeonDot,
        Level::NeonMatrix,
    ];

    /// The level's name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::AvxVnni => "avxvnni",
            Level::Avx512 => "avx512",
            Level::Neon => "neon",
            Level::NeonDot => "neon-dotprod",
            Level::NeonMatrix => "neon-i8mm",
        }
    }
}

/// The kernels of a SIMD level. They may be called only if the processor has the level's
/// instructions.
struct Table {
    dot: fn(Format) -> DotKernels,
    sum_rows: fn(Format) -> SumRowsFn,
    transposed: fn(Format) -> TransposedFn,
    panel: PanelKernels,
    quantize: QuantizeFn,
    sum_squares: fn(&[f32]) -> f32,
    attention: &'static attention::AttentionKernels,
    activate: ActivateFn,
    soft_cap: SoftCapFn,
    gate: GateFn,
    recurrent: &'static recurrent::RecurrentKernels,
}

/// Kernels that fill and multiply panels.
struct PanelKernels {
    fill: FillFn,
    multiply: PanelFn,
}

/// Kernels that multiply rows by one, four and eight tokens.
struct DotKernels {
    one: RowsFn<1>,
    four: RowsFn<4>,
    eight: RowsFn<8>,
}

/// The kernels of a level that this processor supports.
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
            Level::Avx2 => avx2::is_supported().then_some(&avx2::TABLE),
            #[cfg(target_arch = "x86_64")]
            Level::AvxVnni => avx2::has_vnni().then_some(&avx2::VNNI_TABLE),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::is_supported().then_some(&avx512::TABLE),
            #[cfg(not(target_arch = "x86_64"))]
            Level::Avx2 | Level::AvxVnni | Level::Avx512 => None,
            #[cfg(target_arch = "aarch64")]
            Level::Neon => neon::is_supported().then_some(&neon::TABLE),
            #[cfg(target_arch = "aarch64")]
            Level::NeonDot => neon::is_dot_supported().then_some(&neon::DOT_TABLE),
            #[cfg(target_arch = "aarch64")]
            Level::NeonMatrix => neon::is_matrix_supported().then_some(&neon::MATRIX_TABLE),
            #[cfg(not(target_arch = "aarch64"))]
            Level::Neon | Level::NeonDot | Level::NeonMatrix => None,
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
    #[inline]
    #[must_use]
    pub fn level(&self) -> Level {
        self.level
    }

    /// The kernel that multiplies weight rows by one token's activations. It panics unless the
    /// activations have the format of [`Format::activation`] and the length of a row.
    #[inline]
    #[must_use]
    pub fn rows(&self, format: Format) -> RowsFn<1> {
        (self.table.dot)(format).one
    }

    /// [`Kernels::rows`] for four tokens; each product has the same bits.
    #[inline]
    #[must_use]
    pub fn rows4(&self, format: Format) -> RowsFn<4> {
        (self.table.dot)(format).four
    }

    /// [`Kernels::rows`] for eight tokens: a row is unpacked once for all eight tokens. Each
    /// product has the same bits.
    #[inline]
    #[must_use]
    pub fn rows8(&self, format: Format) -> RowsFn<8> {
        (self.table.dot)(format).eight
    }

    /// The product of one weight row with one token's activations.
    #[inline]
    #[must_use]
    pub fn dot(&self, format: Format, row: &[u8], x: ActView<'_>) -> f32 {
        let mut out = [[0.0]];
        self.rows(format)(&RowRun::single(row), [x], &mut out);
        out[0][0]
    }

    /// The kernel that adds multiples of rows in the plain layout.
    #[inline]
    #[must_use]
    pub fn sum_rows(&self, format: Format) -> SumRowsFn {
        (self.table.sum_rows)(format)
    }

    /// The kernel that adds multiples of rows of a [`TransposedLayout`] in `format`.
    #[inline]
    #[must_use]
    pub fn transposed(&self, format: Format) -> TransposedFn {
        (self.table.transposed)(format)
    }

    /// Fills a panel with rows of weights.
    ///
    /// # Panics
    /// If there are more than [`PANEL_ROWS`] rows, or rows longer than [`panel_columns`].
    #[inline]
    pub fn fill_panel(&self, format: Format, rows: &[&[u8]], panel: &mut [f32]) {
        (self.table.panel.fill)(format, rows, panel);
    }

    /// Adds the products of a panel with several tokens to `sums`, which has one row per token.
    ///
    /// `k` is the range of columns with which the panel was filled.
    #[inline]
    pub fn multiply_panel(
        &self,
        format: Format,
        panel: &[f32],
        k: Range<usize>,
        x: &TokenRows<'_>,
        sums: &mut [[f32; PANEL_ROWS]],
    ) {
        (self.table.panel.multiply)(format, panel, k, x, sums);
    }

    /// Quantises `x` with the same bits as [`hal::format::quantize_q8`].
    #[inline]
    pub fn quantize(&self, x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
        (self.table.quantize)(x, q, d, sum);
    }

    /// The sum of squares of `x`.
    #[inline]
    #[must_use]
    pub fn sum_squares(&self, x: &[f32]) -> f32 {
        (self.table.sum_squares)(x)
    }

    /// Attention kernels for a cache in `format`, one of [`hal::op::KV_FORMATS`].
    ///
    /// # Panics
    /// If `format` is any other format.
    #[inline]
    #[must_use]
    pub fn cache(&self, format: Format) -> CacheKernels {
        (self.table.attention.cache)(format).expect("the format is one of `hal::op::KV_FORMATS`")
    }

    /// The kernel for the softmax of padded scores.
    #[inline]
    #[must_use]
    pub fn softmax(&self) -> SoftmaxFn {
        self.table.attention.softmax
    }

    /// The kernel for activation functions.
    #[inline]
    #[must_use]
    pub fn activate(&self) -> ActivateFn {
        self.table.activate
    }

    /// The kernel for limits by a hyperbolic tangent.
    #[inline]
    #[must_use]
    pub fn soft_cap(&self) -> SoftCapFn {
        self.table.soft_cap
    }

    /// The kernel for activation functions of gates.
    #[inline]
    #[must_use]
    pub fn gate(&self) -> GateFn {
        self.table.gate
    }

    /// The kernel for one token of the gated delta rule.
    #[inline]
    #[must_use]
    pub fn delta(&self) -> DeltaFn {
        self.table.recurrent.delta
    }

    /// Number of columns at which a call of [`Kernels::delta`] is fastest.
    #[inline]
    #[must_use]
    pub fn delta_columns(&self) -> usize {
        self.table.recurrent.delta_columns
    }

    /// The kernel for one token of the Mamba-2 recurrence.
    #[inline]
    #[must_use]
    pub fn scan(&self) -> ScanFn {
        self.table.recurrent.scan
    }

    /// The kernel for one token of the Mamba-1 recurrence.
    #[inline]
    #[must_use]
    pub fn scan_rates(&self) -> ScanRatesFn {
        self.table.recurrent.scan_rates
    }

    /// The kernel for one token of RWKV-7's recurrence.
    #[inline]
    #[must_use]
    pub fn wkv(&self) -> WkvFn {
        self.table.recurrent.wkv
    }

    /// The exponential function.
    #[inline]
    #[must_use]
    pub fn exp(&self) -> ExpFn {
        self.table.recurrent.exp
    }

    /// The kernel that adds one weight column of a convolution, times its inputs.
    #[inline]
    #[must_use]
    pub fn multiply_add(&self) -> MultiplyAddFn {
        self.table.recurrent.multiply_add
    }
}
