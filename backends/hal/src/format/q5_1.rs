//! Q5_1: `d` and `m` (f16), 4 bytes of high bits, 16 bytes of nibbles in the order of Q4_0.
//! `value = d * code + m`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, five_bits, inverse_or_zero, read_f16,
    write_f16, write_five_bits,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: false, has_min: true, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    five_bits(&block[4..24], &mut unpacked.codes[..32]);
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = -read_f16(block, 2);
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (scale, min) = match importance {
        Some(importance) => search::block_scale_and_min(values, importance, 31),
        None => {
            let min = values.iter().copied().fold(f32::MAX, f32::min);
            let max = values.iter().copied().fold(-f32::MAX, f32::max);
            ((max - min) / 31.0, min)
        }
    };
    let inverse = inverse_or_zero(scale);
    write_f16(block, 0, scale);
    write_f16(block, 2, min);
    let code = |j: usize| ((values[j] - min) * inverse + 0.5).clamp(0.0, 31.0) as u8;
    write_five_bits(&std::array::from_fn(code), &mut block[4..24]);
}
