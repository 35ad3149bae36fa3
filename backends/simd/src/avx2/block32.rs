//! Dot products of the formats with blocks of 32 values.

use std::arch::x86_64::*;

use hal::format::{E2M1_CODES, IQ4_CODES};

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles, for_tiles_near};
use super::vector::{load_bytes, look_up, nibbles, one_scale};
use super::{Products, strided_scales, totals};

/// -1 for each of the 32 bits at byte `at` that is set, otherwise 0.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn set_bits(bytes: &[u8], at: usize) -> __m256i {
    let bits = i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    // Each byte is broadcast to eight bytes.
    let each =
        _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(bits), each);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit)
}

/// The 5-bit codes of a block: the high bits begin at `at`, and the nibbles follow them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn five_bits(tile: &[u8], at: usize) -> __m256i {
    let high_bit = _mm256_and_si256(set_bits(tile, at), _mm256_set1_epi8(16));
    _mm256_or_si256(nibbles(tile, at + 4), high_bit)
}

/// The scales times `offset`, which is subtracted from unsigned codes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn as_mins(scales: [__m256; 2], offset: f32) -> [__m256; 2] {
    scales.map(|scales| _mm256_mul_ps(scales, _mm256_set1_ps(offset)))
}

/// The scales of 16 MXFP4 blocks, as in [`super::super::tile::e8m0_normal`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn mxfp4_scales(tile: &[u8]) -> [__m256; 2] {
    let byte = |i: usize| tile[17 * i] as i8;
    let eight = |i: usize| {
        let (a, b, c, d) = (byte(i), byte(i + 1), byte(i + 2), byte(i + 3));
        let (e, f, g, h) = (byte(i + 4), byte(i + 5), byte(i + 6), byte(i + 7));
        let exponents = _mm_setr_epi8(a, b, c, d, e, f, g, h, 0, 0, 0, 0, 0, 0, 0, 0);
        let less = _mm_subs_epu8(exponents, _mm_set1_epi8(1));
        _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(less)))
    };
    [eight(0), eight(8)]
}

/// The scales and the negated minimums of 16 blocks of `STRIDE` bytes, which begin with `d` and
/// `m`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_mins<const STRIDE: usize>(tile: &[u8]) -> ([__m256; 2], [__m256; 2]) {
    let eight = |first: usize| {
        // Lane i of these 32 bytes has the scale and the minimum of block i.
        let at = |i: usize| load_bytes(tile, STRIDE * first + (STRIDE - 4) * i);
        let v = _mm256_blend_epi32::<0b0000_0010>(at(0), at(1));
        let v = _mm256_blend_epi32::<0b0000_0100>(v, at(2));
        let v = _mm256_blend_epi32::<0b0000_1000>(v, at(3));
        let v = _mm256_blend_epi32::<0b0001_0000>(v, at(4));
        let v = _mm256_blend_epi32::<0b0010_0000>(v, at(5));
        let v = _mm256_blend_epi32::<0b0100_0000>(v, at(6));
        let v = _mm256_blend_epi32::<0b1000_0000>(v, at(7));
        let scales = _mm256_blend_epi16::<0b1010_1010>(v, _mm256_setzero_si256());
        // Four scales and four minimums in each half, then eight of each.
        let halves = _mm256_packus_epi32(scales, _mm256_srli_epi32::<16>(v));
        let v = _mm256_permute4x64_epi64::<0b11_01_10_00>(halves);
        let scales = _mm256_cvtph_ps(_mm256_castsi256_si128(v));
        let mins = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(v));
        (scales, _mm256_sub_ps(_mm256_setzero_ps(), mins))
    };
    let (first, second) = (eight(0), eight(8));
    ([first.0, second.0], [first.1, second.1])
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<18>(tile);
        let mut products = Products::with_mins(scales, as_mins(scales, 8.0), x);
        for quad in 0..4 {
            let codes = |k: usize| nibbles(tile, 18 * (4 * quad + k) + 2);
            products.add_four(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins::<20>(tile);
        let mut products = Products::with_mins(scales, mins, x);
        for quad in 0..4 {
            let codes = |k: usize| nibbles(tile, 20 * (4 * quad + k) + 4);
            products.add_four(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q8_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<34>(tile), x);
        for pair in 0..8 {
            let codes = |k: usize| load_bytes(tile, 34 * (2 * pair + k) + 2);
            products.add_signed(pair, [codes(0), codes(1)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 16 * 22 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<22>(tile);
        let mut products = Products::with_mins(scales, as_mins(scales, 16.0), x);
        for quad in 0..4 {
            let codes = |k: usize| five_bits(tile, 22 * (4 * quad + k) + 2);
            products.add_four(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 16 * 24 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins::<24>(tile);
        let mut products = Products::with_mins(scales, mins, x);
        for quad in 0..4 {
            let codes = |k: usize| five_bits(tile, 24 * (4 * quad + k) + 4);
            products.add_four(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), x);
        for pair in 0..8 {
            let codes = |k: usize| look_up(&IQ4_CODES, nibbles(tile, 18 * (2 * pair + k) + 2));
            products.add_signed(pair, [codes(0), codes(1)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mxfp4<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 16 * 17 }, N>(row, x, |tile, x| {
        let mut products = Products::new(mxfp4_scales(tile), x);
        for quad in 0..4 {
            let codes = |k: usize| look_up(&E2M1_CODES, nibbles(tile, 17 * (4 * quad + k) + 1));
            products.add_four_signed(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// A tile is four blocks of 128 values. Each bit selects a code of 2 or 0; the minimums subtract 1,
/// so values are 1 or -1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q1_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 4 * 18 }, N>(row, x, |tile, x| {
        let four = |block: usize| _mm256_castps256_ps128(one_scale(&tile[18 * block..]));
        let scales = [_mm256_set_m128(four(1), four(0)), _mm256_set_m128(four(3), four(2))];
        let mut products = Products::with_mins(scales, scales, x);
        for quad in 0..4 {
            let codes = |k: usize| {
                _mm256_and_si256(set_bits(tile, 18 * quad + 2 + 4 * k), _mm256_set1_epi8(2))
            };
            products.add_four(quad, [codes(0), codes(1), codes(2), codes(3)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
