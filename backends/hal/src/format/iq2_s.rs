//! IQ2_S: `d` (f16); for each 8 values the lower 8 bits of an index into [`grid::IQ2_S`], a byte
//! of signs, and the upper 2 bits of the index; then a scale of 4 bits for each 16 values. `value
//! = (d * (0.5 + scale) / 4) * code`.

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
        *scale = d * (0.5 + f32::from(nibble(&block[74..82], i))) * 0.25;
    }
    parts.mins = [0.0; 16];
    let lows = block[2..34].as_chunks::<4>().0.iter().zip(block[34..66].as_chunks::<4>().0);
    let groups = parts.codes.as_chunks_mut::<32>().0.iter_mut().zip(&block[66..74]);
    for ((codes, &uppers), (lows, signs)) in groups.zip(lows) {
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let place = usize::from(lows[l]) | usize::from(uppers >> (2 * l) & 3) << 8;
            *codes = grid::signed(grid::IQ2_S[place], signs[l]);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
