//! MXFP4: an exponent byte, then 16 bytes of nibbles in the order of Q4_0, each an index into
//! [`E2M1_CODES`]. `value = 2^(exponent - 128) * code`.
//!
//! Source: OCP Microscaling Formats 1.0. The codes are its E2M1 numbers, doubled.

use super::block::{Code, Importance, Quantize, Quants, UnpackedBlock, look_up};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

/// The E2M1 values (sign, two bits of exponent, one of mantissa), doubled.
pub const E2M1_CODES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scale of a block: `2^(exponent - 128)`, finite for every exponent.
#[inline]
#[must_use]
pub const fn e8m0_scale(exponent: u8) -> f32 {
    // The two smallest scales are subnormal floats.
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent as u32 - 1) << 23,
    })
}

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    look_up(&block[1..17], &E2M1_CODES, &mut unpacked.codes[..32]);
    unpacked.scales[0] = e8m0_scale(block[0]);
    unpacked.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Uses the exponent of the largest magnitude, whose code is then 8 or 12.
fn quantize_block(values: &[f32], _: Option<Importance<'_>>, block: &mut [u8]) {
    let largest = values.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
    let exponent = if largest > 0.0 { largest.log2().floor() + 125.0 } else { 0.0 };
    block[0] = exponent.clamp(0.0, 254.0) as u8;
    let scale = e8m0_scale(block[0]);
    // A value halfway between two codes takes the smaller one.
    let limits = [0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0].map(|limit: f32| limit * scale);
    let nibble = |v: f32| {
        let size = limits.iter().map(|limit| u8::from(v.abs() > *limit)).sum::<u8>();
        if size > 0 && v < 0.0 { size + 8 } else { size }
    };
    for (j, pair) in block[1..17].iter_mut().enumerate() {
        *pair = nibble(values[j]) | nibble(values[j + 16]) << 4;
    }
}
