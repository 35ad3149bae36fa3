//! Q3_K: 32 bytes of third bits (bit g of byte j belongs to value j of each 32), 64 bytes of bit pairs in the order of
//! Q2_K, 12 bytes of 6-bit scales for 16 values each, `d` (f16). `value = (d * (scale - 32)) * (code - 4)`.
//!
//! Scale i has its low nibble in byte `i % 8` (the high nibble of the byte for i >= 8), its upper two bits in pair
//! `i / 4` of byte `8 + i % 4`.

use super::block::{Code, Quantize, Quants, Unpacked, read_f16};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = None;
const PARTS: Quants = Quants {
    group: 16,
    code: Code::Nibble { offset: 4 },
    wide_scales: true,
    has_min: false,
    unpack,
};

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    let (d, packed) = (read_f16(block, 108), &block[96..108]);
    for (i, scale) in parts.scales.iter_mut().enumerate() {
        let low = packed[i % 8] >> (4 * (i / 8)) & 15;
        let upper = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        *scale = d * f32::from((low | upper << 4) as i8 - 32);
    }
    parts.mins = [0.0; 16];
    let thirds = &block[..32];
    for (k, codes) in parts.codes.chunks_exact_mut(32).enumerate() {
        let pairs = &block[32 + 32 * (k / 4)..];
        for ((code, &pair), &third) in codes.iter_mut().zip(pairs).zip(thirds) {
            *code = (pair >> (2 * (k % 4)) & 3 | (third >> k & 1) << 2) as i8 - 4;
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}
