//! IQ2_XXS: `d` (f16), then 8 bytes for each 32 values: 4 indices into [`grid::IQ2_XXS`] for 8
//! values each, and a u32 with their signs, 7 bits each, and a scale in the last 4 bits. `value =
//! (d * (0.5 + scale) / 4) * code`.

use super::block::{Code, Quantize, Quants, Unpacked, read_f16, read_u32};
use super::grid;

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let d = read_f16(block, 0);
    let groups = parts.codes.as_chunks_mut::<32>().0.iter_mut();
    let groups = groups.zip(block[2..66].as_chunks::<8>().0);
    for (i, (codes, bytes)) in groups.enumerate() {
        let bits = read_u32(bytes, 1);
        parts.scales[i] = d * (0.5 + (bits >> 28) as f32) * 0.25;
        parts.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *codes = grid::even_signed(grid::IQ2_XXS[usize::from(bytes[l])], bits >> (7 * l));
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
