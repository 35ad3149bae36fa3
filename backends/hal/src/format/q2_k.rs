//! Q2_K: 16 bytes with a scale (low nibble) and a minimum (high nibble) for 16 values each, 64 bytes of bit pairs, `d` and
//! `dmin` (f16). `value = (d * scale) * code - dmin * min`.
//!
//! Each half of the block (128 values) has 32 bytes of pairs; quarter k of a half takes pair k of each byte.

use super::block::{Code, Quantize, Quants, Unpacked, read_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants = Quants {
    group: 16,
    code: Code::Nibble { offset: 0 },
    wide_scales: true,
    has_min: true,
    unpack,
};

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let (d, dmin) = (read_f16(block, 80), read_f16(block, 82));
    for (g, both) in block[..16].iter().enumerate() {
        parts.scales[g] = d * f32::from(both & 15);
        parts.mins[g] = dmin * f32::from(both >> 4);
    }
    let halves = block[16..80].chunks_exact(32);
    for (codes, pairs) in parts.codes.chunks_exact_mut(128).zip(halves) {
        for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
            for (code, &pair) in codes.iter_mut().zip(pairs) {
                *code = (pair >> (2 * k) & 3) as i8;
            }
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
