//! AVX2 with FMA and F16C: a block of 32 codes is one register.
//!
//! `vpmaddubsw` needs one unsigned operand. Unsigned codes are used directly. The magnitudes of
//! signed codes are multiplied by activations that carry the codes' signs. The sum of two products
//! of at most 128 * 127 fits in 16 bits.

mod activation;
mod attention;
mod block256;
mod block32;
mod grid;
mod panel;
mod plain;
mod quantize;
mod recurrent;
mod sum_rows;
mod transposed;
mod unpacked;
mod vector;

use std::arch::x86_64::*;

use hal::format::Format;

use super::rows::{Row, RowRun, dot_of_rows};
use super::tile::Q8Tile;
use super::unpacked::dot_unpacked;
use super::{ActView, DotKernels, PanelKernels, Table};
use vector::*;

pub(super) const TABLE: Table = Table {
    dot,
    sum_rows: sum_rows::sum_rows,
    transposed: transposed::transposed,
    panel: PanelKernels { fill: panel::FILL, multiply: panel::MULTIPLY },
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
    gate: activation::GATE,
    recurrent: &recurrent::RECURRENT,
};

pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

fn dot(format: Format) -> DotKernels {
    macro_rules! entry {
        ($dots:path) => {
            dot_of_rows!("avx2,fma,f16c", $dots)
        };
    }
    macro_rules! unpacked {
        ($format:ident) => {
            dot_unpacked!("avx2,fma,f16c", $format)
        };
    }
    match format {
        Format::F32 => entry!(plain::of_f32::dots),
        Format::F16 => entry!(plain::of_f16::dots),
        Format::BF16 => entry!(plain::of_bf16::dots),
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
        Format::IQ2_XXS => entry!(grid::iq2_xxs),
        Format::IQ2_XS => entry!(grid::iq2_xs),
        Format::IQ2_S => entry!(grid::iq2_s),
        Format::IQ3_XXS => entry!(grid::iq3_xxs),
        Format::IQ3_S => entry!(grid::iq3_s),
        Format::IQ1_S => entry!(grid::iq1_s),
        Format::IQ1_M => entry!(grid::iq1_m),
        Format::Q1_0 => unpacked!(Q1_0),
        Format::U32 => (super::scalar::TABLE.dot)(Format::U32),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn totals<const N: usize>(acc: [__m256; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for (out, acc) in out.iter_mut().zip(acc) {
        *out = total(acc);
    }
    out
}

/// The products of one tile: `factors` are the blocks' scales times the activations' scales, and
/// the lanes of `sums` are not tied to a block.
struct Products<const N: usize> {
    factors: [[f32; 16]; N],
    sums: [__m256; N],
}

impl<const N: usize> Products<N> {
    /// Starts a tile of 16 blocks of 32 values with these scales. The sums start with the negated
    /// contribution of `mins`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(scales: [__m256; 2], mins: Option<[__m256; 2]>, x: &[Q8Tile<'_>; N]) -> Self {
        let (mut factors, mut sums) = ([[0.0; 16]; N], [_mm256_setzero_ps(); N]);
        for (t, x) in x.iter().enumerate() {
            for half in 0..2 {
                let d = load_ps(x.d, 8 * half);
                store_ps(&mut factors[t], 8 * half, _mm256_mul_ps(scales[half], d));
                if let Some(mins) = mins {
                    let total =
                        _mm256_cvtepi32_ps(load_bytes(bytemuck::cast_slice(x.sum), 32 * half));
                    sums[t] = _mm256_fnmadd_ps(_mm256_mul_ps(mins[half], d), total, sums[t]);
                }
            }
        }
        Self { factors, sums }
    }

    /// Adds the products of a block with unsigned codes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add(&mut self, block: usize, codes: __m256i, x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let pairs =
                _mm256_maddubs_epi16(codes, load_bytes(bytemuck::cast_slice(x.q), 32 * block));
            let factor = _mm256_set1_ps(self.factors[t][block]);
            self.sums[t] = _mm256_fmadd_ps(sum_pairs(pairs), factor, self.sums[t]);
        }
    }

    /// Adds the products of a block with signed codes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_signed(&mut self, block: usize, codes: __m256i, x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let dot = signed_products(codes, load_bytes(bytemuck::cast_slice(x.q), 32 * block));
            let factor = _mm256_set1_ps(self.factors[t][block]);
            self.sums[t] = _mm256_fmadd_ps(dot, factor, self.sums[t]);
        }
    }

    /// Adds the tile's sums to the row's sums. Separate sums per tile let tiles overlap in the
    /// CPU's pipeline.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_to(self, acc: &mut [__m256; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = _mm256_add_ps(*acc, sum);
        }
    }
}

/// The products of a block of 256 values with one scale per 16 values. The block is half `half` of
/// a tile.
struct SubBlockProducts<const N: usize> {
    half: usize,
    scales: [f32; 16],
    sums: [__m256; N],
}

impl<const N: usize> SubBlockProducts<N> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(half: usize, scales: &[f32; 16], _: &[Q8Tile<'_>; N]) -> Self {
        Self { half, scales: *scales, sums: [_mm256_setzero_ps(); N] }
    }

    /// The `i`-th 32 activations of the block, and their scale.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn activations(&self, i: usize, x: &Q8Tile<'_>) -> (__m256i, __m256) {
        let q = load_bytes(bytemuck::cast_slice(x.q), 256 * self.half + 32 * i);
        (q, _mm256_set1_ps(x.d[8 * self.half + i]))
    }

    /// Adds the products of 32 values with signed codes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_signed(&mut self, i: usize, codes: __m256i, x: &[Q8Tile<'_>; N]) {
        let scale = repeat_pair(&self.scales, i);
        for (t, x) in x.iter().enumerate() {
            let (q, d) = self.activations(i, x);
            let factor = _mm256_mul_ps(scale, d);
            self.sums[t] = _mm256_fmadd_ps(signed_products(codes, q), factor, self.sums[t]);
        }
    }

    /// Adds the products of 32 values with unsigned codes and minimums.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add(&mut self, i: usize, codes: __m256i, mins: &[f32; 16], x: &[Q8Tile<'_>; N]) {
        let (scale, min) = (repeat_pair(&self.scales, i), repeat_pair(mins, i));
        for (t, x) in x.iter().enumerate() {
            let (q, d) = self.activations(i, x);
            let dot = sum_pairs(_mm256_maddubs_epi16(codes, q));
            let total = sum_pairs(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q));
            let value = _mm256_fnmadd_ps(min, total, _mm256_mul_ps(scale, dot));
            self.sums[t] = _mm256_fmadd_ps(value, d, self.sums[t]);
        }
    }

    /// Adds the products of all 256 values, whose codes are signed bytes.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_bytes(&mut self, codes: &[u8], x: &[Q8Tile<'_>; N]) {
        for i in 0..8 {
            self.add_signed(i, load_bytes(codes, 32 * i), x);
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_to(self, acc: &mut [__m256; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = _mm256_add_ps(*acc, sum);
        }
    }
}

/// Values `2 * i` and `2 * i + 1` in four lanes each, because the products of 16 values are in four
/// lanes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn repeat_pair(values: &[f32; 16], i: usize) -> __m256 {
    _mm256_set_m128(_mm_set1_ps(values[2 * i + 1]), _mm_set1_ps(values[2 * i]))
}

/// Sums of adjacent 16-bit values, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_pairs(pairs: __m256i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Sums of four products of signed codes with activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_products(codes: __m256i, q: __m256i) -> __m256 {
    sum_pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes)))
}

/// 16 f16 scales of consecutive blocks of `STRIDE` bytes; the first scale is at the beginning of
/// `tile`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn strided_scales<const STRIDE: usize>(tile: &[u8]) -> [__m256; 2] {
    let word = |i: usize| i16::from_le_bytes([tile[STRIDE * i], tile[STRIDE * i + 1]]);
    let eight = |i: usize| {
        _mm256_cvtph_ps(_mm_set_epi16(
            word(i + 7),
            word(i + 6),
            word(i + 5),
            word(i + 4),
            word(i + 3),
            word(i + 2),
            word(i + 1),
            word(i),
        ))
    };
    [eight(0), eight(8)]
}
