//! IQ2_S. A block of 256 values consists of:
//! - `d` (f16);
//! - 32 bytes: for each 8 values, the lower 8 bits of an index into [`grid::IQ2_S`];
//! - 32 bytes: for each 8 values, their signs;
//! - 8 bytes: for each 8 values, the upper 2 bits of the index;
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
        *scale = d * (0.5 + f32::from(nibble(&block[74..82], i))) * 0.25;
    }
    unpacked.mins = [0.0; 16];
    let lows = block[2..34].as_chunks::<4>().0.iter().zip(block[34..66].as_chunks::<4>().0);
    let groups = unpacked.codes.as_chunks_mut::<32>().0.iter_mut().zip(&block[66..74]);
    for ((codes, &uppers), (lows, signs)) in groups.zip(lows) {
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let index = usize::from(lows[l]) | usize::from(uppers >> (2 * l) & 3) << 8;
            *codes = grid::apply_signs(grid::IQ2_S[index], signs[l]);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
