//! AVX-512 with VNNI: one `vpdpbusd` multiplies 64 codes by 64 activations.
//!
//! `vpdpbusd` takes unsigned codes. The codes of Q4_0, Q5_0 and Q1_0 are stored unsigned, and their
//! offset is subtracted as a minimum. To other signed codes the kernels add a constant, and
//! subtract its contribution by a second integer product.

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

pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("bmi2")
        && super::avx2::is_supported()
}

fn dot(format: Format) -> DotKernels {
    macro_rules! entry {
        ($dots:path $(, $four:path)?) => {
            dot_of_rows!("avx512bw,avx512vl,avx512vnni", $dots $(, $four)?)
        };
    }
    macro_rules! grid {
        ($dots:path) => {
            dot_of_rows!("bmi2,avx512bw,avx512vl,avx512vnni", $dots)
        };
    }
    match format {
        Format::F32 => entry!(plain::of_f32::dots),
        Format::F16 => entry!(plain::of_f16::dots),
        Format::BF16 => entry!(plain::of_bf16::dots),
        Format::Q4_0 => entry!(block32::q4_0, block32::q4_0_four),
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
        Format::Q1_0 => entry!(block32::q1_0),
        Format::IQ2_XXS => grid!(grid::iq2_xxs),
        Format::IQ2_XS => grid!(grid::iq2_xs),
        Format::IQ2_S => grid!(grid::iq2_s),
        Format::IQ3_XXS => grid!(grid::iq3_xxs),
        Format::IQ3_S => grid!(grid::iq3_s),
        Format::IQ1_S => grid!(grid::iq1_s),
        Format::IQ1_M => grid!(grid::iq1_m),
        Format::U32 => (super::scalar::TABLE.dot)(Format::U32),
    }
}

/// The products of one tile: `factors` are the blocks' scales times the activations' scales, and
/// the lanes of `sums` are not tied to a block.
struct Products<const N: usize> {
    factors: [__m512; N],
    sums: [__m512; N],
}

impl<const N: usize> Products<N> {
    /// Starts a tile of 16 blocks of 32 values with these scales.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn new(scales: __m512, x: &[Q8Tile<'_>; N]) -> Self {
        let mut factors = [zero(); N];
        for (factors, x) in factors.iter_mut().zip(x) {
            *factors = mul(scales, load_ps(x.d, 0));
        }
        Self { factors, sums: [zero(); N] }
    }

    /// [`Self::new`] with sums that start with the negated contribution of the blocks' minimums.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn with_mins(scales: __m512, mins: __m512, x: &[Q8Tile<'_>; N]) -> Self {
        let mut products = Self::new(scales, x);
        for (sum, x) in products.sums.iter_mut().zip(x) {
            let total = load_bytes(bytemuck::cast_slice(x.sum), 0);
            *sum = fnmadd(mul(mins, load_ps(x.d, 0)), _mm512_cvtepi32_ps(total), *sum);
        }
        products
    }

    /// Adds the products of blocks `2 * pair` and `2 * pair + 1`, whose unsigned codes are `codes`.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add(&mut self, pair: usize, codes: __m512i, x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, load_codes(x, pair));
            self.add_dot(pair, t, _mm512_cvtepi32_ps(dot));
        }
    }

    /// Adds the products of blocks `4 * quad` to `4 * quad + 3`. `codes[0]` has the unsigned codes
    /// of the first half of each block, `codes[1]` those of the second half.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_halves(&mut self, quad: usize, codes: [__m512i; 2], x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let [firsts, seconds] = load_halves(x, quad);
            let dot = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[0], firsts);
            let dot = _mm512_dpbusd_epi32(dot, codes[1], seconds);
            self.add_quad(quad, t, _mm512_cvtepi32_ps(dot));
        }
    }

    /// [`Self::add_halves`] for codes to which `SHIFT` (modulo 256) was added.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_shifted_halves<const SHIFT: i8>(
        &mut self,
        quad: usize,
        codes: [__m512i; 2],
        x: &[Q8Tile<'_>; N],
    ) {
        let (none, shift) = (_mm512_setzero_si512(), _mm512_set1_epi8(SHIFT));
        for (t, x) in x.iter().enumerate() {
            let [firsts, seconds] = load_halves(x, quad);
            let dot = _mm512_dpbusd_epi32(none, codes[0], firsts);
            let dot = _mm512_dpbusd_epi32(dot, codes[1], seconds);
            let shifted = _mm512_dpbusd_epi32(none, shift, firsts);
            let shifted = _mm512_dpbusd_epi32(shifted, shift, seconds);
            self.add_quad(quad, t, _mm512_cvtepi32_ps(_mm512_sub_epi32(dot, shifted)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_quad(&mut self, quad: usize, t: usize, dot: __m512) {
        let factors = _mm512_permutexvar_ps(four_lanes_each(quad), self.factors[t]);
        self.sums[t] = fmadd(dot, factors, self.sums[t]);
    }

    /// Adds the products of two blocks with signed codes, to which the function adds 128.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_signed(&mut self, pair: usize, codes: __m512i, x: &[Q8Tile<'_>; N]) {
        let codes = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));
        for (t, x) in x.iter().enumerate() {
            self.add_dot(pair, t, shifted_dot::<-128>(codes, load_codes(x, pair)));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_dot(&mut self, pair: usize, t: usize, dot: __m512) {
        // The lower eight lanes belong to the pair's first block, the upper eight to its second.
        let second = _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
        let spread = _mm512_add_epi32(second, _mm512_set1_epi32(2 * pair as i32));
        let factors = _mm512_permutexvar_ps(spread, self.factors[t]);
        self.sums[t] = fmadd(dot, factors, self.sums[t]);
    }

    /// The products of each row, where the first half of the tile belongs to one row and the second
    /// half to another. Their sums are in the lanes that they have with the row alone.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn of_two_rows(self) -> [Self; 2] {
        let (mut first, mut second) = (self.sums, self.sums);
        for (first, second) in first.iter_mut().zip(&mut second) {
            *second = _mm512_maskz_shuffle_f32x4::<0b00_00_11_10>(0x00FF, *second, *second);
            *first = _mm512_maskz_mov_ps(0x00FF, *first);
        }
        [first, second].map(|sums| Self { factors: self.factors, sums })
    }

    /// Adds the tile's sums to the row's sums. Separate sums per tile let tiles overlap in the
    /// CPU's pipeline.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_to(self, acc: &mut [__m512; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = add(*acc, sum);
        }
    }
}

/// Lane indices `4 * quad` to `4 * quad + 3`, each in four lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn four_lanes_each(quad: usize) -> __m512i {
    let four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    _mm512_add_epi32(four, _mm512_set1_epi32(4 * quad as i32))
}

/// The first halves of the activations of four blocks, then the second halves.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn load_halves(x: &Q8Tile<'_>, quad: usize) -> [__m512i; 2] {
    let (a, b) = (load_codes(x, 2 * quad), load_codes(x, 2 * quad + 1));
    [_mm512_shuffle_i64x2::<0b10_00_10_00>(a, b), _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b)]
}

/// The products of a block of 256 values with one scale per 16 values. The block is half `half` of
/// a tile.
struct SubBlockProducts<const N: usize> {
    half: usize,
    /// The scales of the codes times the scales of the activations.
    factors: [__m512; N],
    sums: [__m512; N],
}

impl<const N: usize> SubBlockProducts<N> {
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn with_scales(half: usize, scales: __m512, x: &[Q8Tile<'_>; N]) -> Self {
        Self { half, factors: scale_by_d(half, scales, x), sums: [zero(); N] }
    }

    /// Adds the products of quarter `i` of the values, to whose codes `SHIFT` (modulo 256) was
    /// added. The contribution of `SHIFT` is subtracted as an integer.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add<const SHIFT: i8>(&mut self, i: usize, codes: __m512i, x: &[Q8Tile<'_>; N]) {
        for (t, x) in x.iter().enumerate() {
            let dot = shifted_dot::<SHIFT>(codes, load_codes(x, 4 * self.half + i));
            let factors = _mm512_permutexvar_ps(four_lanes_each(i), self.factors[t]);
            self.sums[t] = fmadd(dot, factors, self.sums[t]);
        }
    }

    /// Adds the products of quarter `i` of the values; `sizes` are the magnitudes of the codes and
    /// `negative` has a bit for each negative code. The activations take the signs of the codes,
    /// because `vpdpbusd` multiplies unsigned by signed bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_sizes(&mut self, i: usize, sizes: __m512i, negative: u64, x: &[Q8Tile<'_>; N]) {
        let none = _mm512_setzero_si512();
        for (t, x) in x.iter().enumerate() {
            let q = load_codes(x, 4 * self.half + i);
            let q = _mm512_mask_sub_epi8(q, negative, none, q);
            let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(none, sizes, q));
            let factors = _mm512_permutexvar_ps(four_lanes_each(i), self.factors[t]);
            self.sums[t] = fmadd(dot, factors, self.sums[t]);
        }
    }

    /// [`Self::add`] for unsigned codes and minimums; `mins` are multiplied by the scales of the
    /// activations.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_with_mins(&mut self, i: usize, codes: __m512i, mins: &[__m512; N], x: &[Q8Tile<'_>; N]) {
        let none = _mm512_setzero_si512();
        for (t, x) in x.iter().enumerate() {
            let q = load_codes(x, 4 * self.half + i);
            let dot = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(none, codes, q));
            let total = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(none, _mm512_set1_epi8(1), q));
            let factors = _mm512_permutexvar_ps(four_lanes_each(i), self.factors[t]);
            let mins = _mm512_permutexvar_ps(four_lanes_each(i), mins[t]);
            self.sums[t] = fmadd(dot, factors, fnmadd(mins, total, self.sums[t]));
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn add_to(self, acc: &mut [__m512; N]) {
        for (acc, sum) in acc.iter_mut().zip(self.sums) {
            *acc = add(*acc, sum);
        }
    }
}

/// Multiplies the factors of each 16 values of half a tile by the scales of the activations.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scale_by_d<const N: usize>(half: usize, factors: __m512, x: &[Q8Tile<'_>; N]) -> [__m512; N] {
    let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    let twice = _mm512_add_epi32(twice, _mm512_set1_epi32(8 * half as i32));
    let mut out = [zero(); N];
    for (out, x) in out.iter_mut().zip(x) {
        *out = mul(factors, _mm512_permutexvar_ps(twice, load_ps(x.d, 0)));
    }
    out
}

/// The 64 activations of blocks `2 * pair` and `2 * pair + 1`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn load_codes(x: &Q8Tile<'_>, pair: usize) -> __m512i {
    load_bytes(bytemuck::cast_slice(x.q), 64 * pair)
}

/// Sums of four products of activations with codes to which `SHIFT` (modulo 256) was added.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn shifted_dot<const SHIFT: i8>(codes: __m512i, q: __m512i) -> __m512 {
    let none = _mm512_setzero_si512();
    let shifted = _mm512_dpbusd_epi32(none, codes, q);
    let shift = _mm512_dpbusd_epi32(none, _mm512_set1_epi8(SHIFT), q);
    _mm512_cvtepi32_ps(_mm512_sub_epi32(shifted, shift))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn totals<const N: usize>(acc: [__m512; N]) -> [f32; N] {
    let mut out = [0.0; N];
    for (out, acc) in out.iter_mut().zip(acc) {
        *out = total(acc);
    }
    out
}

/// The f16 values at the beginning of 16 consecutive blocks of `STRIDE` bytes. `tile` may lack the
/// last two bytes, so that the values may be those at offset 2.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn strided_scales<const STRIDE: usize>(tile: &[u8]) -> __m512 {
    _mm512_cvtph_ps(_mm512_castsi512_si256(collect::<STRIDE, 1>(tile)))
}

/// The 4 bytes at the beginning of 16 consecutive blocks of `STRIDE` bytes. `tile` may lack the
/// last four bytes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn strided_words<const STRIDE: usize>(tile: &[u8]) -> __m512i {
    collect::<STRIDE, 2>(tile)
}

/// The first `N` 16-bit values of each of 16 consecutive blocks of `STRIDE` bytes. Each permutation
/// picks the values that lie within 64 bytes and moves them to their lanes; gathers of AMD's
/// processors are slower.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn collect<const STRIDE: usize, const N: usize>(tile: &[u8]) -> __m512i {
    let at_once = const { blocks_at_once(STRIDE, N) };
    let pick: [u16; 32] = const {
        let (mut pick, mut i) = ([0; 32], 0);
        while i < 16 * N {
            let block = i / N;
            pick[i] = ((block * STRIDE - group_start(STRIDE, N, block)) / 2 + i % N) as u16;
            i += 1;
        }
        pick
    };
    let pick = load_bytes(bytemuck::bytes_of(&pick), 0);
    let mut words = _mm512_setzero_si512();
    for first in (0..16).step_by(at_once) {
        let places = ((1u64 << (N * at_once)) - 1) << (N * first);
        let bytes = load_bytes(tile, group_start(STRIDE, N, first));
        words = _mm512_mask_permutexvar_epi16(words, places as u32, pick, bytes);
    }
    words
}

/// Number of blocks of `stride` bytes whose first `n` 16-bit values lie within 64 bytes.
const fn blocks_at_once(stride: usize, n: usize) -> usize {
    (64 - 2 * n) / stride + 1
}

/// Offset of the 64 bytes in which the beginning of `block` lies. They end `2 * n` bytes before the
/// end of the 16 blocks or earlier.
const fn group_start(stride: usize, n: usize, block: usize) -> usize {
    let (at_once, last) = (blocks_at_once(stride, n), 16 * stride - 2 * n - 64);
    let start = block / at_once * at_once * stride;
    if start < last { start } else { last }
}
