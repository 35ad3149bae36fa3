//! IQ1_S: `d` (f16); for each 8 values the lower 8 bits of an index into the table of
//! [`grid::eighths`]; then for each 32 values a u16 with the upper 3 bits of their four indices, a
//! scale of 3 bits, and the sign of an eighth that is added to all values. `value = (d * (2 *
//! scale + 1)) * (entry + eighth)`; codes are eighths, which is exact.

use super::block::{Code, Quantize, Quants, Unpacked, read_f16, read_u16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let d = read_f16(block, 0);
    let groups = parts.codes.as_chunks_mut::<32>().0.iter_mut();
    let groups = groups.zip(block[2..34].as_chunks::<4>().0);
    for (i, (codes, lows)) in groups.enumerate() {
        let word = read_u16(block, 17 + i);
        parts.scales[i] = d * f32::from(2 * (word >> 12 & 7) + 1) * 0.125;
        parts.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let place = usize::from(lows[l]) | usize::from(word >> (3 * l) & 7) << 8;
            *codes = grid::eighths(place, word & 0x8000 != 0);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
