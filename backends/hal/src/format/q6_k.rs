//! Q6_K: 128 bytes of nibbles (the lower 4 bits), 64 bytes of bit pairs (the upper 2 bits), 16
//! signed bytes of scales for 16 values each, `d` (f16). `value = (d * scale) * (code - 32)`.
//!
//! Each half of the block (128 values) has 64 bytes of nibbles and 32 bytes of bit pairs. Value
//! `32 * k + j` of a half has its nibble in byte `32 * (k & 1) + j` (the low nibble for k < 2, the
//! high one otherwise) and its upper bits in bit pair k of byte j.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, inverse_or_zero,
    read_f16, write_f16,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 16, code: Code::Byte, wide_scales: true, has_min: false, unpack };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let halves = block[..128].chunks_exact(64).zip(block[128..192].chunks_exact(32));
    for (codes, (nibbles, pairs)) in unpacked.codes.chunks_exact_mut(128).zip(halves) {
        for (k, codes) in codes.chunks_exact_mut(32).enumerate() {
            let nibbles = &nibbles[32 * (k & 1)..];
            for ((code, &nibble), &pair) in codes.iter_mut().zip(nibbles).zip(pairs) {
                let low = nibble >> (4 * (k >> 1)) & 15;
                *code = (low | (pair >> (2 * k) & 3) << 4) as i8 - 32;
            }
        }
    }
    let d = read_f16(block, 208);
    for (scale, &byte) in unpacked.scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(byte as i8);
    }
    unpacked.mins = [0.0; 16];
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Finds the best scale of every group, then rounds the scales to 8 bits. The scale of the largest
/// magnitude becomes -128.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let mut scales = [0.0f32; 16];
    let columns = importance.map(|importance| importance.columns.as_chunks::<16>().0);
    for (g, group) in values.as_chunks::<16>().0.iter().enumerate() {
        let weights = columns.and_then(|columns| columns.get(g));
        scales[g] = search::signed_scale(group, weights, 32);
    }
    let farthest = farthest_from_zero(&scales);
    block.fill(0);
    let d = write_f16(block, 208, farthest / -128.0);
    let inverse_d = inverse_or_zero(farthest / -128.0);
    for (g, group) in values.chunks_exact(16).enumerate() {
        let scale = search::round(scales[g] * inverse_d).clamp(-128, 127) as i8;
        block[192 + g] = scale as u8;
        let inverse = inverse_or_zero(d * f32::from(scale));
        for (i, v) in group.iter().enumerate() {
            let code = (search::nearest((v * inverse).clamp(-32.0, 31.0)) as i32 + 32) as u8;
            let at = 16 * g + i;
            let (half, k, j) = (at / 128, at % 128 / 32, at % 32);
            block[64 * half + 32 * (k & 1) + j] |= (code & 15) << (4 * (k >> 1));
            block[128 + 32 * half + j] |= (code >> 4) << (2 * k);
        }
    }
}
