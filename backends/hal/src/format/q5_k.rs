//! Q5_K: Q4_K with a fifth bit. After the scales come 32 bytes of fifth bits (bit g of byte j
//! belongs to value j of group g), then the nibbles of Q4_K.

use super::block::{Code, Quantize, Quants, Unpacked};
use super::search::{self, Fit};

pub(super) const QUANTS: Option<&Quants> = Some(&PARTS);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const PARTS: Quants =
    Quants { group: 32, code: Code::Byte, wide_scales: true, has_min: true, unpack };

/// The steps tried around the full range, in units of one code.
const FIT: Fit = Fit { max_code: 31, first_step: -0.5, n_steps: 16 };

#[inline]
fn unpack(block: &[u8], parts: &mut Unpacked) {
    search::read_scales(block, parts);
    let fifths = &block[16..48];
    let pairs = block[48..176].chunks_exact(32);
    for (g, (codes, pairs)) in parts.codes.chunks_exact_mut(64).zip(pairs).enumerate() {
        let (low, high) = codes.split_at_mut(32);
        for (((low, high), &pair), &fifth) in low.iter_mut().zip(high).zip(pairs).zip(fifths) {
            *low = ((pair & 15) | (fifth >> (2 * g) & 1) << 4) as i8;
            *high = ((pair >> 4) | (fifth >> (2 * g + 1) & 1) << 4) as i8;
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    PARTS.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], block: &mut [u8]) {
    let codes = FIT.quantize(values, block);
    let (fifths, pairs) = block[16..176].split_at_mut(32);
    fifths.fill(0);
    for (g, codes) in codes.chunks_exact(32).enumerate() {
        for (fifth, code) in fifths.iter_mut().zip(codes) {
            *fifth |= (code >> 4) << g;
        }
    }
    for (codes, pairs) in codes.chunks_exact(64).zip(pairs.chunks_exact_mut(32)) {
        for (j, pair) in pairs.iter_mut().enumerate() {
            *pair = (codes[j] & 15) | (codes[j + 32] & 15) << 4;
        }
    }
}
