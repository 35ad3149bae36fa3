//! IQ3_S: `d` (f16); for each 4 values the lower 8 bits of a place in [`grid::IQ3_S`], then its upper bit; a byte of
//! signs for each 8 values; a scale of 4 bits for each 32. `value = (d * (1 + 2 * scale)) * code`.

use super::block::{Code, Quantize, Quants, Unpacked, nibble, read_f16};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let d = read_f16(block, 0);
    for i in 0..8 {
        parts.scales[i] = d * f32::from(1 + 2 * nibble(&block[106..110], i));
        parts.mins[i] = 0.0;
    }
    for (l, (codes, &signs)) in parts.codes.chunks_exact_mut(8).zip(&block[74..106]).enumerate() {
        let upper = usize::from(block[66 + l / 4]) >> (2 * (l % 4));
        let place = |i: usize| usize::from(block[2 + 2 * l + i]) | (upper >> i & 1) << 8;
        codes[..4].copy_from_slice(&grid::IQ3_S[place(0)]);
        codes[4..].copy_from_slice(&grid::IQ3_S[place(1)]);
        grid::set_signs(codes, signs);
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
