//! F32: each value is a block of its own.

use super::{Importance, Quantize, Quants};

pub(super) const QUANTS: Option<&Quants> = None;
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
}

#[inline]
fn quantize_block(values: &[f32], _: Option<Importance<'_>>, block: &mut [u8]) {
    block.copy_from_slice(&values[0].to_le_bytes());
}
