//! IQ1_M: for each 8 values the lower 8 bits of an index into the table of [`grid::eighths`], then
//! a nibble with its upper 3 bits and the sign of an eighth that is added; 4 u16 with four scales
//! of 3 bits each, for 16 values, and in their upper nibbles `d` (f16), the lowest first. `value =
//! (d * (2 * scale + 1)) * (entry + eighth)`; codes are eighths, which is exact.

use half::f16;

use super::block::{Code, Quantize, Quants, Unpacked, read_u16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 16, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let words: [u16; 4] = std::array::from_fn(|i| read_u16(block, 24 + i));
    let bits = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let d = f16::from_bits(bits).to_f32();
    for (i, scale) in parts.scales.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (words[i / 4] >> (3 * (i % 4)) & 7) + 1) * 0.125;
    }
    parts.mins = [0.0; 16];
    let lows = block[..32].as_chunks::<2>().0.iter().zip(&block[32..48]);
    for (codes, (lows, &both)) in parts.codes.as_chunks_mut::<16>().0.iter_mut().zip(lows) {
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let upper = both >> (4 * l) & 15;
            let place = usize::from(lows[l]) | usize::from(upper & 7) << 8;
            *codes = grid::eighths(place, upper & 8 != 0);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
