//! IQ2_XS: `d` (f16), 32 u16 with an index into [`grid::IQ2_XS`] (9 bits) and the signs (7 bits)
//! of 8 values each, then a scale of 4 bits for each 16 values. `value = (d * (0.5 + scale) / 4) *
//! code`.

use super::block::{Code, Quantize, Quants, Unpacked, nibble, read_f16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 16, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let d = read_f16(block, 0);
    for (i, scale) in parts.scales.iter_mut().enumerate() {
        *scale = d * (0.5 + f32::from(nibble(&block[66..74], i))) * 0.25;
    }
    parts.mins = [0.0; 16];
    let codes = parts.codes.as_chunks_mut::<8>().0.iter_mut();
    for (codes, word) in codes.zip(block[2..66].as_chunks::<2>().0) {
        let word = u16::from_le_bytes(*word);
        *codes = grid::even_signed(grid::IQ2_XS[usize::from(word & 511)], u32::from(word >> 9));
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
