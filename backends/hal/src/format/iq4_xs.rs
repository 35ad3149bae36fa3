//! IQ4_XS: `d` (f16), the upper two bits of 8 scales (u16), their low nibbles, then 16 bytes for
//! each 32 values as in IQ4_NL. `value = (d * (scale - 32)) * code`.

use super::block::{Code, Quantize, Quants, Unpacked, look_up, nibble, read_f16, read_u16};
use super::iq4_nl::IQ4_CODES;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let (d, upper) = (read_f16(block, 0), read_u16(block, 1));
    let groups = parts.codes.chunks_exact_mut(32).zip(block[8..136].chunks_exact(16));
    for (i, (codes, pairs)) in groups.enumerate() {
        look_up(pairs, &IQ4_CODES, codes);
        let scale = nibble(&block[4..8], i) | ((upper >> (2 * i) & 3) as u8) << 4;
        parts.scales[i] = d * f32::from(scale as i8 - 32);
        parts.mins[i] = 0.0;
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
