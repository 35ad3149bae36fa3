//! Q4_0: `d` (f16), then 16 bytes; byte j holds value j in its low and value j + 16 in its high
//! nibble. `value = d * (nibble - 8)`.

use super::block::{
    Code, Importance, Quantize, Quants, UnpackedBlock, farthest_from_zero, inverse_or_zero,
    read_f16, write_f16,
};
use super::search;

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 8 },
    wide_scales: false,
    has_min: false,
    unpack,
};

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    let (low, high) = unpacked.codes[..32].split_at_mut(16);
    for ((low, high), &pair) in low.iter_mut().zip(high).zip(&block[2..18]) {
        *low = (pair & 15) as i8 - 8;
        *high = (pair >> 4) as i8 - 8;
    }
    unpacked.scales[0] = read_f16(block, 0);
    unpacked.mins[0] = 0.0;
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

/// Without an importance matrix, the value farthest from zero becomes code -8, so the scale may be
/// negative.
fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let scale = match importance {
        Some(importance) => search::block_scale(values, importance, 8),
        None => farthest_from_zero(values) / -8.0,
    };
    let inverse = inverse_or_zero(scale);
    write_f16(block, 0, scale);
    let nibble = |v: f32| (v * inverse + 8.5).clamp(0.0, 15.0) as u8;
    for (j, pair) in block[2..18].iter_mut().enumerate() {
        *pair = nibble(values[j]) | nibble(values[j + 16]) << 4;
    }
}
