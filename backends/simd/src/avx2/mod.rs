//! AVX2 with FMA and F16C: a block of 32 codes is one register.
//!
//! `vpmaddubsw` needs one unsigned operand. Unsigned codes are used directly, and those of Q4_0, Q5_0
//! and Q1_0 are taken as unsigned codes with a minimum. The magnitudes of other signed codes are
//! multiplied by activations that carry the codes' signs. The sum of two products of at most
//! 128 * 127 fits in 16 bits.

mod activation;
mod attention;
mod block256;
mod block32;
mod grid;
mod panel;
mod panel_vnni;
mod plain;
mod quantize;
mod recurrent;
mod sum_rows;
mod transposed;
mod vector;

use std::arch::x86_64::*;

use hal::format::Format;

use super::rows::{RowRun, dot_of_rows};
use super::tile::Q8Tile;
use super::{ActView, DotKernels, PanelKernels, Table};
use vector::*;

pub(super) const TABLE: Table = Table {
    dot,
    sum_rows: sum_rows::sum_rows,
    transposed: transposed::transposed,
    panel: PanelKernels { fill: panel::FILL, multiply: panel::multiplication() },
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
};

/// The kernels of AVX2 with other products of panels.
pub(super) const VNNI_TABLE: Table =
    Table { panel: PanelKernels { fill: panel::FILL, multiply: panel_vnni::MULTIPLY }, ..TABLE };

/// Whether the processor has the instructions of [`VNNI_TABLE`].
pub(super) fn has_vnni() -> bool {
    is_supported() && is_x86_feature_detected!("avxvnni")
}

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
        Format::Q1_0 => entry!(block32::q1_0),
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

/// The products of one tile with one scale per block of 32 values: `factors` are the blocks' scales
/// times the activations' scales, and the lanes of `sums` are not tied to a block.
struct Products<const N: usize> {
    factors: [[f32; 16]; N],
    /// Two sums, because a sum waits four cycles for each product.
    sums: [[__m256; 2]; N],
}

impl<const N: usize> Products<N> {
    /// Starts a tile of 16 blocks with these scales.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(scales: [__m256; 2], x: &[Q8Tile<'_>; N]) -> Self {
        let mut factors = [[0.0; 16]; N];
        for (factors, x) in factors.iter_mut().zip(x) {
            for (half, &scales) in scales.iter().enumerate() {
                store_ps(factors, 8 * half, _mm256_mul_ps(scales, load_ps(x.d, 8 * half)));
            }
        }
        Self { factors, sums: [[_mm256_setzero_ps(); 2]; N] }
    }

    /// [`Self::new`] with sums that start with the negated contribution of the blocks' minimums.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn with_mins(scales: [__m256; 2], mins: [__m256; 2], x: &[Q8Tile<'_>; N]) -> Self {
        let mut products = Self::new(scales, x);
        for (sums, x) in products.sums.iter_mut().zip(x) {
            for (half, sum) in sums.iter_mut().enumerate() {
                let min = _mm256_mul_ps(mins[half], load_ps(x.d, 8 * half));
                let total = load_bytes(bytemuck::cast_slice(x.sum), 32 * half);
                *sum = _mm256_fnmadd_ps(min, _mm256_cvtepi32_ps(total), *sum);
            }
        }
        products
    }

    /// Adds the products of blocks `4 * quad` to `4 * quad + 3`, whose codes are from 0 to 32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_four(&mut self, quad: usize, codes: [__m256i; 4], x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let dots = sum_four(codes, |codes, k| {
                _mm256_maddubs_epi16(codes, load_codes(x, 4 * quad + k))
            });
            let factors = repeat_four(&self.factors[t], quad);
            self.sums[t][0] = _mm256_fmadd_ps(dots, factors, self.sums[t][0]);
        }
    }

    /// [`Self::add_four`] for codes from -32 to 32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_four_signed(&mut self, quad: usize, codes: [__m256i; 4], x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let dots =
                sum_four(codes, |codes, k| signed_products(codes, load_codes(x, 4 * quad + k)));
            let factors = repeat_four(&self.factors[t], quad);
            self.sums[t][0] = _mm256_fmadd_ps(dots, factors, self.sums[t][0]);
        }
    }

    /// Adds the products of blocks `2 * pair` and `2 * pair + 1` with signed codes of any magnitude.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_signed(&mut self, pair: usize, codes: [__m256i; 2], x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            for (k, codes) in codes.into_iter().enumerate() {
                let dot = sum_pairs(signed_products(codes, load_codes(x, 2 * pair + k)));
                let factor = _mm256_set1_ps(self.factors[t][2 * pair + k]);
                self.sums[t][k] = _mm256_fmadd_ps(dot, factor, self.sums[t][k]);
            }
        }
    }

    /// Adds the tile's sums to the row's sums. Separate sums per tile let tiles overlap in the
    /// CPU's pipeline.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_to(self, acc: &mut [__m256; N]) {
        for (acc, sums) in acc.iter_mut().zip(self.sums) {
            *acc = _mm256_add_ps(*acc, _mm256_add_ps(sums[0], sums[1]));
        }
    }
}

/// One number for each 16 values of a block of 256: register `q` belongs to values `128 * q` to
/// `128 * q + 127`, in the order of the lanes of [`sum_four`].
#[derive(Clone, Copy)]
struct BySixteen([__m256; 2]);

impl BySixteen {
    /// 16 signed bytes times `d`.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn of_bytes(bytes: __m128i, d: __m256) -> Self {
        let order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
        let bytes = _mm_shuffle_epi8(bytes, order);
        let eight = |bytes| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
        Self([eight(bytes), eight(_mm_unpackhi_epi64(bytes, bytes))])
    }
}

/// The products of a block of 256 values with one scale per 16 values. The block is half `half` of
/// a tile.
struct SubBlockProducts<const N: usize> {
    half: usize,
    scales: BySixteen,
    sums: [__m256; N],
}

impl<const N: usize> SubBlockProducts<N> {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn new(half: usize, scales: BySixteen, _: &[Q8Tile<'_>; N]) -> Self {
        Self { half, scales, sums: [_mm256_setzero_ps(); N] }
    }

    /// Adds the products of values `128 * q` to `128 * q + 127`, whose codes are from -32 to 32.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add_signed(&mut self, q: usize, codes: [__m256i; 4], x: &[Q8Tile<'_>; N]) {
        let quad = 2 * self.half + q;
        for (t, x) in x.iter().enumerate() {
            let dots =
                sum_four(codes, |codes, k| signed_products(codes, load_codes(x, 4 * quad + k)));
            let factors = _mm256_mul_ps(self.scales.0[q], repeat_four(x.d, quad));
            self.sums[t] = _mm256_fmadd_ps(dots, factors, self.sums[t]);
        }
    }

    /// Adds the products of values `128 * q` to `128 * q + 127`, whose codes are from 0 to 32, with
    /// minimums.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn add(&mut self, q: usize, codes: [__m256i; 4], mins: &BySixteen, x: &[Q8Tile<'_>; N]) {
        let quad = 2 * self.half + q;
        for (t, x) in x.iter().enumerate() {
            let product = |codes, k| _mm256_maddubs_epi16(codes, load_codes(x, 4 * quad + k));
            let dots = sum_four(codes, product);
            let totals = sum_four([_mm256_set1_epi8(1); 4], product);
            let scaled = _mm256_mul_ps(self.scales.0[q], dots);
            let values = _mm256_fnmadd_ps(mins.0[q], totals, scaled);
            self.sums[t] = _mm256_fmadd_ps(values, repeat_four(x.d, quad), self.sums[t]);
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

/// The activations of block `block`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn load_codes(x: &Q8Tile<'_>, block: usize) -> __m256i {
    load_bytes(bytemuck::cast_slice(x.q), 32 * block)
}

/// Values `4 * quad` to `4 * quad + 3` in each half.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn repeat_four(values: &[f32; 16], quad: usize) -> __m256 {
    let [a, b, c, d] = values.as_chunks().0[quad];
    let four = _mm_setr_ps(a, b, c, d);
    _mm256_set_m128(four, four)
}

/// The sums of the products of four blocks of 32 values: lane `k` has those of the first 16 values
/// of block `k`, lane `4 + k` those of its other values.
///
/// `product` returns a block's products with sums of pairs in 16 bits, and eight products are summed
/// in 16 bits: 8 * 32 * 127 fits. Four blocks share the conversion to floats and the
/// multiplication by their factors.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_four(codes: [__m256i; 4], product: impl Fn(__m256i, usize) -> __m256i) -> __m256 {
    let [a, b, c, d] = codes;
    let ab = _mm256_hadd_epi16(product(a, 0), product(b, 1));
    let cd = _mm256_hadd_epi16(product(c, 2), product(d, 3));
    sum_pairs(_mm256_hadd_epi16(ab, cd))
}

/// Sums of adjacent 16-bit values, as floats.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sum_pairs(pairs: __m256i) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}

/// Sums of two products of signed codes with activations.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn signed_products(codes: __m256i, q: __m256i) -> __m256i {
    _mm256_maddubs_epi16(_mm256_abs_epi8(codes), _mm256_sign_epi8(q, codes))
}

/// 16 f16 scales of consecutive blocks of `STRIDE` bytes; the first scale is at the beginning of
/// `tile`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn strided_scales<const STRIDE: usize>(tile: &[u8]) -> [__m256; 2] {
    let eight = |first: usize| {
        // Word i of these 16 bytes is the scale of block i.
        let at = |i: usize| load_half(tile, STRIDE * first + (STRIDE - 2) * i);
        let v = _mm_blend_epi16::<0b0000_0010>(at(0), at(1));
        let v = _mm_blend_epi16::<0b0000_0100>(v, at(2));
        let v = _mm_blend_epi16::<0b0000_1000>(v, at(3));
        let v = _mm_blend_epi16::<0b0001_0000>(v, at(4));
        let v = _mm_blend_epi16::<0b0010_0000>(v, at(5));
        let v = _mm_blend_epi16::<0b0100_0000>(v, at(6));
        _mm256_cvtph_ps(_mm_blend_epi16::<0b1000_0000>(v, at(7)))
    };
    [eight(0), eight(8)]
}
