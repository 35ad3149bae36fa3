//! IQ1_S. A block of 256 values consists of:
//! - `d` (f16);
//! - 32 bytes: for each 8 values, the lower 8 bits of an index into the table of
//!   [`grid::iq1_eighths`];
//! - 8 u16: for each 32 values, the upper 3 bits of their four indices, a 3-bit scale and a sign.
//!
//! `value = (d * (2 * scale + 1)) * (entry + delta)`, where `delta` is 1/8, or -1/8 if the sign is
//! set. Codes count eighths, so they are exact.

use super::block::{Code, Quantize, Quants, UnpackedBlock, read_f16, read_u16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let d = read_f16(block, 0);
    let groups = unpacked.codes.as_chunks_mut::<32>().0.iter_mut();
    let groups = groups.zip(block[2..34].as_chunks::<4>().0);
    for (i, (codes, lows)) in groups.enumerate() {
        let word = read_u16(block, 17 + i);
        unpacked.scales[i] = d * f32::from(2 * (word >> 12 & 7) + 1) * 0.125;
        unpacked.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(lows[l]) | usize::from(word >> (3 * l) & 7) << 8;
            *codes = grid::iq1_eighths(index, word & 0x8000 != 0);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
