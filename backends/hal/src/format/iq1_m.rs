//! IQ1_M. A block of 256 values consists of:
//! - 32 bytes: for each 8 values, the lower 8 bits of an index into the table of
//!   [`grid::iq1_eighths`];
//! - 16 bytes: for each 8 values, a nibble with the upper 3 bits of the index and a sign;
//! - 4 u16: in each, four 3-bit scales of 16 values; their upper nibbles form `d` (f16), the lowest
//!   nibble first.
//!
//! `value = (d * (2 * scale + 1)) * (entry + delta)`, where `delta` is 1/8, or -1/8 if the sign is
//! set. Codes count eighths, so they are exact.

use half::f16;

use super::block::{Code, Quantize, Quants, UnpackedBlock, read_u16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
const SPEC: Quants =
    Quants { group: 16, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let words: [u16; 4] = std::array::from_fn(|i| read_u16(block, 24 + i));
    let bits = words.iter().rev().fold(0, |bits, word| bits << 4 | word >> 12);
    let d = f16::from_bits(bits).to_f32();
    for (i, scale) in unpacked.scales.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (words[i / 4] >> (3 * (i % 4)) & 7) + 1) * 0.125;
    }
    unpacked.mins = [0.0; 16];
    let lows = block[..32].as_chunks::<2>().0.iter().zip(&block[32..48]);
    for (codes, (lows, &both)) in unpacked.codes.as_chunks_mut::<16>().0.iter_mut().zip(lows) {
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let upper = both >> (4 * l) & 15;
            let index = usize::from(lows[l]) | usize::from(upper & 7) << 8;
            *codes = grid::iq1_eighths(index, upper & 8 != 0);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
