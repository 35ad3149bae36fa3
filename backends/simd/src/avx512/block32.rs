//! Dot products of the formats with blocks of 32 values.
//!
//! The nibbles of four blocks, 16 bytes each, fill a register. The low nibbles are multiplied by
//! the first halves of the activations and the high nibbles by the second halves, so a block's
//! products are in four lanes.

use std::arch::x86_64::*;

use hal::format::{E2M1_CODES, IQ4_CODES};

use super::super::rows::Row;
use super::super::tile::{OneToken, Tokens, for_tiles, for_tiles_of_four, shift_codes};
use super::vector::{four_totals, load_bytes, load_half, load_quarter, look_up};
use super::{Products, four_lanes_each, strided_scales, strided_words, totals};

/// The codes of IQ4_NL and IQ4_XS plus 128, which makes them unsigned.
pub(super) const IQ4_SHIFTED: [i8; 16] = shift_codes(IQ4_CODES, -128);
/// The codes of MXFP4 plus 12, which makes them unsigned.
const E2M1_SHIFTED: [i8; 16] = shift_codes(E2M1_CODES, 12);

/// The codes of four blocks of `STRIDE` bytes, of which `bytes` has the first 64: low nibbles, then
/// high nibbles. The nibbles of the first block begin at byte `SKIP`; `last` has those of the fourth.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn join_nibbles<const STRIDE: usize, const SKIP: usize>(
    bytes: __m512i,
    last: __m128i,
) -> [__m512i; 2] {
    // The nibbles of three blocks lie within 64 bytes, at even offsets, so one permutation collects
    // them.
    let pick: [u16; 32] = const {
        let mut pick = [0; 32];
        let mut i = 0;
        while i < 24 {
            pick[i] = (SKIP / 2 + i / 8 * (STRIDE / 2) + i % 8) as u16;
            i += 1;
        }
        pick
    };
    let three = _mm512_permutexvar_epi16(load_bytes(bytemuck::bytes_of(&pick), 0), bytes);
    split_nibbles(_mm512_inserti32x4::<3>(three, last))
}

/// The codes of four blocks of `STRIDE` bytes whose nibbles begin at `at`: low nibbles, then high
/// nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn nibbles<const STRIDE: usize>(tile: &[u8], at: usize) -> [__m512i; 2] {
    join_nibbles::<STRIDE, 0>(load_bytes(tile, at), load_quarter(tile, at + 3 * STRIDE))
}

/// The low nibbles of 64 bytes, then the high nibbles.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn split_nibbles(pairs: __m512i) -> [__m512i; 2] {
    let low = _mm512_set1_epi8(15);
    [_mm512_and_si512(pairs, low), _mm512_and_si512(_mm512_srli_epi16::<4>(pairs), low)]
}

/// The f16 values in the lower halves of 16 words, as floats.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn low_halves(words: __m512i) -> __m512 {
    _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words))
}

/// The 5-bit codes of blocks `4 * quad` to `4 * quad + 3`. The nibbles of each block of `STRIDE`
/// bytes begin at `at`; `high_bits` has the high bits of all 16 blocks.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn five_bits<const STRIDE: usize>(
    tile: &[u8],
    at: usize,
    quad: usize,
    high_bits: __m512i,
) -> [__m512i; 2] {
    let [low, high] = nibbles::<STRIDE>(tile, 4 * STRIDE * quad + at);
    let high_bits = _mm512_permutexvar_epi32(four_lanes_each(quad), high_bits);
    // Each byte of high bits is broadcast to eight bytes: bytes 0 and 1, then bytes 2 and 3.
    let first = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0101_0101_0101_0101, 0));
    let second = _mm512_add_epi8(first, _mm512_set1_epi8(2));
    let bit = _mm512_set1_epi64(0x8040_2010_0804_0201_u64 as i64);
    let add_high_bits = |codes: __m512i, each: __m512i| {
        let set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(high_bits, each), bit);
        _mm512_mask_add_epi8(codes, set, codes, _mm512_set1_epi8(16))
    };
    [add_high_bits(low, first), add_high_bits(high, second)]
}

/// For each of 16 blocks of `stride` bytes, the word of its quad that has its first byte.
const fn starts_of_four(stride: usize) -> [u16; 32] {
    let (mut starts, mut i) = ([0; 32], 0);
    while i < 16 {
        starts[i] = (i % 4 * stride / 2) as u16;
        i += 1;
    }
    starts
}

/// The scales of 16 MXFP4 blocks, as in [`super::super::tile::e8m0_normal`].
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn mxfp4_scales(tile: &[u8]) -> __m512 {
    // Blocks have 17 bytes, so the exponent of every second block is the upper byte of a word.
    let pick = const { starts_of_four(17) };
    let pick = load_bytes(bytemuck::bytes_of(&pick), 0);
    let mut words = _mm512_setzero_si512();
    for quad in 0..4 {
        let bytes = load_bytes(tile, 4 * 17 * quad);
        words = _mm512_mask_permutexvar_epi16(words, 0b1111 << (4 * quad), pick, bytes);
    }
    let upper = _mm256_set1_epi32(8 << 16);
    let words = _mm256_srlv_epi16(_mm512_castsi512_si256(words), upper);
    let exponents = _mm256_and_si256(words, _mm256_set1_epi16(255));
    let less = _mm512_cvtepu16_epi32(_mm256_subs_epu16(exponents, _mm256_set1_epi16(1)));
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(less))
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<18>(tile);
        let mins = _mm512_mul_ps(scales, _mm512_set1_ps(8.0));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, nibbles::<18>(tile, 72 * i + 2), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// Bytes of four blocks of Q4_0.
const Q4_0_QUAD: usize = 4 * 18;

/// The scales of 16 blocks of Q4_0, and the codes of each four. One load has the scales of four blocks
/// and the nibbles of three.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn q4_0_scales_and_codes(quads: [&[u8; Q4_0_QUAD]; 4]) -> (__m512, [[__m512i; 2]; 4]) {
    let pick = const { starts_of_four(18) };
    let pick = load_bytes(bytemuck::bytes_of(&pick), 0);
    let (mut halves, mut codes) = (_mm512_setzero_si512(), [[_mm512_setzero_si512(); 2]; 4]);
    for (quad, codes) in codes.iter_mut().enumerate() {
        let bytes = load_bytes(quads[quad], 0);
        halves = _mm512_mask_permutexvar_epi16(halves, 0b1111 << (4 * quad), pick, bytes);
        *codes = join_nibbles::<18, 2>(bytes, load_quarter(quads[quad], 56));
    }
    (_mm512_cvtph_ps(_mm512_castsi512_si256(halves)), codes)
}

/// The parts of four blocks of `bytes`.
#[inline]
fn quads<const N: usize>(bytes: &[u8]) -> [&[u8; Q4_0_QUAD]; N] {
    let all = bytes.as_chunks().0;
    std::array::from_fn(|i| &all[i])
}

/// [`q4_0`] for four rows and one token, with the same bits. The rows share the loads and the order of
/// the activations.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_0_four(rows: [Row<'_>; 4], x: &OneToken<'_>) -> [[f32; 1]; 4] {
    let mut acc = [[_mm512_setzero_ps(); 1]; 4];
    let eight = _mm512_set1_ps(8.0);
    let rests = for_tiles_of_four::<{ 16 * 18 }, { 8 * 18 }>(rows, x, |tiles, x| {
        let mut codes = [[[_mm512_setzero_si512(); 2]; 4]; 4];
        let mut products = std::array::from_fn::<_, 4, _>(|r| {
            let (scales, of_row) = q4_0_scales_and_codes(quads(tiles[r]));
            codes[r] = of_row;
            Products::with_mins(scales, _mm512_mul_ps(scales, eight), x)
        });
        for quad in 0..4 {
            for (products, codes) in products.iter_mut().zip(&codes) {
                products.add_halves(quad, codes[quad], x);
            }
        }
        for (products, acc) in products.into_iter().zip(&mut acc) {
            products.add_to(acc);
        }
    });
    if let Some(half) = x.half() {
        for (acc, rests) in acc.as_chunks_mut::<2>().0.iter_mut().zip(rests.as_chunks::<2>().0) {
            let ([a, b], [c, d]) = (quads(rests[0]), quads(rests[1]));
            let (scales, codes) = q4_0_scales_and_codes([a, b, c, d]);
            let both = Products::with_mins(scales, _mm512_mul_ps(scales, eight), &[half]);
            for (row, (acc, mut products)) in acc.iter_mut().zip(both.of_two_rows()).enumerate() {
                for quad in [2 * row, 2 * row + 1] {
                    products.add_halves(quad, codes[quad], &[half]);
                }
                products.add_to(acc);
            }
        }
    }
    let [[a], [b], [c], [d]] = acc;
    four_totals(a, b, c, d).map(|total| [total])
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q4_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 20 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<20>(tile);
        let mins = _mm512_sub_ps(_mm512_setzero_ps(), strided_scales::<20>(&tile[2..]));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, nibbles::<20>(tile, 80 * i + 4), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q8_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 34 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<34>(tile);
        let mut products = Products::new(scales, x);
        for i in 0..8 {
            let first = _mm512_castsi256_si512(load_half(tile, 68 * i + 2));
            let codes = _mm512_inserti64x4::<1>(first, load_half(tile, 68 * i + 36));
            products.add_signed(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q5_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 22 }, N>(row, x, |tile, x| {
        let scales = strided_scales::<22>(tile);
        let high_bits = strided_words::<22>(&tile[2..]);
        let mins = _mm512_mul_ps(scales, _mm512_set1_ps(16.0));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, five_bits::<22>(tile, 6, i, high_bits), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q5_1<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 24 }, N>(row, x, |tile, x| {
        let (scales, high_bits) = (strided_scales::<24>(tile), strided_words::<24>(&tile[4..]));
        let mins = _mm512_sub_ps(_mm512_setzero_ps(), strided_scales::<24>(&tile[2..]));
        let mut products = Products::with_mins(scales, mins, x);
        for i in 0..4 {
            products.add_halves(i, five_bits::<24>(tile, 8, i, high_bits), x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn iq4_nl<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 18 }, N>(row, x, |tile, x| {
        let mut products = Products::new(strided_scales::<18>(tile), x);
        for i in 0..4 {
            let [low, high] = nibbles::<18>(tile, 72 * i + 2);
            let codes = [look_up(&IQ4_SHIFTED, low), look_up(&IQ4_SHIFTED, high)];
            products.add_shifted_halves::<-128>(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn mxfp4<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 16 * 17 }, N>(row, x, |tile, x| {
        let mut products = Products::new(mxfp4_scales(tile), x);
        for i in 0..4 {
            let block = |k: usize| load_quarter(tile, 17 * (4 * i + k) + 1);
            let pairs = _mm512_castsi128_si512(block(0));
            let pairs = _mm512_inserti32x4::<1>(pairs, block(1));
            let pairs = _mm512_inserti32x4::<2>(pairs, block(2));
            let [low, high] = split_nibbles(_mm512_inserti32x4::<3>(pairs, block(3)));
            let codes = [look_up(&E2M1_SHIFTED, low), look_up(&E2M1_SHIFTED, high)];
            products.add_shifted_halves::<12>(i, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}

/// A tile is four blocks of 128 values. Each bit selects a code of 2 or 0; the minimums subtract 1,
/// so values are 1 or -1.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn q1_0<const N: usize>(row: Row<'_>, x: Tokens<'_, N>) -> [f32; N] {
    let mut acc = [_mm512_setzero_ps(); N];
    for_tiles::<{ 4 * 18 }, N>(row, x, |tile, x| {
        let half = |i: usize| i32::from(u16::from_le_bytes([tile[18 * i], tile[18 * i + 1]]));
        let [a, b, c, d] = [half(0), half(1), half(2), half(3)];
        let words = _mm512_setr_epi32(a, a, a, a, b, b, b, b, c, c, c, c, d, d, d, d);
        let scales = low_halves(words);
        let mut products = Products::with_mins(scales, scales, x);
        for pair in 0..8 {
            let at = 18 * (pair / 2) + 2 + 8 * (pair % 2);
            let bits = tile[at..].first_chunk().expect("a tile has four blocks");
            let codes = _mm512_maskz_set1_epi8(u64::from_le_bytes(*bits), 2);
            products.add(pair, codes, x);
        }
        products.add_to(&mut acc);
    });
    totals(acc)
}
