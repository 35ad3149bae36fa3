//! IQ2_XXS. A block of 256 values consists of `d` (f16), then for each 32 values:
//! - 4 bytes: for each 8 values, an index into [`grid::IQ2_XXS`];
//! - a u32: for each 8 values, 7 bits of signs; in the upper 4 bits, a scale.
//!
//! `value = (d * (0.5 + scale) / 4) * code`.

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
    for (i, (codes, bytes)) in groups.enumerate() {
        let bits = read_u32(bytes, 1);
        unpacked.scales[i] = d * (0.5 + (bits >> 28) as f32) * 0.25;
        unpacked.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *codes = grid::even_signed(grid::IQ2_XXS[usize::from(bytes[l])], bits >> (7 * l));
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
