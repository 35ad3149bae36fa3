//! IQ2_XS. A block of 256 values consists of:
//! - `d` (f16);
//! - 32 u16: for each 8 values, an index into [`grid::IQ2_XS`] (9 bits) and the signs (7 bits);
//! - 8 bytes: for each 16 values, a 4-bit scale.
//!
//! `value = (d * (0.5 + scale) / 4) * code`.

use super::block::{Code, Quantize, Quants, UnpackedBlock, nibble, read_f16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
const SPEC: Quants =
    Quants { group: 16, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let d = read_f16(block, 0);
    for (i, scale) in unpacked.scales.iter_mut().enumerate() {
        *scale = d * (0.5 + f32::from(nibble(&block[66..74], i))) * 0.25;
    }
    unpacked.mins = [0.0; 16];
    let codes = unpacked.codes.as_chunks_mut::<8>().0.iter_mut();
    for (codes, word) in codes.zip(block[2..66].as_chunks::<2>().0) {
        let word = u16::from_le_bytes(*word);
        *codes = grid::even_signed(grid::IQ2_XS[usize::from(word & 511)], u32::from(word >> 9));
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
