//! Q1_0: `d` (f16), then a bit for each of 128 values, the lowest of a byte first. `value = d`
//! where the bit is set, else `-d`.

use super::block::{Code, Quantize, Quants, Unpacked, read_f16, write_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
// Four equal scales, one per 32 values, so that code that reads groups needs no wider group.
const PARTS: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 1 },
    wide_scales: false,
    has_min: false,
    unpack,
};

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    for (codes, &bits) in parts.codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..18]) {
        for (k, code) in codes.iter_mut().enumerate() {
            *code = (2 * (bits >> k & 1)) as i8 - 1;
        }
    }
    parts.scales[..4].fill(read_f16(block, 0));
    parts.mins[..4].fill(0.0);
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}

/// The scale is the mean magnitude of the values, which minimises the error.
fn quantize_block(values: &[f32], block: &mut [u8]) {
    let mean = values.iter().map(|v| v.abs()).sum::<f32>() / values.len() as f32;
    write_f16(block, 0, mean);
    for (bits, values) in block[2..].iter_mut().zip(values.chunks_exact(8)) {
        *bits = values.iter().rev().fold(0, |bits, v| bits << 1 | u8::from(*v >= 0.0));
    }
}
