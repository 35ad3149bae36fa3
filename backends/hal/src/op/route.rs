//! Mixture-of-experts routing.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

/// How the router's logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
    /// Softmax over the selected experts only (gpt-oss). Mixtral's renormalised softmax gives the
    /// same weights.
    SoftmaxChosen,
}

op! {
    /// Scores every expert by its logit `w . x + bias`, keeps the `n_used` best (on a tie the lower
    /// index) and writes their weights. All other weights are 0.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `w` | `[n_expert, n_embd]` | any weight |
    /// | `bias` | `[1, n_expert]` | F32 |
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `weights` | `[n_tokens, n_expert]` | F32 |
    Route {
        /// Router matrix.
        weight w,
        /// Router bias.
        maybe bias,
        /// Input.
        read x,
        /// Weight of each expert; 0 if the token does not use it.
        write weights,
        ;
        /// Experts per token (top-k).
        n_used: usize,
        /// How logits become scores.
        scoring: Scoring,
        /// Divide the weights of the selected experts by their sum.
        renormalise: bool,
        /// Factor on the weights.
        scale: f32,
    }
}

impl<T: Operand> Route<T> {
    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, n_values(&self.w))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Route");
        let (w, x) = (self.w.desc(), self.x.desc());
        c.weight("w", &self.w)?;
        c.f32("x", &self.x, x.n_rows, w.n_cols)?;
        c.maybe_f32("bias", &self.bias, 1, w.n_rows)?;
        let in_range = self.n_used >= 1 && self.n_used <= w.n_rows;
        c.require(in_range, "n_used", format!("1 to {}", w.n_rows), self.n_used)?;
        c.f32("weights", &self.weights, x.n_rows, w.n_rows)
    }
}
