//! IQ3_XXS. A block of 256 values consists of:
//! - `d` (f16);
//! - 64 bytes: for each 4 values, an index into [`grid::IQ3_XXS`];
//! - 8 u32: in each, 7 bits of signs for each 8 of 32 values; in the upper 4 bits, their scale.
//!
//! `value = (d * (0.5 + scale) / 2) * code`.

use super::block::{Code, Quantize, Quants, UnpackedBlock, read_f16, read_u32};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let d = read_f16(block, 0);
    let groups = unpacked.codes.as_chunks_mut::<32>().0.iter_mut();
    let groups = groups.zip(block[2..66].as_chunks::<8>().0);
    for (i, (codes, indices)) in groups.enumerate() {
        let bits = read_u32(&block[66..98], i);
        unpacked.scales[i] = d * (0.5 + (bits >> 28) as f32) * 0.5;
        unpacked.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let four = |index: u8| grid::IQ3_XXS[usize::from(index)];
            let values = grid::join(four(indices[2 * l]), four(indices[2 * l + 1]));
            *codes = grid::even_signed(values, bits >> (7 * l));
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
