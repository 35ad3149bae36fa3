//! IQ4_NL: `d` (f16), then 16 bytes of nibbles in the order of Q4_0, each an index into
//! [`IQ4_CODES`]. `value = d * code`.

use super::block::{Code, Quantize, Quants, UnpackedBlock, look_up, read_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
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
