//! NEON, which every AArch64 processor that Rust's standard library supports has, and two levels
//! with more instructions for products of codes.
//!
//! The levels share all kernels except these products (`products.rs`, `panel_products.rs`), whose
//! integer sums are exact: a result has the same bits with each of them.

mod activation;
mod attention;
mod block256;
mod block32;
mod panel;
mod panel_products;
mod plain;
mod products;
mod quantize;
mod recurrent;
mod sum_rows;
mod transposed;
mod unpacked;
mod vector;

use std::arch::aarch64::*;
use std::arch::is_aarch64_feature_detected;

use hal::format::Format;

use super::rows::{Row, RowRun, dot_of_rows};
use super::tile::{Q8Tile, Tokens};
use super::{ActView, DotKernels, PanelKernels, Table};
use panel_products::{MatrixProducts, PanelProducts};
use products::{CodeProducts, DotProducts, WideningProducts};
use vector::*;

pub(super) const TABLE: Table = table::<WideningProducts, WideningProducts>();
pub(super) const DOT_TABLE: Table = table::<DotProducts, DotProducts>();
pub(super) const MATRIX_TABLE: Table = table::<DotProducts, MatrixProducts>();

/// The kernels of the level with the products `P` in dot kernels and `M` in panels.
const fn table<P: CodeProducts, M: PanelProducts>() -> Table {
    Table {
        dot: dot::<P>,
        sum_rows: sum_rows::sum_rows,
        transposed: transposed::transposed,
        panel: PanelKernels { fill: M::FILL, multiply: panel::multiplication::<M>() },
        quantize: |x, q, d, sum| {
            // SAFETY: `Kernels::select` returns this table only if `is_supported` holds.
            unsafe { quantize::quantize(x, q, d, sum) }
        },
        sum_squares: |x| {
            // SAFETY: as above.
            unsafe { plain::sum_squares(x) }
        },
        attention: &attention::ATTENTION,
        activate: activation::ACTIVATE,
        soft_cap: activation::SOFT_CAP,
        gate: activation::GATE,
        recurrent: &recurrent::RECURRENT,
    }
}

pub(super) fn is_supported() -> bool {
    is_aarch64_feature_detected!("neon")
}

pub(super) fn is_dot_supported() -> bool {
    is_supported() && is_aarch64_feature_detected!("dotprod")
}

pub(super) fn is_matrix_supported() -> bool {
    is_dot_supported() && is_aarch64_feature_detected!("i8mm")
}

fn dot<P: CodeProducts>(format: Format) -> DotKernels {
    macro_rules! entry {
        ($($format:ident)::+) => {
            dot_of_rows!("neon", <P: CodeProducts> $($format)::+::<P, N>)
        };
    }
    macro_rules! unpacked {
        ($format:ident) => {{
            #[inline]
            #[target_feature(enable = "neon")]
            fn dots<P: CodeProducts, const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
                const TILE: usize =
                    512 / Format::$format.block_values() * Format::$format.block_bytes();
                unpacked::dots::<P, TILE, N>(Format::$format, row, x)
            }
            dot_of_rows!("neon", <P: CodeProducts> dots::<P, N>)
        }};
    }
    match format {
        Format::F32 => dot_of_rows!("neon", plain::of_f32::dots),
        Format::F16 => dot_of_rows!("neon", plain::of_f16::dots),
        Format::BF16 => dot_of_rows!("neon", plain::of_bf16::dots),
        Format::Q4_0 => entry!(block32::q4_0),
        Format::Q4_1 => entry!(block32::q4_1),
        Format::Q5_0 => entry!(block32::q5_0),
        Format::Q5_1 => entry!(block32::q5_1),
        Format::Q8_0 => entry!(block32::q8_0),
        Format::Q2_K => entry!(block256::q2_k),
        Format::Q3_K => entry!(block256::q3_k),
        Format::Q4_K => entry!(block256::q4_k),
        Format::Q5_K => entry!(block256::q5_k),
        Format::Q6_K => entry!(block256::q6_k),
        Format::IQ4_NL => entry!(block32::iq4_nl),
        Format::IQ4_XS => entry!(block256::iq4_xs),
        Format::MXFP4 => entry!(block32::mxfp4),
        Format::IQ2_XXS => unpacked!(IQ2_XXS),
        Format::IQ2_XS => unpacked!(IQ2_XS),
        Format::IQ2_S => unpacked!(IQ2_S),
        Format::IQ3_XXS => unpacked!(IQ3_XXS),
        Format::IQ3_S => unpacked!(IQ3_S),
        Format::IQ1_S => unpacked!(IQ1_S),
        Format::IQ1_M => unpacked!(IQ1_M),
        Format::Q1_0 => unpacked!(Q1_0),
        Format::U32 => (super::scalar::TABLE.dot)(Format::U32),
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn totals<const N: usize>(acc: [float32x4_t; N]) -> [f32; N] {
    acc.map(|acc| vaddvq_f32(acc))
}

/// The products of one tile: `factors` are the blocks' scales times the activations' scales. Lane i
/// of `sums` belongs to blocks i, i + 4, i + 8 and i + 12.
struct Products<const N: usize> {
    factors: [[float32x4_t; 4]; N],
    sums: [float32x4_t; N],
}

impl<const N: usize> Products<N> {
    /// Starts a tile of 16 blocks of 32 values with these scales. The sums start with the negated
    /// contribution of `mins`.
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(scales: [float32x4_t; 4], mins: Option<[float32x4_t; 4]>, x: &[Q8Tile<'_>; N]) -> Self {
        let mut products =
            Self { factors: [[vdupq_n_f32(0.0); 4]; N], sums: [vdupq_n_f32(0.0); N] };
        for (t, x) in x.iter().enumerate() {
            let d = [load_ps(x.d, 0), load_ps(x.d, 8)];
            for (i, d) in d.into_iter().flatten().enumerate() {
                products.factors[t][i] = vmulq_f32(scales[i], d);
                if let Some(mins) = mins {
                    let sum = load_bytes(bytemuck::cast_slice(x.sum), 16 * i);
                    let sum = vcvtq_f32_s32(vreinterpretq_s32_u8(sum));
                    products.sums[t] = vfmsq_f32(products.sums[t], vmulq_f32(mins[i], d), sum);
                }
            }
        }
        products
    }

    /// Adds the products of the four blocks from `first` on, whose codes are too large by `OFFSET`.
    /// `WIDE` is set for codes of more than six bits.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add<P: CodeProducts, const WIDE: bool, const OFFSET: i32>(
        &mut self,
        first: usize,
        codes: [[int8x16_t; 2]; 4],
        x: &[Q8Tile<'_>; N],
    ) {
        for (t, x) in x.iter().enumerate() {
            let dots = std::array::from_fn(|i| {
                let at = 32 * (first + i);
                let q = [load_codes(x, at), load_codes(x, at + 16)];
                P::of_32::<WIDE>(codes[i], q)
            });
            let mut dots = block_sums(dots);
            if OFFSET != 0 {
                // One operation for four blocks, instead of one for every 16 codes.
                let sums = load_bytes(bytemuck::cast_slice(x.sum), 4 * first);
                dots = vmlsq_n_s32(dots, vreinterpretq_s32_u8(sums), OFFSET);
            }
            let factor = self.factors[t][first / 4];
            self.sums[t] = vfmaq_f32(self.sums[t], vcvtq_f32_s32(dots), factor);
        }
    }

    /// Adds the tile's sums to the row's sums. Separate sums per tile let tiles overlap in the
    /// CPU's pipeline.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add_to(self, acc: &mut [float32x4_t; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = vaddq_f32(*acc, sum);
        }
    }
}

/// The products of a block of 256 values with one scale per 16 values. The block is half `half` of
/// a tile.
struct SubBlockProducts<const N: usize> {
    half: usize,
    scales: [f32; 16],
    sums: [float32x4_t; N],
}

impl<const N: usize> SubBlockProducts<N> {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(half: usize, scales: &[f32; 16], _: &[Q8Tile<'_>; N]) -> Self {
        Self { half, scales: *scales, sums: [vdupq_n_f32(0.0); N] }
    }

    /// Adds the integer sums of each 16 values of one half of the block, multiplied by `factors`.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add_sums(
        &mut self,
        part: usize,
        factors: &[f32; 16],
        x: &[Q8Tile<'_>; N],
        sums: impl Fn(usize, int8x16_t) -> int32x4_t,
    ) {
        let factors = load_ps(factors, 8 * part);
        for (t, x) in x.iter().enumerate() {
            // Two consecutive groups share a scale of the activations.
            let d = load_ps(x.d, 8 * self.half)[part];
            for (i, d) in [vzip1q_f32(d, d), vzip2q_f32(d, d)].into_iter().enumerate() {
                let dots = std::array::from_fn(|g| {
                    let at = 256 * self.half + 128 * part + 64 * i + 16 * g;
                    sums(4 * i + g, load_codes(x, at))
                });
                let factor = vmulq_f32(factors[i], d);
                self.sums[t] = vfmaq_f32(self.sums[t], vcvtq_f32_s32(block_sums(dots)), factor);
            }
        }
    }

    /// Adds the products of one half of the block.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add<P: CodeProducts>(&mut self, part: usize, codes: [int8x16_t; 8], x: &[Q8Tile<'_>; N]) {
        let scales = self.scales;
        self.add_sums(part, &scales, x, |i, q| P::of_16(codes[i], q));
    }

    /// Subtracts the minimums of one half of the block.
    #[inline]
    #[target_feature(enable = "neon")]
    fn subtract_mins<P: CodeProducts>(
        &mut self,
        part: usize,
        mins: &[f32; 16],
        x: &[Q8Tile<'_>; N],
    ) {
        let mins = mins.map(|min| -min);
        self.add_sums(part, &mins, x, |_, q| P::sums_of_16(q));
    }

    /// Adds the products of all 256 values, whose codes are signed bytes.
    #[inline]
    #[target_feature(enable = "neon")]
    fn add_bytes<P: CodeProducts>(&mut self, codes: &[u8], x: &[Q8Tile<'_>; N]) {
        for part in 0..2 {
            let load = |i| vreinterpretq_s8_u8(load_bytes(codes, 128 * part + 16 * i));
            self.add::<P>(part, std::array::from_fn(load), x);
        }
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn add_to(self, acc: &mut [float32x4_t; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = vaddq_f32(*acc, sum);
        }
    }
}

/// 16 quantised activations, from index `at` on.
#[inline]
#[target_feature(enable = "neon")]
fn load_codes(x: &Q8Tile<'_>, at: usize) -> int8x16_t {
    vreinterpretq_s8_u8(load_bytes(bytemuck::cast_slice(x.q), at))
}

/// The sum of each vector's lanes.
#[inline]
#[target_feature(enable = "neon")]
fn block_sums(dots: [int32x4_t; 4]) -> int32x4_t {
    let [a, b, c, d] = dots;
    vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d))
}

/// 16 f16 scales of consecutive blocks of `STRIDE` bytes; the first scale is at the beginning of
/// `tile`.
#[inline]
#[target_feature(enable = "neon")]
fn strided_scales<const STRIDE: usize>(tile: &[u8]) -> [float32x4_t; 4] {
    let eight = |first: usize| {
        let words: [u16; 8] = std::array::from_fn(|i| {
            let at = STRIDE * (first + i);
            u16::from_le_bytes([tile[at], tile[at + 1]])
        });
        // SAFETY: `words` has 8 words.
        widen_eight(unsafe { vld1q_u16(words.as_ptr()) })
    };
    let ([a, b], [c, d]) = (eight(0), eight(8));
    [a, b, c, d]
}
