//! IQ4_NL: `d` (f16), then 16 bytes of nibbles in the order of Q4_0, each an index into
//! [`IQ4_CODES`]. `value = d * code`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, inverse_or_zero,
    look_up, power, read_f16, write_f16,
};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: false, has_min: false, unpack };

/// The codes that the nibbles of the IQ4 formats select; their spacing is smallest near zero.
///
/// Source: ggml.
pub const IQ4_CODES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    look_up(&block[2..18], &IQ4_CODES, &mut unpacked.codes[..32]);
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let Some(values) = values.first_chunk::<32>() else { return };
    let weights = importance.map(|by| by.weights(0, values, 2.0 * power(values)));
    let scale = write_f16(block, 0, best_scale(values, weights.as_ref()));
    write_indices(values, scale, &mut block[2..18]);
}

/// The index of the code nearest to `v`; 0 for NaN.
#[inline]
fn nearest_index(v: f32) -> u8 {
    IQ4_CODES
        .windows(2)
        .map(|pair| u8::from(v >= (f32::from(pair[0]) + f32::from(pair[1])) / 2.0))
        .sum()
}

/// Writes the indices of 32 values that are divided by `scale`, in the order of Q4_0.
pub(super) fn write_indices(values: &[f32; 32], scale: f32, pairs: &mut [u8]) {
    let inverse = inverse_or_zero(scale);
    let index = |i: usize| nearest_index(values[i] * inverse);
    for (j, pair) in pairs.iter_mut().enumerate() {
        *pair = index(j) | index(j + 16) << 4;
    }
}

/// The best scale of 32 values. The search tries scales for which the value farthest from zero gets
/// a code near either end of the table, so the scale may be negative. `weights`, from an importance
/// matrix, are the weights of the squared errors; without them, a large value counts more than a
/// small one.
pub(super) fn best_scale(values: &[f32; 32], weights: Option<&[f32; 32]>) -> f32 {
    const STEPS: i8 = 7;
    let farthest = farthest_from_zero(values);
    if farthest.abs() < 1e-15 || !farthest.is_finite() {
        return 0.0;
    }
    let weights = weights.copied().unwrap_or_else(|| values.map(|v| v * v));
    let first = f32::from(IQ4_CODES[0]);
    let steps = (-STEPS..=STEPS).map(|step| first + f32::from(step));
    // The best scale for given codes is `cv / cc`, and it reduces the weighted squared error by
    // `cv^2 / cc`.
    let mut best = (0.0f32, 0.0f32);
    for farthest_code in [-first].into_iter().chain(steps) {
        let per_unit = farthest_code / farthest;
        let (mut cv, mut cc) = (0.0f32, 0.0f32);
        for (v, w) in values.iter().zip(&weights) {
            let code = f32::from(IQ4_CODES[usize::from(nearest_index(v * per_unit))]);
            cv += w * code * v;
            cc += w * code * code;
        }
        if cc > 0.0 && cv * cv > best.1 * cc {
            best = (cv / cc, cv * cv / cc);
        }
    }
    best.0
}
