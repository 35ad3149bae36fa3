//! IQ4_XS. A block of 256 values consists of:
//! - `d` (f16);
//! - a u16: the upper two bits of 8 scales, each of 32 values;
//! - 4 bytes: the low nibbles of the scales;
//! - 128 bytes: for each 32 values, 16 bytes of nibbles as in IQ4_NL.
//!
//! `value = (d * (scale - 32)) * code`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, inverse_or_zero,
    look_up, nibble, power, read_f16, read_u16, write_f16,
};
use super::iq4_nl::{IQ4_CODES, best_scale, write_indices};
use super::search::round;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (d, upper) = (read_f16(block, 0), read_u16(block, 1));
    let groups = unpacked.codes.chunks_exact_mut(32).zip(block[8..136].chunks_exact(16));
    for (i, (codes, pairs)) in groups.enumerate() {
        look_up(pairs, &IQ4_CODES, codes);
        let scale = nibble(&block[4..8], i) | ((upper >> (2 * i) & 3) as u8) << 4;
        unpacked.scales[i] = d * f32::from(scale as i8 - 32);
        unpacked.mins[i] = 0.0;
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Finds the best scale of every group, then rounds the scales to 6 bits. The scale of the largest
/// magnitude becomes -32.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let mut scales = [0.0f32; 8];
    let power = 2.0 * power(values);
    let groups = values.as_chunks::<32>().0;
    for (g, (scale, group)) in scales.iter_mut().zip(groups).enumerate() {
        let weights = importance.map(|importance| importance.weights(g, group, power));
        *scale = best_scale(group, weights.as_ref());
    }
    let top = farthest_from_zero(&scales) / -32.0;
    let inverse = inverse_or_zero(top);
    block.fill(0);
    let d = write_f16(block, 0, top);
    for (g, group) in groups.iter().enumerate() {
        let scale = round(scales[g] * inverse).clamp(-32, 31);
        let stored = (scale + 32) as u8;
        block[2 + g / 4] |= (stored >> 4) << (2 * (g % 4));
        block[4 + g / 2] |= (stored & 15) << (4 * (g % 2));
        write_indices(group, d * scale as f32, &mut block[8 + 16 * g..][..16]);
    }
}
