//! How activations are quantised before they are multiplied with quantised weights.
//!
//! [`quantize_q8`] is the reference; fast implementations must give the same bits.

/// The format of the activations in a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Activation {
    /// Unrounded floats.
    F32,
    /// Signed bytes in blocks of [`Q8_BLOCK`].
    Q8,
}

/// Values in one block of [`Activation::Q8`].
pub const Q8_BLOCK: usize = 32;

/// One row of activations in blocks of [`Q8_BLOCK`]; the last block is padded with zeros.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Q8Row {
    /// `[n_blocks * 32]`, each in -127..=127; `value = d * q`.
    pub q: Vec<i8>,
    /// `[n_blocks]`: the scale of each block.
    pub d: Vec<f32>,
    /// `[n_blocks]`: the sum of the block's `q`, for weights with minimums.
    pub sum: Vec<i32>,
}

impl Q8Row {
    /// Quantises `x` into this row and reuses its memory.
    pub fn quantize_into(&mut self, x: &[f32]) {
        let n_blocks = x.len().div_ceil(Q8_BLOCK);
        self.q.resize(n_blocks * Q8_BLOCK, 0);
        self.d.resize(n_blocks, 0.0);
        self.sum.resize(n_blocks, 0);
        quantize_q8(x, &mut self.q, &mut self.d, &mut self.sum);
    }
}

/// Rounds `x` `[n]` to Q8 blocks: `q` `[n_blocks * 32]`, `d` and `sum` `[n_blocks]`.
///
/// Per block, with `amax` its largest magnitude: `d = amax / 127` and `q = x * (127 / amax)`
/// rounded to nearest, ties to even. A block with a zero or subnormal `d` is all zeros. If a value
/// is infinite or NaN, `d` is NaN and `q` zero, so that the product is NaN.
///
/// # Panics
/// If the lengths do not match.
pub fn quantize_q8(x: &[f32], q: &mut [i8], d: &mut [f32], sum: &mut [i32]) {
    let n_blocks = x.len().div_ceil(Q8_BLOCK);
    assert_eq!((q.len(), d.len(), sum.len()), (n_blocks * Q8_BLOCK, n_blocks, n_blocks));
    let blocks = x.chunks(Q8_BLOCK).zip(q.chunks_exact_mut(Q8_BLOCK));
    for ((x, q), (d, sum)) in blocks.zip(d.iter_mut().zip(sum)) {
        q.fill(0);
        *sum = 0;
        // As bit patterns, magnitudes sort like the floats, with infinity and NaN on top.
        let amax = f32::from_bits(x.iter().map(|v| v.abs().to_bits()).max().unwrap_or(0));
        *d = amax / 127.0;
        if !amax.is_finite() {
            *d = f32::NAN;
        } else if !d.is_normal() {
            *d = 0.0;
        } else {
            let inverse = 127.0 / amax;
            for (q, v) in q.iter_mut().zip(x) {
                *q = (v * inverse).round_ties_even().clamp(-127.0, 127.0) as i8;
                *sum += i32::from(*q);
            }
        }
    }
}
