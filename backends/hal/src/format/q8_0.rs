//! Q8_0: `d` (f16), then 32 signed bytes. `value = d * byte`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, inverse_or_zero, read_f16, write_f16,
};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: false, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    unpacked.codes[..32].copy_from_slice(bytemuck::cast_slice(&block[2..34]));
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], _: Option<Importance<'_>>, block: &mut [u8]) {
    let farthest = values.iter().fold(0.0f32, |far, v| far.max(v.abs()));
    let scale = farthest / 127.0;
    let inverse = inverse_or_zero(scale);
    write_f16(block, 0, scale);
    for (code, v) in block[2..34].iter_mut().zip(values) {
        *code = ((v * inverse).round() as i8) as u8;
    }
}
