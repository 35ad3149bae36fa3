//! Quantises activations to Q8 blocks, with the bits of [`hal::format::quantize_q8`].

use std::arch::x86_64::*;

use hal::format::Q8_BLOCK;

use super::super::tile::for_q8_blocks;
use super::vector::load_ps;

#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantize(x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
    for_q8_blocks(x, q, d, sum, |x, q| quantize_block(x, q));
}

/// Quantises one block into `q`; returns the scale `d` and the sum of `q`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantize_block(x: &[f32; Q8_BLOCK], q: &mut [i8; Q8_BLOCK]) -> (f32, i32) {
    let x = [load_ps(x, 0), load_ps(x, 8), load_ps(x, 16), load_ps(x, 24)];
    let magnitude = |v| _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(i32::MAX));
    // The bit patterns of magnitudes sort like the floats, with infinity and NaN above all numbers.
    let low = _mm256_max_epu32(magnitude(x[0]), magnitude(x[1]));
    let most = _mm256_max_epu32(low, _mm256_max_epu32(magnitude(x[2]), magnitude(x[3])));
    let most = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b01_00_11_10>(most));
    let most = _mm_max_epu32(most, _mm_shuffle_epi32::<0b10_11_00_01>(most));
    let amax = f32::from_bits(_mm_cvtsi128_si32(most) as u32);
    let d = amax / 127.0;
    if !amax.is_finite() || !d.is_normal() {
        *q = [0; Q8_BLOCK];
        return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = _mm256_set1_ps(127.0 / amax);
    // The conversion rounds to nearest, ties to even. Only a rounding error can make a value larger
    // than 127, so the result fits in a byte.
    let round = |v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inverse));
    let [a, b, c, d_] = [round(x[0]), round(x[1]), round(x[2]), round(x[3])];
    // Packing works within halves of a register; the permutation restores the order.
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d_));
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    let bytes = _mm256_permutevar8x32_epi32(bytes, order);
    // SAFETY: both types have 32 bytes, and every bit pattern is valid.
    *q = unsafe { std::mem::transmute::<__m256i, [i8; Q8_BLOCK]>(bytes) };
    let sum = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d_));
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b01_00_11_10>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b10_11_00_01>(sum));
    (d, _mm_cvtsi128_si32(sum))
}
