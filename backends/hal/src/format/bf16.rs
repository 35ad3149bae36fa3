//! BF16: the upper 16 bits of an f32, rounded to nearest even.

use half::bf16;

use super::{Importance, Quantize, Quants};

pub(super) const QUANTS: Option<&Quants> = None;
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    out[0] = bf16::from_le_bytes([block[0], block[1]]).to_f32();
}

#[inline]
fn quantize_block(values: &[f32], _: Option<Importance<'_>>, block: &mut [u8]) {
    block.copy_from_slice(&bf16::from_f32(values[0]).to_le_bytes());
}
