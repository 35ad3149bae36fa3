//! Dot products of the formats with blocks of 256 values. A tile is two blocks.

use std::arch::x86_64::*;

use super::super::rows::Row;
use super::super::tile::{Tokens, for_tiles, q3_scales};
use super::block32::{IQ4_SHIFTED, split_nibbles};
use super::vector::{load_bytes, load_half, load_quarter, look_up, one_scale};
use super::{Products, SubBlockProducts, scale_by_d, totals};

/// The scales and minimums of the 16 groups of a tile of two Q4_K or Q5_K blocks, multiplied by
/// `d` and `dmin`; the layout is that of [`super::super::tile::six_bits`].
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn scales_and_mins(first: &[u8], second: &[u8]) -> (__m512, __m512) {
    // In each half: d and dmin; then four 32-bit parts, of which parts 1 and 2 have the first four
    // scales and minimums, and part 3 the nibbles of the others.
    let heads = _mm256_set_m128i(load_quarter(second, 0), load_quarter(first, 0));
    let low = _mm256_and_si256(heads, _mm256_set1_epi8(0x3F));
    let nibbles = _mm256_shuffle_epi32::<0b11_11_11_11>(heads);
    let nibbles = _mm256_srlv_epi32(nibbles, _mm256_set_epi32(0, 4, 0, 0, 0, 4, 0, 0));
    let nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(0x0F));
    let upper = _mm256_and_si256(_mm256_srli_epi32::<2>(heads), _mm256_set1_epi8(0x30));
    let high = _mm256_or_si256(nibbles, upper);
    let scales = _mm256_permute4x64_epi64::<0b00_00_11_01>(_mm256_unpacklo_epi32(low, high));
    let mins = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_unpackhi_epi32(low, high));
    let widen =
        |codes: __m256i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(codes)));
    let factors = _mm512_cvtph_ps(heads);
    let d = _mm512_set_epi32(8, 8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0);
    let dmin = _mm512_add_epi32(d, _mm512_set1_epi32(1));
    let d = _mm512_permutexvar_ps(d, factors);
    let dmin = _mm512_permutexvar_ps(dmin, factors);
    (_mm512_mul_ps(d, widen(scales)), _mm512_mul_ps(dmin, widen(mins)))
}

/// The 64 nibbles of 32 bytes: low nibbles, then high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles(bytes: &[u8], at: usize) -> __m512i {
    let twice = _mm512_broadcast_i64x4(load_half(bytes, at));
    let shift = _mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0);
    _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
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
pub(super) fn q5_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 176 }, N>(row, x, |tile, x| {
        let (scales, mins) = scales_and_mins(tile, &tile[176..]);
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..8 {
            let block = 176 * (i / 4);
            let high_bits = _mm512_broadcast_i64x4(load_half(tile, block + 16));
            // Bit 2 * (i % 4) for the first 32 values, the next bit for the others.
            let bit = _mm256_set1_epi8(1 << (2 * (i % 4)));
            let bits =
                _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bit), _mm256_add_epi8(bit, bit));
            let set = _mm512_test_epi8_mask(high_bits, bits);
            let codes = nibbles(tile, block + 48 + 32 * (i % 4));
            products.add(i, _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16)), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// The 64 unsigned codes of quarter `i` of a Q6_K block.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn six_bit_codes(block: &[u8], i: usize) -> __m512i {
    let low = load_bytes(block, 64 * (i / 2));
    let pairs = _mm512_broadcast_i64x4(load_half(block, 128 + 32 * (i / 2)));
    // Moves the two upper bits of each code to bits 4 and 5: pair 0 or 2 for the first 32 codes,
    // pair 1 or 3 for the others.
    let (low, pairs) = if i.is_multiple_of(2) {
        (low, _mm512_sllv_epi64(pairs, _mm512_set_epi64(2, 2, 2, 2, 4, 4, 4, 4)))
    } else {
        let shift = _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0);
        (_mm512_srli_epi16::<4>(low), _mm512_srlv_epi64(pairs, shift))
    };
    let low = _mm512_and_si512(low, _mm512_set1_epi8(15));
    _mm512_or_si512(low, _mm512_and_si512(pairs, _mm512_set1_epi8(48)))
}

/// 16 signed bytes times the f16 at the beginning of `d`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn sixteen_scales(bytes: __m128i, d: &[u8]) -> __m512 {
    let wide = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    _mm512_mul_ps(wide, one_scale(d))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q6_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 210 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[210 * half..][..210];
            let scales = sixteen_scales(load_quarter(block, 192), &block[208..]);
            let mut products = SubBlockProducts::with_scales(half, scales, x);
            for i in 0..4 {
                products.add::<32>(i, six_bit_codes(block, i), x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// Quarter i of the 256 values whose bit pairs begin at `at`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn bit_pairs(block: &[u8], at: usize, i: usize) -> __m512i {
    let pairs = _mm512_broadcast_i64x4(load_half(block, at + 32 * (i / 2)));
    // Pair 0 or 2 for the first 32 values, pair 1 or 3 for the others.
    let shift = if i.is_multiple_of(2) {
        _mm512_set_epi64(2, 2, 2, 2, 0, 0, 0, 0)
    } else {
        _mm512_set_epi64(6, 6, 6, 6, 4, 4, 4, 4)
    };
    _mm512_and_si512(_mm512_srlv_epi64(pairs, shift), _mm512_set1_epi8(3))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q2_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 84 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[84 * half..][..84];
            // The low nibble of each byte is a scale, the high nibble a minimum.
            let (both, nibble) = (load_quarter(block, 0), _mm_set1_epi8(15));
            let scales = sixteen_scales(_mm_and_si128(both, nibble), &block[80..]);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(both), nibble);
            let mins = scale_by_d(half, sixteen_scales(high, &block[82..]), x);
            let mut products = SubBlockProducts::with_scales(half, scales, x);
            for i in 0..4 {
                products.add_with_mins(i, bit_pairs(block, 16, i), &mins, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q3_k<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 110 }, N>(row, x, |tile, x| {
        for half in 0..2 {
            let block = &tile[110 * half..][..110];
            let scales = q3_scales(&block[96..108]);
            let scales = load_quarter(bytemuck::cast_slice(&scales), 0);
            let mut products =
                SubBlockProducts::with_scales(half, sixteen_scales(scales, &block[108..]), x);
            let high_bits = _mm512_broadcast_i64x4(load_half(block, 0));
            for i in 0..4 {
                // Bit 2i for the first 32 values, bit 2i + 1 for the others.
                let bit = _mm256_set1_epi8(1 << (2 * i));
                let bits =
                    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(bit), _mm256_add_epi8(bit, bit));
                let set = _mm512_test_epi8_mask(high_bits, bits);
                let codes = bit_pairs(block, 32, i);
                let codes = _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(4));
                products.add::<4>(i, codes, x);
            }
            products.add_to(&mut acc);
        }
    });
    totals(acc)
}

/// The scales of a tile of two IQ4_XS blocks, multiplied by `d`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn iq4_scales(first: &[u8], second: &[u8]) -> __m512 {
    let twice = |a: i32, b: i32| {
        let a = _mm512_castsi256_si512(_mm256_set1_epi32(a));
        _mm512_inserti64x4::<1>(a, _mm256_set1_epi32(b))
    };
    let low = |block: &[u8]| i32::from_le_bytes([block[4], block[5], block[6], block[7]]);
    let upper = |block: &[u8]| i32::from(u16::from_le_bytes([block[2], block[3]]));
    let places = _mm512_set_epi32(7, 6, 5, 4, 3, 2, 1, 0, 7, 6, 5, 4, 3, 2, 1, 0);
    let places = _mm512_add_epi32(places, places);
    let upper = _mm512_srlv_epi32(twice(upper(first), upper(second)), places);
    let low = _mm512_srlv_epi32(twice(low(first), low(second)), _mm512_add_epi32(places, places));
    let upper = _mm512_slli_epi32::<4>(_mm512_and_si512(upper, _mm512_set1_epi32(3)));
    let scales = _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(15)), upper);
    let scales = _mm512_cvtepi32_ps(_mm512_sub_epi32(scales, _mm512_set1_epi32(32)));
    let d = _mm512_mask_blend_ps(0xff00, one_scale(first), one_scale(second));
    _mm512_mul_ps(d, scales)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn iq4_xs<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 2 * 136 }, N>(row, x, |tile, x| {
        let mut products = Products::new(iq4_scales(tile, &tile[136..]), x);
        for i in 0..4 {
            let [low, high] = split_nibbles(load_bytes(tile, 136 * (i / 2) + 8 + 64 * (i % 2)));
            let codes = [look_up(&IQ4_SHIFTED, low), look_up(&IQ4_SHIFTED, high)];
            products.add_shifted_halves::<-128>(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
