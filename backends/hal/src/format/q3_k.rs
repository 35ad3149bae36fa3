//! Q3_K: 32 bytes of high bits (bit k of byte j belongs to value `32 * k + j`), 64 bytes with the
//! lower 2 bits in the order of Q2_K, 12 bytes of 6-bit scales for 16 values each, `d` (f16).
//! `value = (d * (scale - 32)) * (code - 4)`.
//!
//! The 12 scale bytes hold the lower 4 bits of scale i in byte `i % 8` (low nibble for i < 8,
//! otherwise high nibble), and its upper two bits in bit pair `i / 4` of byte `8 + i % 4`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, inverse_or_zero, power,
    read_f16, write_f16,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants = Quants {
    group: 16,
    code: Code::Nibble { offset: 4 },
    wide_scales: true,
    has_min: false,
    unpack,
};

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (d, packed) = (read_f16(block, 108), &block[96..108]);
    for (i, scale) in unpacked.scales.iter_mut().enumerate() {
        let low = packed[i % 8] >> (4 * (i / 8)) & 15;
        let upper = packed[8 + i % 4] >> (2 * (i / 4)) & 3;
        *scale = d * f32::from((low | upper << 4) as i8 - 32);
    }
    unpacked.mins = [0.0; 16];
    let high_bits = &block[..32];
    for (k, codes) in unpacked.codes.chunks_exact_mut(32).enumerate() {
        let pairs = &block[32 + 32 * (k / 4)..];
        for ((code, &pair), &high_bit) in codes.iter_mut().zip(pairs).zip(high_bits) {
            *code = (pair >> (2 * (k % 4)) & 3 | (high_bit >> k & 1) << 2) as i8 - 4;
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Finds the best scale of every group, then rounds the scales to 6 bits. Without an importance
/// matrix, the scale of the largest magnitude becomes -32.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let (mut scales, mut totals) = ([0.0f32; 16], [0.0f32; 16]);
    let power = 2.0 * power(values);
    for (g, group) in values.as_chunks::<16>().0.iter().enumerate() {
        let weights = importance.map(|importance| importance.weights(g, group, power));
        scales[g] = match &weights {
            Some(weights) => search::signed_scale(group, Some(weights), 4),
            None => search::full_range_scale(group, 4),
        };
        totals[g] = weights.map_or(0.0, |weights| weights.iter().sum());
    }
    let scale = match importance {
        Some(_) => search::signed_scale(&scales, Some(&totals), 32),
        None => farthest_from_zero(&scales) / -32.0,
    };
    block.fill(0);
    let d = write_f16(block, 108, scale);
    let inverse_d = inverse_or_zero(scale);
    for (g, group) in values.chunks_exact(16).enumerate() {
        let scale = search::round(scales[g] * inverse_d).clamp(-32, 31);
        let stored = (scale + 32) as u8;
        block[96 + g % 8] |= (stored & 15) << (4 * (g / 8));
        block[104 + g % 4] |= (stored >> 4) << (2 * (g / 4));
        let inverse = inverse_or_zero(d * scale as f32);
        for (i, v) in group.iter().enumerate() {
            let code = (search::nearest((v * inverse).clamp(-4.0, 3.0)) as i32 + 4) as u8;
            let at = 16 * g + i;
            let (k, j) = (at / 32, at % 32);
            block[32 + 32 * (k / 4) + j] |= (code & 3) << (2 * (k % 4));
            block[j] |= (code >> 2) << k;
        }
    }
}
