//! Q4_1: `d` and `m` (f16), then 16 bytes of nibbles in the order of Q4_0.
//! `value = d * nibble + m`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, inverse_or_zero, read_f16, write_f16,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 0 },
    wide_scales: false,
    has_min: true,
    unpack,
};

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (low, high) = unpacked.codes[..32].split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[4..20]) {
        *low = (pair & 15) as i8;
        *high = (pair >> 4) as i8;
    }
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = -read_f16(block, 2);
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (scale, min) = match importance {
        Some(importance) => search::block_scale_and_min(values, importance, 15),
        None => {
            let min = values.iter().copied().fold(f32::MAX, f32::min);
            let max = values.iter().copied().fold(-f32::MAX, f32::max);
            ((max - min) / 15.0, min)
        }
    };
    let inverse = inverse_or_zero(scale);
    write_f16(block, 0, scale);
    write_f16(block, 2, min);
    let nibble = |v: f32| ((v - min) * inverse + 0.5).clamp(0.0, 15.0) as u8;
    for (j, pair) in block[4..20].iter_mut().enumerate() {
        *pair = nibble(values[j]) | nibble(values[j + 16]) << 4;
    }
}
