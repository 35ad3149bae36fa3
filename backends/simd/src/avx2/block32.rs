//! Dot products of the formats with blocks of 32 values.

use std::arch::x86_64::*;

use hal::format::{E2M1_CODES, IQ4_CODES};

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles};
use super::vector::{load_bytes, look_up, nibbles};
use super::{Products, strided_scales, totals};

/// The 5-bit codes of a block: the high bits begin at `at`, and the nibbles follow them.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn five_bits(tile: &[u8], at: usize) -> __m256i {
    let high_bits = i32::from_le_bytes([tile[at], tile[at + 1], tile[at + 2], tile[at + 3]]);
    // Each byte of high bits is broadcast to eight bytes.
    let each =
        _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
    let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(high_bits), each);
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
    let high_bit = _mm256_and_si256(set, _mm256_set1_epi8(16));
    _mm256_or_si256(nibbles(tile, at + 4), high_bit)
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
    let mins = strided_scales::<STRIDE>(&tile[2..]);
    let negated = mins.map(|m| _mm256_sub_ps(_mm256_setzero_ps(), m));
    (strided_scales::<STRIDE>(tile), negated)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), None, x);
        for i in 0..16 {
            let codes = _mm256_sub_epi8(nibbles(tile, 18 * i + 2), _mm256_set1_epi8(8));
            products.add_signed(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins::<20>(tile);
        let mut products = Products::new(scales, Some(mins), x);
        for i in 0..16 {
            products.add(i, nibbles(tile, 20 * i + 4), x);
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
        let mut products = Products::new(strided_scales::<34>(tile), None, x);
        for i in 0..16 {
            products.add_signed(i, load_bytes(tile, 34 * i + 2), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 22 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<22>(tile), None, x);
        for i in 0..16 {
            let codes = _mm256_sub_epi8(five_bits(tile, 22 * i + 2), _mm256_set1_epi8(16));
            products.add_signed(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 24 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins::<24>(tile);
        let mut products = Products::new(scales, Some(mins), x);
        for i in 0..16 {
            products.add(i, five_bits(tile, 24 * i + 4), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_nl<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), None, x);
        for i in 0..16 {
            products.add_signed(i, look_up(&IQ4_CODES, nibbles(tile, 18 * i + 2)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn mxfp4<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 16 * 17 }, N>(row, x, |tile, x| {
        let mut products = Products::new(mxfp4_scales(tile), None, x);
        for i in 0..16 {
            products.add_signed(i, look_up(&E2M1_CODES, nibbles(tile, 17 * i + 1)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
