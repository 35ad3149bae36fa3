//! Dots of the formats with blocks of 256: Q4_K, Q5_K, Q6_K. A tile is two blocks.

use std::arch::x86_64::*;

use super::super::ActView;
use super::super::rows::Row;
use super::super::tile::{for_tiles, six_bits};
use super::vector::{load_bytes, load_half, load_ps, load_quarter, one_scale};
use super::{Products, load_codes, shifted_dot, totals};

/// The scales and minimums of the 16 groups of a tile of two Q4_K or Q5_K blocks, multiplied out.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scales_and_mins(first: &[u8], second: &[u8]) -> (__m512, __m512) {
    let (scales_0, mins_0) = six_bits(&first[4..16]);
    let (scales_1, mins_1) = six_bits(&second[4..16]);
    let widen = |low: u64, high: u64| {
        _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_set_epi64x(high as i64, low as i64)))
    };
    // Four f16: d and dmin of the first block, then of the second.
    let pair = |block: &[u8]| u32::from_le_bytes([block[0], block[1], block[2], block[3]]) as i32;
    let factors = _mm_cvtph_ps(_mm_set_epi32(0, 0, pair(second), pair(first)));
    let factors = _mm512_castps128_ps512(factors);
    let d = _mm512_set_epi32(2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0);
    let dmin = _mm512_add_epi32(d, _mm512_set1_epi32(1));
    let d = _mm512_permutexvar_ps(d, factors);
    let dmin = _mm512_permutexvar_ps(dmin, factors);
    (_mm512_mul_ps(d, widen(scales_0, scales_1)), _mm512_mul_ps(dmin, widen(mins_0, mins_1)))
}

/// The 64 nibbles of 32 bytes: the low ones, then the high ones.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles(bytes: &[u8], at: usize) -> __m512i {
    let twice = _mm512_broadcast_i64x4(load_half(bytes, at));
    let shift = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 144 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins(tile, &tile[144..]);
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..8 {
            products.add(i, nibbles(tile, 144 * (i / 4) + 16 + 32 * (i % 4)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins(tile, &tile[176..]);
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..8 {
            let block = 176 * (i / 4);
            let fifths = _mm512_broadcast_i64x4(load_half(tile, block + 16));
            // Bit 2i for the first 32 values, bit 2i + 1 for the others.
            let bit = _mm256_set1_epi8(1 << (2 * (i % 4)));
            let bits =
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bit), _mm256_add_epi8(bit, bit));
            let set = _mm512_test_epi8_mask(fifths, bits);
            let codes = nibbles(tile, block + 48 + 32 * (i % 4));
            products.add(i, _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// 64 unsigned codes of a Q6_K block: quarter i of its values.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn six_bit_codes(block: &[u8], i: usize) -> __m512i {
    let low = load_bytes(block, 64 * (i / 2));
    let pairs = _mm512_broadcast_i64x4(load_half(block, 128 + 32 * (i / 2)));
    // Moves the two upper bits of each code to bits 4 and 5; the first half takes pair 0 or 2.
    let (low, pairs) = if i.is_multiple_of(2) {
        (low, _mm512_sllv_epi64(pairs, _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4)))
    } else {
        let shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
        (_mm512_srli_epi16::<4>(low), _mm512_srlv_epi64(pairs, shift))
    };
    let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
    _mm512_or_si512(low, _mm512_and_si512(pairs, _mm512_set1_epi8(48)))
}

/// Scales belong to 16 values and sums of activations to 32, so the shift of the codes by 32 is taken
/// back in integers: a second product, of 32s.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: [ActView<'_>; N]) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[210 * half..][..210];
            let scales = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_quarter(block, 192)));
            let scales = _mm512_mul_ps(scales, one_scale(&block[208..]));
            let twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
            let twice = _mm512_add_epi32(twice, _mm512_set1_epi32(8 * half as i32));
            let zero = _mm512_setzero_ps();
            let (mut weights, mut sums) = ([zero; N], [zero; N]);
            for (weights, x) in weights.iter_mut().zip(x) {
                *weights = _mm512_mul_ps(scales, _mm512_permutexvar_ps(twice, load_ps(x.d, 0)));
            }
            for i in 0..4 {
                let codes = six_bit_codes(block, i);
                let four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
                let spread = _mm512_add_epi32(four, _mm512_set1_epi32(4 * i as i32));
                for (t, x) in x.iter().enumerate() {
                    let dot = shifted_dot::<32>(codes, load_codes(x, 4 * half + i));
                    let weights = _mm512_permutexvar_ps(spread, weights[t]);
                    sums[t] = _mm512_fmadd_ps(dot, weights, sums[t]);
                }
            }
            for (acc, sum) in acc.iter_mut().zip(sums) {
                *acc = _mm512_add_ps(*acc, sum);
            }
        }
    });
    totals(acc)
}
