//! IQ3_S. A block of 256 values consists of:
//! - `d` (f16);
//! - 64 bytes: for each 4 values, the lower 8 bits of an index into [`grid::IQ3_S`];
//! - 8 bytes: for each 4 values, the upper bit of the index;
//! - 32 bytes: for each 8 values, their signs;
//! - 4 bytes: for each 32 values, a 4-bit scale.
//!
//! `value = (d * (1 + 2 * scale)) * code`.

use super::block::{Code, Quantize, Quants, UnpackedBlock, nibble, read_f16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = None;
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let d = read_f16(block, 0);
    for i in 0..8 {
        unpacked.scales[i] = d * f32::from(1 + 2 * nibble(&block[106..110], i));
        unpacked.mins[i] = 0.0;
    }
    let lows = block[2..66].as_chunks::<8>().0.iter().zip(block[74..106].as_chunks::<4>().0);
    let groups = unpacked.codes.as_chunks_mut::<32>().0.iter_mut().zip(&block[66..74]);
    for ((codes, &uppers), (lows, signs)) in groups.zip(lows) {
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let four =
                |i: usize| grid::IQ3_S[usize::from(lows[i]) | usize::from(uppers >> i & 1) << 8];
            *codes = grid::apply_signs(grid::join(four(2 * l), four(2 * l + 1)), signs[l]);
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}
