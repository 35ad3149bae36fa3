//! Dots of the formats with blocks of 256: Q4_K, Q5_K, Q6_K. A tile is two blocks.

use std::arch::x86_64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::{for_tiles, six_bits};
use super::vector::{load_bytes, load_quarter, one_scale, store_ps};
use super::{Products, signed_products, totals};

/// The scales and minimums of one Q4_K or Q5_K block, multiplied out.
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
pub(super) fn q4_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
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
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let (first, second) = (scales_and_mins(tile), scales_and_mins(&tile[176..]));
        let mins = Some([first.1, second.1]);
        let mut products = Products::new([first.0, second.0], mins, x);
        for half in 0..2 {
            // Bit 0 of each byte belongs to the next group.
            let mut fifths = load_bytes(tile, 176 * half + 16);
            for i in 0..4 {
                for (k, low) in nibbles(tile, 176 * half + 48 + 32 * i).into_iter().enumerate() {
                    let fifth = _mm256_and_si256(fifths, _mm256_set1_epi8(1));
                    let codes = _mm256_or_si256(low, _mm256_slli_epi16::<4>(fifth));
                    fifths = _mm256_srli_epi16::<1>(fifths);
                    products.add(8 * half + 2 * i + k, codes, x);
                }
            }
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm256_setzero_ps(); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[210 * half..][..210];
            let d = one_scale(&block[208..]);
            let mut scales = [0.0; 16];
            for part in 0..2 {
                let bytes = load_quarter(block, 192 + 8 * part);
                let wide = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
                store_ps(&mut scales, 8 * part, _mm256_mul_ps(d, wide));
            }
            let mut sums = [_mm256_setzero_ps(); N];
            for (i, codes) in six_bit_codes(block).into_iter().enumerate() {
                // Sixteen values, four lanes, have a scale.
                let scale =
                    _mm256_set_m128(_mm_set1_ps(scales[2 * i + 1]), _mm_set1_ps(scales[2 * i]));
                for (sum, x) in sums.iter_mut().zip(x) {
                    let q = load_bytes(bytemuck::cast_slice(x.q), 256 * half + 32 * i);
                    let d = _mm256_set1_ps(x.d[8 * half + i]);
                    let weight = _mm256_mul_ps(scale, d);
                    *sum = _mm256_fmadd_ps(signed_products(codes, q), weight, *sum);
                }
            }
            for (acc, sum) in acc.iter_mut().zip(sums) {
                *acc = _mm256_add_ps(*acc, sum);
            }
        }
    });
    totals(acc)
}

/// The signed codes of a Q6_K block, 32 in a register.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn six_bit_codes(block: &[u8]) -> [__m256i; 8] {
    let mut out = [_mm256_setzero_si256(); 8];
    for half in 0..2 {
        let upper = load_bytes(block, 128 + 32 * half);
        let first = nibbles(block, 64 * half);
        let second = nibbles(block, 64 * half + 32);
        let lows = [first[0], second[0], first[1], second[1]];
        // Pair k of each byte comes to bits 4 and 5.
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
