//! IQ4_XS. A block of 256 values consists of:
//! - `d` (f16);
//! - a u16: the upper two bits of 8 scales, each of 32 values;
//! - 4 bytes: the low nibbles of the scales;
//! - 128 bytes: for each 32 values, 16 bytes of nibbles as in IQ4_NL.
//!
//! `value = (d * (scale - 32)) * code`.

use super::block::{Code, Quantize, Quants, UnpackedBlock, look_up, nibble, read_f16, read_u16};
use super::iq4_nl::IQ4_CODES;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
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
