//! Q2_K: 16 bytes with a scale (low nibble) and a minimum (high nibble) for 16 values each, 64
//! bytes of bit pairs, `d` and `dmin` (f16). `value = (d * scale) * code - dmin * min`.
//!
//! Each half of the block (128 values) has 32 bytes of bit pairs. Bit pair k of byte j belongs to
//! value `32 * k + j` of the half.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, inverse_or_zero, power, read_f16, write_f16,
};
use super::search::{self, Fit, Ranges};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants = Quants {
    group: 16,
    code: Code::Nibble { offset: 0 },
    wide_scales: true,
    has_min: true,
    unpack,
};

const FIT: Fit = Fit { max_code: 3, ranges: Ranges { first: -0.5, step: 0.1, n: 15 } };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
    for (g, both) in block[..16].iter().enumerate() {
        unpacked.scales[g] = d * f32::from(both & 15);
        unpacked.mins[g] = dmin * f32::from(both >> 4);
    }
    let halves = block[16..80].chunks_exact(32);
    for (codes, pairs) in unpacked.codes.chunks_exact_mut(128).zip(halves) {
        for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, &pair) in codes.iter_mut().zip(pairs) {
                *code = (pair >> (2 * k) & 3) as i8;
            }
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Finds every group's scale and minimum first, then rounds both to 4 bits.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (mut scales, mut mins, mut totals) = ([0.0f32; 16], [0.0f32; 16], [0.0f32; 16]);
    let power = power(values);
    for (g, group) in values.as_chunks::<16>().0.iter().enumerate() {
        let weights = importance.map(|importance| importance.weights(g, group, power));
        (scales[g], mins[g]) = FIT.scale_and_min(group, weights.as_ref());
        totals[g] = weights.map_or(0.0, |weights| weights.iter().sum());
    }
    let totals = importance.map(|_| &totals);
    let (d, scales) = search::common_factor(&scales, totals, 15);
    let (dmin, mins) = search::common_factor(&mins, totals, 15);
    block.fill(0);
    let (d, dmin) = (write_f16(block, 80, d), write_f16(block, 82, dmin));
    for (g, group) in values.chunks_exact(16).enumerate() {
        let (scale, min) = (scales[g], mins[g]);
        block[g] = scale | min << 4;
        let inverse = inverse_or_zero(d * f32::from(scale));
        for (i, v) in group.iter().enumerate() {
            let code = (v + dmin * f32::from(min)) * inverse;
            let code = search::nearest(search::clamp_nan_to_low(code, 0.0, 3.0)) as u8;
            let at = 16 * g + i;
            block[16 + 32 * (at / 128) + at % 32] |= code << (2 * (at % 128 / 32));
        }
    }
}
