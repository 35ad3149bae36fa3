//! Dot products of the formats with blocks of 256 values. A tile is two blocks.

use std::arch::x86_64::*;

use hal::format::IQ4_CODES;

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles_near, q3_scales, six_bits};
use super::vector::{load_bytes, load_half, look_up, one_scale};
use super::{BySixteen, Products, SubBlockProducts, totals, vector};

/// The scales and minimums of one Q4_K or Q5_K block, multiplied by `d` and `dmin`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn scales_and_mins(block: &[u8]) -> (__m256, __m256) {
    let (scales, mins) = six_bits(&block[4..16]);
    let widen =
        |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_set_epi64x(0, bytes as i64)));
    let (d, dmin) = (one_scale(block), one_scale(&block[2..]));
    (_mm256_mul_ps(d, widen(scales)), _mm256_mul_ps(dmin, widen(mins)))
}

/// The low and the high nibbles of 32 bytes.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn nibbles(bytes: &[u8], at: usize) -> [__m256i; 2] {
    let pairs = load_bytes(bytes, at);
    let mask = _mm256_set1_epi8(15);
    [_mm256_and_si256(pairs, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(pairs), mask)]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q4_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 144 }, N>(row, x, |tile, x| {
        let (first, second) = (scales_and_mins(tile), scales_and_mins(&tile[144..]));
        let scales = [first.0, second.0];
        let mut products = Products::with_mins(scales, [first.1, second.1], x);
        for quad in 0..4 {
            let at = 144 * (quad / 2) + 16 + 64 * (quad % 2);
            let ([a, b], [c, d]) = (nibbles(tile, at), nibbles(tile, at + 32));
            products.add_four(quad, [a, b, c, d], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let (first, second) = (scales_and_mins(tile), scales_and_mins(&tile[176..]));
        let scales = [first.0, second.0];
        let mut products = Products::with_mins(scales, [first.1, second.1], x);
        for half in 0..2 {
            let block = &tile[176 * half..][..176];
            // Bit 0 of each byte is the high bit of a code of the next 32.
            let mut high_bits = load_bytes(block, 16);
            for quad in 0..2 {
                let at = 48 + 64 * quad;
                let ([a, b], [c, d]) = (nibbles(block, at), nibbles(block, at + 32));
                let mut with_high_bit = |low: __m256i| {
                    let high_bit = _mm256_and_si256(high_bits, _mm256_set1_epi8(1));
                    high_bits = _mm256_srli_epi16::<1>(high_bits);
                    _mm256_or_si256(low, _mm256_slli_epi16::<4>(high_bit))
                };
                let codes =
                    [with_high_bit(a), with_high_bit(b), with_high_bit(c), with_high_bit(d)];
                products.add_four(2 * half + quad, codes, x);
            }
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[210 * half..][..210];
            let scales = BySixteen::of_bytes(load_half(block, 192), one_scale(&block[208..]));
            let mut products = SubBlockProducts::new(half, scales, x);
            for q in 0..2 {
                products.add_signed(q, six_bit_codes(block, q), x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The bit pairs of 32 bytes: the lowest pair of each byte, then the next.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bit_pairs(bytes: &[u8], at: usize) -> [__m256i; 4] {
    let pairs = load_bytes(bytes, at);
    let low = |pairs| _mm256_and_si256(pairs, _mm256_set1_epi8(3));
    [
        low(pairs),
        low(_mm256_srli_epi16::<2>(pairs)),
        low(_mm256_srli_epi16::<4>(pairs)),
        low(_mm256_srli_epi16::<6>(pairs)),
    ]
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q2_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 84 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[84 * half..][..84];
            // The low nibble of each byte is a scale, the high nibble a minimum.
            let both = load_half(block, 0);
            let low = _mm_and_si128(both, _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16::<4>(both), _mm_set1_epi8(15));
            let scales = BySixteen::of_bytes(low, one_scale(&block[80..]));
            let mins = BySixteen::of_bytes(high, one_scale(&block[82..]));
            let mut products = SubBlockProducts::new(half, scales, x);
            for q in 0..2 {
                products.add(q, bit_pairs(block, 16 + 32 * q), &mins, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q3_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 110 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[110 * half..][..110];
            let scales = q3_scales(&block[96..108]);
            let scales = load_half(bytemuck::cast_slice(&scales), 0);
            let scales = BySixteen::of_bytes(scales, one_scale(&block[108..]));
            let mut products = SubBlockProducts::new(half, scales, x);
            // In the file, bit i of each byte is the high bit of a code of the i-th 32. Bits 0 to 3
            // and then bits 4 to 7 are moved so that the next bit is bit 2.
            let high_bits = load_bytes(block, 0);
            for (q, mut high_bits) in
                [_mm256_slli_epi16::<2>(high_bits), _mm256_srli_epi16::<2>(high_bits)]
                    .into_iter()
                    .enumerate()
            {
                let [a, b, c, d] = bit_pairs(block, 32 + 32 * q);
                let mut with_high_bit = |pairs: __m256i| {
                    let high_bit = _mm256_and_si256(high_bits, _mm256_set1_epi8(4));
                    high_bits = _mm256_srli_epi16::<1>(high_bits);
                    _mm256_sub_epi8(_mm256_or_si256(pairs, high_bit), _mm256_set1_epi8(4))
                };
                let codes =
                    [with_high_bit(a), with_high_bit(b), with_high_bit(c), with_high_bit(d)];
                products.add_signed(q, codes, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The scales of one IQ4_XS block, multiplied by `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn iq4_scales(block: &[u8]) -> __m256 {
    let low = _mm256_set1_epi32(i32::from_le_bytes([block[4], block[5], block[6], block[7]]));
    let low = _mm256_srlv_epi32(low, _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
    let upper = _mm256_set1_epi32(i32::from(u16::from_le_bytes([block[2], block[3]])));
    let upper = _mm256_srlv_epi32(upper, _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0));
    let upper = _mm256_slli_epi32::<4>(_mm256_and_si256(upper, _mm256_set1_epi32(3)));
    let scales = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), upper);
    let scales = _mm256_sub_epi32(scales, _mm256_set1_epi32(32));
    _mm256_mul_ps(one_scale(block), _mm256_cvtepi32_ps(scales))
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn iq4_xs<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles_near::<{ 2 * 136 }, N>(row, x, |tile, x| {
        let scales = [iq4_scales(tile), iq4_scales(&tile[136..])];
        let mut products = Products::new(scales, x);
        for pair in 0..8 {
            let at = 136 * (pair / 4) + 8 + 32 * (pair % 4);
            let codes = |k: usize| look_up(&IQ4_CODES, vector::nibbles(tile, at + 16 * k));
            products.add_signed(pair, [codes(0), codes(1)], x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// The signed codes of values `128 * q` to `128 * q + 127` of a Q6_K block.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bit_codes(block: &[u8], q: usize) -> [__m256i; 4] {
    let upper = load_bytes(block, 128 + 32 * q);
    let ([a, c], [b, d]) = (nibbles(block, 64 * q), nibbles(block, 64 * q + 32));
    // `upper` has the pair of bits of each byte in bits 4 and 5.
    let join = |low: __m256i, upper: __m256i| {
        let upper = _mm256_and_si256(upper, _mm256_set1_epi8(48));
        _mm256_sub_epi8(_mm256_or_si256(low, upper), _mm256_set1_epi8(32))
    };
    [
        join(a, _mm256_slli_epi16::<4>(upper)),
        join(b, _mm256_slli_epi16::<2>(upper)),
        join(c, upper),
        join(d, _mm256_srli_epi16::<2>(upper)),
    ]
}
