//! Q4_1: `d` and `m` (f16), then 16 bytes of nibbles in the order of Q4_0. `value = d * nibble + m`.

use super::block::{Code, Quantize, Quants, Unpacked, inverse, read_f16, write_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const PARTS: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 0 },
    wide_scales: false,
    has_min: true,
    unpack,
};

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let (low, high) = parts.codes[..32].split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..20]) {
        *low = (pair & 15) as i8;
        *high = (pair >> 4) as i8;
    }
    parts.scales[0] = read_f16(block, 0);
    parts.mins[0] = -read_f16(block, 2);
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], block: &mut [u8]) {
    let min = values.iter().copied().fold(f32::MAX, f32::min);
    let max = values.iter().copied().fold(-f32::MAX, f32::max);
    let scale = (max - min) / 15.0;
    let inverse = inverse(scale);
    write_f16(block, 0, scale);
    write_f16(block, 2, min);
    let nibble = |v: f32| ((v - min) * inverse + 0.5).clamp(0.0, 15.0) as u8;
    for (j, pair) in block[4..20].iter_mut().enumerate() {
        *pair = nibble(values[j]) | nibble(values[j + 16]) << 4;
    }
}
