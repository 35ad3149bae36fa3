//! Manifold-constrained hyper-connections: a layer's block reads a weighted sum of several residual
//! streams, and its output and the streams are mixed into the new streams.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

/// Largest number of residual streams.
pub const MAX_STREAMS: usize = 8;

op! {
    /// The weights of hyper-connections of `n` streams, in place, from the product of a matrix and the
    /// streams. With `z = scale * weights + base`, where `scale[0]` is the factor of the first `n`
    /// columns, `scale[1]` that of the next `n`, and `scale[2]` that of the last `n * n`:
    ///
    /// - `pre = sigmoid(z) + eps`, the first `n` columns: the share of each stream in the block's input;
    /// - `post = 2 * sigmoid(z)`, the next `n` columns: the share of the block's output in each stream;
    /// - `mix`, the last `n * n` columns: `mix[from * n + to]` is the share of old stream `from` in new
    ///   stream `to`. First `mix[from] = softmax(z[from]) + eps`; then each column `to` is divided by
    ///   its sum plus `eps`; then rows and columns are, `n_iterations - 1` times (Sinkhorn and Knopp).
    ///
    /// If there are only `n` columns, they are `pre`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `scale` | `[1, 3]`; `[1, 1]` for `pre` alone | F32 |
    /// | `base` | `[1, n * (n + 2)]`; `[1, n]` for `pre` alone | F32 |
    /// | `weights` | `[n_tokens, n * (n + 2)]`; `[n_tokens, n]` for `pre` alone | F32 |
    ///
    /// Source: mHC (Xie et al. 2025), as in DeepSeek V4 and GLM-5.3-Flash.
    HyperWeights {
        /// Factors.
        read scale,
        /// Summands.
        read base,
        /// Products, replaced by the weights.
        update weights,
        ;
        /// Number of streams, `n`.
        n_streams: usize,
        /// Added to `pre`, to the softmax and to each sum.
        eps: f32,
        /// Number of times that the columns are divided by their sums, at least 1.
        n_iterations: usize,
    }
}

impl<T: Operand> HyperWeights<T> {
    /// Whether the weights include `post` and `mix`.
    pub fn mixes(&self) -> bool {
        self.weights.desc().n_cols > self.n_streams
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("HyperWeights");
        let (n, w) = (self.n_streams, self.weights.desc());
        c.streams(n)?;
        let n_all = n * (n + 2);
        let known = w.n_cols == n || w.n_cols == n_all;
        c.require(known, "weights", format!("{n} or {n_all} columns"), w)?;
        c.f32("weights", &self.weights, w.n_rows, w.n_cols)?;
        c.f32("base", &self.base, 1, w.n_cols)?;
        c.f32("scale", &self.scale, 1, if self.mixes() { 3 } else { 1 })?;
        let positive = self.eps >= 0.0 && self.eps.is_finite();
        c.require(positive, "eps", "a number of at least 0", self.eps)?;
        c.require(self.n_iterations > 0, "n_iterations", "at least 1", self.n_iterations)
    }
}

op! {
    /// `y[t, i] = sum_s weights[t, s] * streams[t, s, i]`: a block's input from the residual streams.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `streams` | `[n_tokens, n_streams * width]`: the streams of a token one after the other | F32 |
    /// | `weights` | `[n_tokens, n_streams or more]`, or one row for all tokens | F32 |
    /// | `y` | `[n_tokens, width]` | F32 |
    HyperRead {
        /// Residual streams.
        read streams,
        /// Share of each stream, in the first columns.
        read weights,
        /// The weighted sum.
        write y,
        ;
        /// Number of streams.
        n_streams: usize,
    }
}

impl<T: Operand> HyperRead<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("HyperRead");
        let (y, w) = (self.y.desc(), self.weights.desc());
        c.streams(self.n_streams)?;
        c.f32("y", &self.y, y.n_rows, y.n_cols)?;
        c.f32("streams", &self.streams, y.n_rows, y.n_cols * self.n_streams)?;
        let expected = format!("{} or more columns", self.n_streams);
        c.require(w.n_cols >= self.n_streams, "weights", expected, w)?;
        c.f32("weights", &self.weights, if w.n_rows == 1 { 1 } else { y.n_rows }, w.n_cols)
    }
}

op! {
    /// `streams[t, to, i] = post[t, to] * x[t, i] + sum_from mix[t, from, to] * streams[t, from, i]`:
    /// the new residual streams from a block's output and the old streams.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, width]` | F32 |
    /// | `weights` | `[n_tokens, n * (n + 2)]`: `post` and `mix` of [`HyperWeights`] | F32 |
    /// | `streams` | `[n_tokens, n * width]` | F32 |
    HyperWrite {
        /// The block's output.
        read x,
        /// Weights.
        read weights,
        /// Residual streams, updated in place.
        update streams,
        ;
        /// Number of streams, `n`.
        n_streams: usize,
    }
}

impl<T: Operand> HyperWrite<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("HyperWrite");
        let (x, n) = (self.x.desc(), self.n_streams);
        c.streams(n)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("weights", &self.weights, x.n_rows, n * (n + 2))?;
        c.f32("streams", &self.streams, x.n_rows, x.n_cols * n)
    }
}

impl Check {
    fn streams(&self, n: usize) -> Result<()> {
        let known = (1..=MAX_STREAMS).contains(&n);
        self.require(known, "n_streams", format!("1 to {MAX_STREAMS}"), n)
    }
}
