//! IQ3_XXS: `d` (f16), 64 indices into [`grid::IQ3_XXS`] for 4 values each, then for each 32
//! values a u32 with the signs of 8 values each, 7 bits, and a scale in the last 4 bits. `value =
//! (d * (0.5 + scale) / 2) * code`.

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
    for (i, (codes, places)) in groups.enumerate() {
        let bits = read_u32(&block[66..98], i);
        parts.scales[i] = d * (0.5 + (bits >> 28) as f32) * 0.5;
        parts.mins[i] = 0.0;
        for (l, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let four = |place: u8| grid::IQ3_XXS[usize::from(place)];
            let values = four(places[2 * l]) | four(places[2 * l + 1]) << 32;
            *codes = grid::even_signed(values, bits >> (7 * l));
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
