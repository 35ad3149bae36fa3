//! Q4_K: `d` and `dmin` (f16), 12 bytes of 6-bit scales and minimums, then 128 bytes of nibbles:
//! each run of 32 bytes holds 32 values in its low nibbles and the next 32 in its high ones.
//! `value = (d * scale) * nibble - dmin * min`.

use super::block::{Code, Importance, Quantize, Quants, UnpackedBlock};
use super::search::{self, Fit, Ranges};

pub(super) const QUANTS: Option<&Quants> = Some(&SPEC);
pub(super) const QUANTIZE: Option<Quantize> = Some(quantize_block);
const SPEC: Quants = Quants {
    group: 32,
    code: Code::Nibble { offset: 0 },
    wide_scales: true,
    has_min: true,
    unpack,
};

const FIT: Fit = Fit { max_code: 15, ranges: Ranges { first: -1.0, step: 0.1, n: 21 } };

#[inline]
fn unpack(block: &[u8], unpacked: &mut UnpackedBlock) {
    search::read_scales(block, unpacked);
    for (codes, pairs) in unpacked.codes.chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)) {
        let (low, high) = codes.split_at_mut(32);
        for ((low, high), &pair) in low.iter_mut().zip(high).zip(pairs) {
            *low = (pair & 15) as i8;
            *high = (pair >> 4) as i8;
        }
    }
}

#[inline]
pub(super) fn dequantize_block(block: &[u8], out: &mut [f32]) {
    SPEC.dequantize_block(block, out);
}

fn quantize_block(values: &[f32], importance: Option<Importance<'_>>, block: &mut [u8]) {
    let codes = FIT.quantize(values, importance, block);
    for (codes, pairs) in codes.chunks_exact(64).zip(block[16..144].chunks_exact_mut(32)) {
        for (j, pair) in pairs.iter_mut().enumerate() {
            *pair = codes[j] | codes[j + 32] << 4;
        }
    }
}
