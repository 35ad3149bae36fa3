//! How rows of the KV cache are quantised.
//!
//! A row is quantised once per token on the device that holds it, so every format takes the nearest
//! codes, without a search for better scales. All backends store the same bits.

use core::primitive::f32;

use super::block::{inverse_or_zero, write_f16};
use super::{Format, IQ4_CODES};

impl Format {
    /// Quantises values to whole blocks of a row of the KV cache: `values` `[n * block_values]`,
    /// `out` bytes of n blocks. The format is one of [`crate::op::KV_FORMATS`].
    ///
    /// Values are rounded to nearest even for F16 and BF16. Other formats are quantised as
    /// [`Format::quantize`] does, except IQ4_NL: its first scale maps the value farthest from zero
    /// to code -127, codes are the nearest to the scaled values `t`, and the stored scale is the
    /// first one times `sum(t^2 * code * t) / sum(t^2 * code^2)`, a least-squares fit weighted by
    /// `t^2`. Both sums add neighbours pairwise. Source: ggml's copies to a cache on a GPU.
    ///
    /// # Panics
    /// If the lengths are not the same whole number of blocks, or [`Format::quantize`] does not
    /// support the format.
    pub fn quantize_cache(self, values: &[f32], out: &mut [u8]) {
        if self != Format::IQ4_NL {
            return self.quantize(values, out);
        }
        self.check_lengths(out.len(), values.len());
        let blocks = out.as_chunks_mut::<18>().0;
        for (values, block) in values.as_chunks::<32>().0.iter().zip(blocks) {
            quantize_iq4_nl(values, block);
        }
    }
}

fn quantize_iq4_nl(values: &[f32; 32], block: &mut [u8; 18]) {
    let farthest = values.iter().fold(0.0f32, |far, &v| if v.abs() > far.abs() { v } else { far });
    let first = farthest / -127.0;
    let inverse = inverse_or_zero(first);
    let scaled = values.map(|v| v * inverse);
    let nibbles = scaled.map(nearest_iq4);
    let (mut products, mut squares) = ([0.0; 32], [0.0; 32]);
    for (i, (&t, &nibble)) in scaled.iter().zip(&nibbles).enumerate() {
        let code = f32::from(IQ4_CODES[usize::from(nibble)]);
        let weighted = t * t * code;
        (products[i], squares[i]) = (weighted * t, weighted * code);
    }
    let squares = sum_of_pairs(squares);
    let scale = if squares > 0.0 { first * (sum_of_pairs(products) / squares) } else { first };
    write_f16(block, 0, scale);
    for (j, pair) in block[2..].iter_mut().enumerate() {
        *pair = nibbles[j] | nibbles[j + 16] << 4;
    }
}

/// The index of the entry of [`IQ4_CODES`] nearest to `t`: the upper one of two; 0 for NaN.
fn nearest_iq4(t: f32) -> u8 {
    let middles = IQ4_CODES.windows(2).map(|two| (f32::from(two[0]) + f32::from(two[1])) / 2.0);
    middles.map(|middle| u8::from(t >= middle)).sum()
}

/// The sum of neighbours, then of neighbouring sums, and so on, as the lanes of a GPU add it.
fn sum_of_pairs(mut terms: [f32; 32]) -> f32 {
    for n in [16, 8, 4, 2, 1] {
        for i in 0..n {
            terms[i] = terms[2 * i] + terms[2 * i + 1];
        }
    }
    terms[0]
}
