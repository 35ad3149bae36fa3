//! Scale search for the formats with blocks of 256 values, and their packed 6-bit scales.
//!
//! Source: ggml's reference quantisers. For a few steps near the full range the codes are rounded,
//! then scale and minimum are solved for by weighted least squares; the best pair wins.

use super::block::{Unpacked, inverse, read_f16, write_f16};

/// Rounds to the nearest integer, ties to even; NaN becomes 0.
pub(super) fn round(v: f32) -> i32 {
    v.round_ties_even() as i32
}

/// Rounds to the nearest integer, ties to even, for magnitudes far below 2^22. The addition rounds
/// on any vector unit, whereas `round_ties_even` is a function call on CPUs whose baseline has no
/// such instruction.
#[inline]
pub(super) fn nearest(v: f32) -> f32 {
    const BIG: f32 = 12_582_912.0; // 1.5 * 2^23: the sum has no fractional bits
    (v + BIG) - BIG
}

/// `v` clamped to `low..=high`; NaN becomes `low`. Two instructions; `f32::clamp` needs more
/// because it keeps NaN.
#[inline]
pub(super) fn clamped(v: f32, low: f32, high: f32) -> f32 {
    let v = if v > low { v } else { low };
    if v < high { v } else { high }
}

/// The sum of `of(i)` for each of the `N` values of a group, in eight independent running sums.
#[inline]
fn sum<const N: usize>(of: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    for first in (0..N).step_by(8) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += of(first + lane);
        }
    }
    lanes.iter().sum()
}

/// Reads the head of a Q4_K or Q5_K block: 8 scales and minimums, already multiplied by `d` and
/// `dmin`.
///
/// Of the 12 bytes, byte j < 4 holds scale j and byte j + 4 minimum j in six bits; their upper two
/// bits and the two nibbles of byte j + 8 form scale j + 4 and minimum j + 4.
#[inline]
pub(super) fn read_scales(block: &[u8], parts: &mut Unpacked) {
    let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
    let packed = &block[4..16];
    for j in 0..4 {
        let (scale, min, both) = (packed[j], packed[j + 4], packed[j + 8]);
        parts.scales[j] = d * f32::from(scale & 63);
        parts.mins[j] = dmin * f32::from(min & 63);
        parts.scales[j + 4] = d * f32::from((both & 15) | (scale >> 6) << 4);
        parts.mins[j + 4] = dmin * f32::from((both >> 4) | (min >> 6) << 4);
    }
}

/// How formats with minimums search a group's scale and minimum.
pub(super) struct Fit {
    pub max_code: u8,
    /// The first of the ranges tried, relative to `max_code`; the others follow 0.1 apart.
    pub first_step: f32,
    pub n_steps: u8,
}

impl Fit {
    /// For Q4_K and Q5_K: writes the 16 bytes of scales to `block` and returns the 256 codes.
    pub(super) fn quantize(&self, values: &[f32], block: &mut [u8]) -> [u8; 256] {
        let (mut scales, mut mins) = ([0.0f32; 8], [0.0f32; 8]);
        for (g, group) in values.as_chunks::<32>().0.iter().enumerate() {
            (scales[g], mins[g]) = self.scale_and_min(group);
        }
        let top_scale = scales.iter().copied().fold(0.0, f32::max) / 63.0;
        let top_min = mins.iter().copied().fold(0.0, f32::max) / 63.0;
        let d = write_f16(block, 0, top_scale);
        let dmin = write_f16(block, 2, top_min);
        let six_bits = |v: f32, top: f32| round(v * inverse(top)).clamp(0, 63) as u8;
        let scales = scales.map(|scale| six_bits(scale, top_scale));
        let mins = mins.map(|min| six_bits(min, top_min));
        for j in 0..4 {
            block[4 + j] = scales[j] | (scales[j + 4] >> 4) << 6;
            block[8 + j] = mins[j] | (mins[j + 4] >> 4) << 6;
            block[12 + j] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
        }
        let mut codes = [0u8; 256];
        for (g, (codes, values)) in
            codes.chunks_exact_mut(32).zip(values.chunks_exact(32)).enumerate()
        {
            let inverse = inverse(d * f32::from(scales[g]));
            let min = dmin * f32::from(mins[g]);
            for (code, v) in codes.iter_mut().zip(values) {
                *code = nearest(clamped((v + min) * inverse, 0.0, f32::from(self.max_code))) as u8;
            }
        }
        codes
    }

    /// The scale, and the minimum to subtract (never negative), of one group.
    pub(super) fn scale_and_min<const N: usize>(&self, values: &[f32; N]) -> (f32, f32) {
        let min = values.iter().copied().fold(0.0, f32::min);
        let max = values.iter().copied().fold(f32::MIN, f32::max);
        let range = max - min;
        if range <= 0.0 || !range.is_finite() {
            return (0.0, -min);
        }
        let root = (sum::<N>(|i| values[i] * values[i]) / N as f32).sqrt();
        let weights = values.map(|v| root + v.abs());
        let top = f32::from(self.max_code);
        let mut best = (range / top, min);
        let mut best_error = f32::INFINITY;
        for step in 0..=self.n_steps {
            // Every range starts at the best minimum so far; the first is the full range,
            // unfitted.
            let start = best.1;
            let extra = if step == 0 { 0.0 } else { self.first_step + 0.1 * f32::from(step - 1) };
            let per_unit = (top + extra) / (max - start);
            let codes = values.map(|v| nearest(clamped((v - start) * per_unit, 0.0, top)));
            let fit = if step == 0 { Some(best) } else { solve(&weights, values, &codes) };
            let Some((scale, min)) = fit else { continue };
            let error = sum::<N>(|i| weights[i] * (scale * codes[i] + min - values[i]).powi(2));
            if error < best_error {
                (best, best_error) = ((scale, min), error);
            }
        }
        (best.0, -best.1)
    }
}

/// Scale and offset of the least-squares line from codes to values; the offset is clamped to at
/// most zero.
fn solve<const N: usize>(
    weights: &[f32; N],
    values: &[f32; N],
    codes: &[f32; N],
) -> Option<(f32, f32)> {
    let weighed: [f32; N] = core::array::from_fn(|i| weights[i] * codes[i]);
    let w = sum::<N>(|i| weights[i]);
    let v = sum::<N>(|i| weights[i] * values[i]);
    let c = sum::<N>(|i| weighed[i]);
    let cc = sum::<N>(|i| weighed[i] * codes[i]);
    let cv = sum::<N>(|i| weighed[i] * values[i]);
    let determinant = w * cc - c * c;
    if determinant <= 0.0 {
        return None;
    }
    let offset = (cc * v - c * cv) / determinant;
    if offset > 0.0 {
        return (cc > 0.0).then(|| (cv / cc, 0.0));
    }
    Some(((w * cv - v * c) / determinant, offset))
}

/// The best scale of a group with signed codes in `-n..n`; the value farthest from zero gets the
/// negative end, so that the scale carries its sign.
pub(super) fn signed_scale(values: &[f32; 16], n: i8) -> f32 {
    let farthest = values.iter().fold(0.0f32, |far, &v| if v.abs() > far.abs() { v } else { far });
    if farthest.abs() < 1e-15 || !farthest.is_finite() {
        return 0.0;
    }
    let n = f32::from(n);
    let weights = values.map(|v| v * v);
    // The weights are the squares of the values, and the best scale for given codes explains `cv^2
    // / cc` of the sum.
    let explained = |per_unit: f32| {
        let codes = values.map(|v| nearest(clamped(v * per_unit, -n, n - 1.0)));
        let cv = sum::<16>(|i| weights[i] * codes[i] * values[i]);
        (cv, sum::<16>(|i| weights[i] * codes[i] * codes[i]))
    };
    let mut best = (0.0f32, 0.0f32);
    // The full range comes first, so it wins ties.
    for step in [0].into_iter().chain(-9i8..=9) {
        let (cv, cc) = explained(-(n + 0.1 * f32::from(step)) / farthest);
        if cc > 0.0 && cv * cv > best.1 * cc {
            best = (cv / cc, cv * cv / cc);
        }
    }
    best.0
}
