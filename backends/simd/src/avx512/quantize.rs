//! Quantises activations to Q8 blocks, with the bits of [`hal::format::quantize_q8`].

use std::arch::x86_64::*;

use hal::format::Q8_BLOCK;

use super::super::tile::for_q8_blocks;
use super::vector::load_ps;

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn quantize(x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
    for_q8_blocks(x, q, d, sum, |x, q| quantize_block(x, q));
}

/// Quantises one block into `q`; returns the scale `d` and the sum of `q`.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn quantize_block(x: &[f32; Q8_BLOCK], q: &mut [i8; Q8_BLOCK]) -> (f32, i32) {
    let (a, b) = (load_ps(x, 0), load_ps(x, 16));
    let magnitude = |v| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(i32::MAX));
    // The bit patterns of magnitudes sort like the floats, with infinity and NaN above all numbers.
    let most = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude(a), magnitude(b)));
    let amax = f32::from_bits(most);
    let d = amax / 127.0;
    if !amax.is_finite() || !d.is_normal() {
        *q = [0; Q8_BLOCK];
        return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = _mm512_set1_ps(127.0 / amax);
    // The conversion rounds to nearest, ties to even. Only a rounding error can make a value larger
    // than 127, so the result fits in a byte.
    let a = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse));
    let b = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    let (low, high) = (_mm512_cvtepi32_epi8(a), _mm512_cvtepi32_epi8(b));
    // SAFETY: both types have 32 bytes, and every bit pattern is valid.
    *q = unsafe { std::mem::transmute::<__m256i, [i8; Q8_BLOCK]>(_mm256_set_m128i(high, low)) };
    (d, _mm512_reduce_add_epi32(_mm512_add_epi32(a, b)))
}
