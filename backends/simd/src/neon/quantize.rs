//! Quantises activations to Q8 blocks, with the bits of [`hal::format::quantize_q8`].

use std::arch::aarch64::*;

use hal::format::Q8_BLOCK;

use super::super::tile::for_q8_blocks;
use super::vector::load_ps;

#[target_feature(enable = "neon")]
pub(super) fn quantize(x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
    for_q8_blocks(x, q, d, sum, |x, q| quantize_block(x, q));
}

/// Quantises one block into `q`; returns the scale `d` and the sum of `q`.
#[inline]
#[target_feature(enable = "neon")]
fn quantize_block(x: &[f32; Q8_BLOCK], q: &mut [i8; Q8_BLOCK]) -> (f32, i32) {
    let x = [0, 8, 16, 24].map(|at| load_ps(x, at));
    // The bit patterns of magnitudes sort like the floats, with infinity and NaN above all numbers.
    let most = x
        .as_flattened()
        .iter()
        .fold(vdupq_n_u32(0), |most, v| vmaxq_u32(most, vreinterpretq_u32_f32(vabsq_f32(*v))));
    let amax = f32::from_bits(vmaxvq_u32(most));
    let d = amax / 127.0;
    if !amax.is_finite() || !d.is_normal() {
        *q = [0; Q8_BLOCK];
        return (if amax.is_finite() { 0.0 } else { f32::NAN }, 0);
    }
    let inverse = 127.0 / amax;
    let mut sum = vdupq_n_s32(0);
    for (x, q) in x.iter().zip(q.as_chunks_mut::<8>().0) {
        // The conversion rounds to nearest, ties to even. Only a rounding error can make a value
        // larger than 127, so the result fits in a byte.
        let codes = x.map(|v| vcvtnq_s32_f32(vmulq_n_f32(v, inverse)));
        sum = vaddq_s32(sum, vaddq_s32(codes[0], codes[1]));
        let bytes = vmovn_s16(vmovn_high_s32(vmovn_s32(codes[0]), codes[1]));
        // SAFETY: `q` has 8 bytes.
        unsafe { vst1_s8(q.as_mut_ptr(), bytes) };
    }
    (d, vaddvq_s32(sum))
}
