//! Q8_0: `d` (f16), then 32 signed bytes. `value = d * byte`.

use super::block::{Code, Quantize, Quants, Unpacked, inverse, read_f16, write_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: false, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    parts.codes[..32].copy_from_slice(bytemuck::cast_slice(&block[2..34]));
    parts.scales[0] = read_f16(block, 0);
    parts.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], block: &mut [u8]) {
    let farthest = values.iter().fold(0.0f32, |far, v| far.max(v.abs()));
    let scale = farthest / 127.0;
    let inverse = inverse(scale);
    write_f16(block, 0, scale);
    for (code, v) in block[2..34].iter_mut().zip(values) {
        *code = ((v * inverse).round() as i8) as u8;
    }
}
