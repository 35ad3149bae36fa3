//! Dot products of the formats with blocks of 256 values. A tile is two blocks.

use std::arch::x86_64::*;

use hal::format::IQ4_CODES;

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles, q3_scales, six_bits};
use super::vector::{load_bytes, load_quarter, look_up, one_scale, store_ps};
use super::{Products, SubBlockProducts, totals, vector};

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
    for_tiles::<{ 2 * 144 }, N>(row, x, |tile, x| {
        let (first, second) = (scales_and_mins(tile), scales_and_mins(&tile[144..]));
        let mins = Some([first.1, second.1]);
        let mut products = Products::new([first.0, second.0], mins, x);
        for i in 0..8 {
            let [low, high] = nibbles(tile, 144 * (i / 4) + 16 + 32 * (i % 4));
            products.add(2 * i, low, x);
            products.add(2 * i + 1, high, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let (first, second) = (scales_and_mins(tile), scales_and_mins(&tile[176..]));
        let mins = Some([first.1, second.1]);
        let mut products = Products::new([first.0, second.0], mins, x);
        for half in 0..2 {
            // Bit 0 of each byte is the high bit of a code of the next group.
            let mut high_bits = load_bytes(tile, 176 * half + 16);
            for i in 0..4 {
                for (k, low) in nibbles(tile, 176 * half + 48 + 32 * i).into_iter().enumerate() {
                    let high_bit = _mm256_and_si256(high_bits, _mm256_set1_epi8(1));
                    let codes = _mm256_or_si256(low, _mm256_slli_epi16::<4>(high_bit));
                    high_bits = _mm256_srli_epi16::<1>(high_bits);
                    products.add(8 * half + 2 * i + k, codes, x);
                }
            }
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// 16 signed bytes times `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn sixteen_scales(bytes: &[u8], d: __m256) -> [f32; 16] {
    let mut scales = [0.0; 16];
    for part in 0..2 {
        let bytes = load_quarter(bytes, 8 * part);
        let wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
        store_ps(&mut scales, 8 * part, _mm256_mul_ps(d, wide));
    }
    scales
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[210 * half..][..210];
            let scales = sixteen_scales(&block[192..208], one_scale(&block[208..]));
            let mut products = SubBlockProducts::new(half, &scales, x);
            for (i, codes) in six_bit_codes(block).into_iter().enumerate() {
                products.add_signed(i, codes, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The bit pairs of 64 bytes: four registers for bytes 0 to 31, then four for the others.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn bit_pairs(bytes: &[u8]) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    for (half, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let mut pairs = load_bytes(bytes, 32 * half);
        for out in out {
            *out = _mm256_and_si256(pairs, _mm256_set1_epi8(3));
            pairs = _mm256_srli_epi16::<2>(pairs);
        }
    }
    out
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q2_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 2 * 84 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[84 * half..][..84];
            // The low nibble of each byte is a scale, the high nibble a minimum.
            let both = vector::load_half(block, 0);
            let low = _mm_and_si128(both, _mm_set1_epi8(15));
            let high = _mm_and_si128(_mm_srli_epi16::<4>(both), _mm_set1_epi8(15));
            let [low, high] = [low, high].map(|v| vector::bytes_of(v));
            let scales = sixteen_scales(&low, one_scale(&block[80..]));
            let mins = sixteen_scales(&high, one_scale(&block[82..]));
            let mut products = SubBlockProducts::new(half, &scales, x);
            for (i, codes) in bit_pairs(&block[16..80]).into_iter().enumerate() {
                products.add(i, codes, &mins, x);
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
    for_tiles::<{ 2 * 110 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[110 * half..][..110];
            let scales = q3_scales(&block[96..108]);
            let scales = sixteen_scales(bytemuck::cast_slice(&scales), one_scale(&block[108..]));
            let mut products = SubBlockProducts::new(half, &scales, x);
            // The high bits of the codes are shifted so that bit 2 of each byte belongs to the next
            // 32 codes; in the file, bit i belongs to the codes from 32 * i on.
            let high_bits = load_bytes(block, 0);
            let mut low = _mm256_slli_epi16::<2>(high_bits);
            let mut high = _mm256_srli_epi16::<2>(high_bits);
            for (i, pairs) in bit_pairs(&block[32..96]).into_iter().enumerate() {
                let high_bits = if i < 4 { &mut low } else { &mut high };
                let high_bit = _mm256_and_si256(*high_bits, _mm256_set1_epi8(4));
                *high_bits = _mm256_srli_epi16::<1>(*high_bits);
                let codes = _mm256_or_si256(pairs, high_bit);
                products.add_signed(i, _mm256_sub_epi8(codes, _mm256_set1_epi8(4)), x);
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
    for_tiles::<{ 2 * 136 }, N>(row, x, |tile, x| {
        let scales = [iq4_scales(tile), iq4_scales(&tile[136..])];
        let mut products = Products::new(scales, None, x);
        for i in 0..16 {
            let pairs = vector::nibbles(tile, 136 * (i / 8) + 8 + 16 * (i % 8));
            products.add_signed(i, look_up(&IQ4_CODES, pairs), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// The signed codes of a Q6_K block, 32 per register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bit_codes(block: &[u8]) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    for half in 0..2 {
        let upper = load_bytes(block, 128 + 32 * half);
        let first = nibbles(block, 64 * half);
        let second = nibbles(block, 64 * half + 32);
        let lows = [first[0], second[0], first[1], second[1]];
        // Moves pair k of each byte to bits 4 and 5.
        let uppers = [
            _mm256_slli_epi16::<4>(upper),
            _mm256_slli_epi16::<2>(upper),
            upper,
            _mm256_srli_epi16::<2>(upper),
        ];
        for (k, (low, upper)) in lows.into_iter().zip(uppers).enumerate() {
            let upper = _mm256_and_si256(upper, _mm256_set1_epi8(48));
            let codes = _mm256_or_si256(low, upper);
            out[4 * half + k] = _mm256_sub_epi8(codes, _mm256_set1_epi8(32));
        }
    }
    out
}
