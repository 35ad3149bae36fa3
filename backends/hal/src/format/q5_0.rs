//! Q5_0: `d` (f16), 4 bytes of high bits, 16 bytes of nibbles in the order of Q4_0.
//! `value = d * (code - 16)`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, five_bits,
    inverse_or_zero, read_f16, write_f16, write_five_bits,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: false, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    five_bits(&block[2..22], &mut unpacked.codes[..32]);
    unpacked.codes[..32].iter_mut().for_each(|code| *code -= 16);
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Without an importance matrix, the value farthest from zero becomes code -16, so the scale may be
/// negative.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let scale = match importance {
        Some(importance) => search::block_scale(values, importance, 16),
        None => farthest_from_zero(values) / -16.0,
    };
    let inverse = inverse_or_zero(scale);
    write_f16(block, 0, scale);
    let code = |j: usize| (values[j] * inverse + 16.5).clamp(0.0, 31.0) as u8;
    write_five_bits(&std::array::from_fn(code), &mut block[2..22]);
}
