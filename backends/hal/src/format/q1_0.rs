//! Q1_0: `d` (f16), then a bit for each of 128 values, from the lowest bit of each byte on.
//! `value = d` if the bit is set, otherwise `-d`.

use super::block::{Code, Importance, Quantize, Quants, UnpackedBlock, read_f16, write_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
// Four equal scales, one per 32 values: kernels then need not support a group of 128.
const SPEC: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 1 },
    wide_scales: false,
    has_min: false,
    unpack,
};

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    for (codes, &bits) in unpacked.codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..18]) {
        for (k, code) in codes.iter_mut().enumerate() {
            *code = (2 * (bits >> k & 1)) as i8 - 1;
        }
    }
    unpacked.scales[..4].fill(read_f16(block, 0));
    unpacked.mins[..4].fill(0.0);
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// The scale is the mean magnitude of the values, which minimises the error.
fn quantize_block(values: &[f32], _: Option<Importance<'_>>, block: &mut [u8]) {
    let mean = values.iter().map(|v| v.abs()).sum::<f32>() / values.len() as f32;
    write_f16(block, 0, mean);
    for (bits, values) in block[2..].iter_mut().zip(values.chunks_exact(8)) {
        *bits = values.iter().rev().fold(0, |bits, v| bits << 1 | u8::from(*v >= 0.0));
    }
}
