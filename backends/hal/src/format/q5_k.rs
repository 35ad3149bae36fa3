//! Q5_K: Q4_K with one more bit per value. 32 bytes of high bits follow the scales (bit g of byte j
//! belongs to value j of group g), then the nibbles as in Q4_K.

use super::block::{Code, Importance, Quantize, Quants, UnpackedBlock};
use super::search::{self, Fit, Ranges};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: true, unpack };

const FIT: Fit = Fit { max_code: 31, ranges: Ranges { first: -0.5, step: 0.1, n: 16 } };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    search::read_scales(block, unpacked);
    let high_bits = &block[16..48];
    let pairs = block[48..176].chunks_exact(32);
    for (g, (codes, pairs)) in unpacked.codes.chunks_exact_mut(64).zip(pairs).enumerate() {
        let (low, high) = codes.split_at_mut(32);
        for (((low, high), &pair), &high_bit) in low.iter_mut().zip(high).zip(pairs).zip(high_bits)
        {
            *low = ((pair & 15) | (high_bit >> (2 * g) & 1) << 4) as i8;
            *high = ((pair >> 4) | (high_bit >> (2 * g + 1) & 1) << 4) as i8;
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let codes = FIT.quantize(values, importance, block);
    let (high_bits, pairs) = block[16..176].split_at_mut(32);
    high_bits.fill(0);
    for (g, codes) in codes.chunks_exact(32).enumerate() {
        for (high_bit, code) in high_bits.iter_mut().zip(codes) {
            *high_bit |= (code >> 4) << g;
        }
    }
    for (codes, pairs) in codes.chunks_exact(64).zip(pairs.chunks_exact_mut(32)) {
        for (j, pair) in pairs.iter_mut().enumerate() {
            *pair = (codes[j] & 15) | (codes[j + 32] & 15) << 4;
        }
    }
}
