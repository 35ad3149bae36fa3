//! Scale search for the formats with blocks of 256 values, and their packed 6-bit scales.
//!
//! Source: ggml's reference quantisers. The search tries several code ranges near the full range.
//! For each range it rounds the codes, then solves for scale and minimum by weighted least squares.
//! The pair with the smallest error wins.

use super::block::{
    Importance, UnpackedBlock, farthest_from_zero, inverse_or_zero, power, read_f16, write_f16,
};

/// Rounds to the nearest integer, ties to even; NaN becomes 0.
pub(super) fn round(v: f32) -> i32 {
    v.round_ties_even() as i32
}

/// Rounds to the nearest integer, ties to even, for magnitudes far below 2^22. Every CPU has a
/// vector instruction for the addition, whereas `round_ties_even` is a function call on targets
/// without a rounding instruction, such as baseline x86-64.
#[inline]
pub(super) fn nearest(v: f32) -> f32 {
    const BIG: f32 = 12_582_912.0; // 1.5 * 2^23: the sum has no fractional bits
    (v + BIG) - BIG
}

/// `v` clamped to `low..=high`; NaN becomes `low`. This compiles to two instructions; `f32::clamp`
/// needs more because it preserves NaN.
#[inline]
pub(super) fn clamp_nan_to_low(v: f32, low: f32, high: f32) -> f32 {
    let v = if v > low { v } else { low };
    if v < high { v } else { high }
}

/// The sum of `term(i)` over the `N` values of a group. The eight independent partial sums allow
/// vector instructions.
#[inline]
fn sum<const N: usize>(term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0f32; 8];
    for first in (0..N).step_by(8) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(first + lane);
        }
    }
    lanes.iter().sum()
}

/// Reads the 16-byte header of a Q4_K or Q5_K block: 8 scales, multiplied by `d`, and 8 minimums,
/// multiplied by `dmin`.
///
/// The last 12 bytes of the header pack them in 6 bits each. For j < 4, the lower six bits of byte
/// j hold scale j, and those of byte j + 4 hold minimum j. The upper two bits of these two bytes
/// extend the nibbles of byte j + 8 to scale j + 4 (low nibble) and minimum j + 4 (high nibble).
#[inline]
pub(super) fn read_scales(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (d, dmin) = (read_f16(block, 0), read_f16(block, 2));
    let packed = &block[4..16];
    for j in 0..4 {
        let (scale, min, both) = (packed[j], packed[j + 4], packed[j + 8]);
        unpacked.scales[j] = d * f32::from(scale & 63);
        unpacked.mins[j] = dmin * f32::from(min & 63);
        unpacked.scales[j + 4] = d * f32::from((both & 15) | (scale >> 6) << 4);
        unpacked.mins[j + 4] = dmin * f32::from((both >> 4) | (min >> 6) << 4);
    }
}

/// How to search for a group's scale and minimum, in formats with minimums.
pub(super) struct Fit {
    /// Largest code: the full range is `0..=max_code`.
    pub max_code: u8,
    /// The ranges that the search tries without an importance matrix, in addition to the full range.
    pub ranges: Ranges,
}

/// Code ranges near the full range.
#[derive(Clone, Copy)]
pub(super) struct Ranges {
    /// Size of the first range, minus the largest code.
    pub first: f32,
    /// By how much each further range is larger.
    pub step: f32,
    /// Number of ranges.
    pub n: u8,
}

impl Ranges {
    /// The ranges that the search tries with an importance matrix.
    pub(super) const FINE: Ranges = Ranges { first: -0.9, step: 0.05, n: 37 };
}

impl Fit {
    /// For Q4_K and Q5_K: writes the 16-byte header to `block` and returns the 256 codes.
    pub(super) fn quantize(
        &self,
        values: &[f32],
        importance: Option<Importance<'_>>,
        block: &mut [u8],
    ) -> [u8; 256] {
        let (mut scales, mut mins, mut totals) = ([0.0f32; 8], [0.0f32; 8], [0.0f32; 8]);
        let power = 2.0 * power(values);
        for (g, group) in values.as_chunks::<32>().0.iter().enumerate() {
            let weights = importance.map(|importance| importance.weights(g, group, power));
            (scales[g], mins[g]) = self.scale_and_min(group, weights.as_ref());
            totals[g] = weights.map_or(0.0, |weights| weights.iter().sum());
        }
        let totals = importance.map(|_| &totals);
        let (d, scales) = common_factor(&scales, totals, 63);
        let (dmin, mins) = common_factor(&mins, totals, 63);
        let (d, dmin) = (write_f16(block, 0, d), write_f16(block, 2, dmin));
        for j in 0..4 {
            block[4 + j] = scales[j] | (scales[j + 4] >> 4) << 6;
            block[8 + j] = mins[j] | (mins[j + 4] >> 4) << 6;
            block[12 + j] = (scales[j + 4] & 15) | (mins[j + 4] & 15) << 4;
        }
        let mut codes = [0u8; 256];
        for (g, (codes, values)) in
            codes.chunks_exact_mut(32).zip(values.chunks_exact(32)).enumerate()
        {
            let inverse = inverse_or_zero(d * f32::from(scales[g]));
            let min = dmin * f32::from(mins[g]);
            for (code, v) in codes.iter_mut().zip(values) {
                *code =
                    nearest(clamp_nan_to_low((v + min) * inverse, 0.0, f32::from(self.max_code)))
                        as u8;
            }
        }
        codes
    }

    /// The scale of one group, and the minimum to subtract, which is never negative. `weights`, from
    /// an importance matrix, are the weights of the squared errors.
    pub(super) fn scale_and_min<const N: usize>(
        &self,
        values: &[f32; N],
        weights: Option<&[f32; N]>,
    ) -> (f32, f32) {
        let min = values.iter().copied().fold(0.0, f32::min);
        let max = values.iter().copied().fold(f32::MIN, f32::max);
        let range = max - min;
        if range <= 0.0 || !range.is_finite() {
            return (0.0, -min);
        }
        let (weights, ranges) = match weights {
            Some(weights) => (*weights, Ranges::FINE),
            None => {
                let root = (sum::<N>(|i| values[i] * values[i]) / N as f32).sqrt();
                (values.map(|v| root + v.abs()), self.ranges)
            }
        };
        let top = f32::from(self.max_code);
        let mut best = (range / top, min);
        let mut best_error = f32::INFINITY;
        for step in 0..=ranges.n {
            // Step 0 takes the full range without a fit. Every range starts at the best minimum
            // so far.
            let start = best.1;
            let extra =
                if step == 0 { 0.0 } else { ranges.first + ranges.step * f32::from(step - 1) };
            let per_unit = (top + extra) / (max - start);
            let codes = values.map(|v| nearest(clamp_nan_to_low((v - start) * per_unit, 0.0, top)));
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

/// Scale and offset of the weighted least-squares line from codes to values. A positive offset is
/// replaced by 0. `None` if the codes do not determine the line.
fn solve<const N: usize>(
    weights: &[f32; N],
    values: &[f32; N],
    codes: &[f32; N],
) -> Option<(f32, f32)> {
    let weighted: [f32; N] = core::array::from_fn(|i| weights[i] * codes[i]);
    let w = sum::<N>(|i| weights[i]);
    let v = sum::<N>(|i| weights[i] * values[i]);
    let c = sum::<N>(|i| weighted[i]);
    let cc = sum::<N>(|i| weighted[i] * codes[i]);
    let cv = sum::<N>(|i| weighted[i] * values[i]);
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

/// Rounds values that are not negative to codes in `0..=max_code` times a common factor, which is
/// returned with the codes. `weights`, from an importance matrix, are the weights of the squared
/// errors; without them, the largest value gets the largest code.
pub(super) fn common_factor<const N: usize>(
    values: &[f32; N],
    weights: Option<&[f32; N]>,
    max_code: u8,
) -> (f32, [u8; N]) {
    let (top, limit) = (values.iter().copied().fold(0.0, f32::max), f32::from(max_code));
    if let Some(weights) = weights.filter(|_| top >= 1e-15 && top.is_finite()) {
        return weighted_factor(values, weights, top, limit);
    }
    let factor = top / limit;
    let inverse = inverse_or_zero(factor);
    (factor, values.map(|v| round(v * inverse).clamp(0, i32::from(max_code)) as u8))
}

/// [`common_factor`] with weights: takes the best of several code ranges near the full range, then
/// changes single codes.
fn weighted_factor<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    top: f32,
    limit: f32,
) -> (f32, [u8; N]) {
    let codes_of =
        |per_unit: f32| values.map(|v| nearest(clamp_nan_to_low(v * per_unit, 0.0, limit)));
    let mut best = (f32::INFINITY, [0.0f32; N]);
    // The full range comes first, so it wins ties.
    for step in [0].into_iter().chain(-4i8..=4) {
        let per_unit = (limit + 0.1 * f32::from(step)) / top;
        let codes = codes_of(per_unit);
        let error = sum::<N>(|i| weights[i] * (values[i] - codes[i] / per_unit).powi(2));
        if error < best.0 {
            best = (error, codes);
        }
    }
    let mut codes = best.1;
    let factor = improve(values, weights, &mut codes, [0.0, limit]);
    (factor, codes.map(|code| code as u8))
}

/// Changes single codes within `limits` while the weighted squared error falls, at most five rounds.
/// Returns the best factor of the codes, `cv / cc`, which reduces the error by `cv^2 / cc`.
fn improve<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    codes: &mut [f32; N],
    limits: [f32; 2],
) -> f32 {
    const MAX_ROUNDS: usize = 5;
    let mut cv = sum::<N>(|i| weights[i] * codes[i] * values[i]);
    let mut cc = sum::<N>(|i| weights[i] * codes[i] * codes[i]);
    for _ in 0..MAX_ROUNDS {
        let before = *codes;
        for i in 0..N {
            let (w, v, code) = (weights[i], values[i], codes[i]);
            let (rest_cv, rest_cc) = (cv - w * v * code, cc - w * code * code);
            if rest_cv <= 0.0 || rest_cc <= 0.0 {
                continue;
            }
            let other = nearest(clamp_nan_to_low(v * rest_cc / rest_cv, limits[0], limits[1]));
            let (other_cv, other_cc) = (rest_cv + w * v * other, rest_cc + w * other * other);
            if other_cv * other_cv * cc > cv * cv * other_cc {
                (codes[i], cv, cc) = (other, other_cv, other_cc);
            }
        }
        if *codes == before {
            break;
        }
    }
    if cc > 0.0 { cv / cc } else { 0.0 }
}

/// The scale of a group with signed codes in `-n..n`, from the codes of the full range: the value
/// farthest from zero gets code `-n`. At three bits, other ranges cost perplexity, although the
/// error of the group is smaller.
pub(super) fn full_range_scale<const N: usize>(values: &[f32; N], n: i8) -> f32 {
    let farthest = farthest_from_zero(values);
    if farthest.abs() < 1e-15 || !farthest.is_finite() {
        return 0.0;
    }
    let limits = [-f32::from(n), f32::from(n) - 1.0];
    let per_unit = limits[0] / farthest;
    let mut codes = values.map(|v| nearest(clamp_nan_to_low(v * per_unit, limits[0], limits[1])));
    improve(values, &values.map(|v| v * v), &mut codes, limits)
}

/// The best scale of a group with signed codes in `-n..n`. The value farthest from zero gets code
/// `-n`, so the scale may be negative. `weights`, from an importance matrix, are the weights of the
/// squared errors; without them, a large value counts more than a small one.
pub(super) fn signed_scale<const N: usize>(
    values: &[f32; N],
    weights: Option<&[f32; N]>,
    n: i8,
) -> f32 {
    let farthest = farthest_from_zero(values);
    if farthest.abs() < 1e-15 || !farthest.is_finite() {
        return 0.0;
    }
    let n = f32::from(n);
    let weights = weights.copied().unwrap_or_else(|| values.map(|v| v * v));
    // The best scale for given codes is `cv / cc`, and it reduces the weighted squared error by
    // `cv^2 / cc`.
    let products = |per_unit: f32| {
        let codes = values.map(|v| nearest(clamp_nan_to_low(v * per_unit, -n, n - 1.0)));
        let cv = sum::<N>(|i| weights[i] * codes[i] * values[i]);
        (cv, sum::<N>(|i| weights[i] * codes[i] * codes[i]))
    };
    let mut best = (0.0f32, 0.0f32);
    // The full range comes first, so it wins ties.
    for step in [0].into_iter().chain(-9i8..=9) {
        let (cv, cc) = products(-(n + 0.1 * f32::from(step)) / farthest);
        if cc > 0.0 && cv * cv > best.1 * cc {
            best = (cv / cc, cv * cv / cc);
        }
    }
    best.0
}

/// The best scale of a block of 32 values with signed codes in `-n..n`, for the formats with one
/// scale per block.
pub(super) fn block_scale(values: &[f32], importance: Importance<'_>, n: i8) -> f32 {
    let Some(values) = values.first_chunk::<32>() else { return 0.0 };
    let weights = importance.weights(0, values, importance.row_power);
    signed_scale(values, Some(&weights), n)
}

/// The best scale and the minimum, at most 0, of a block of 32 values, for the formats with one
/// scale and minimum per block.
pub(super) fn block_scale_and_min(
    values: &[f32],
    importance: Importance<'_>,
    max_code: u8,
) -> (f32, f32) {
    let Some(values) = values.first_chunk::<32>() else { return (0.0, 0.0) };
    let weights = importance.weights(0, values, importance.row_power);
    let (scale, min) = Fit { max_code, ranges: Ranges::FINE }.scale_and_min(values, Some(&weights));
    (scale, -min)
}
