//! Mixture-of-experts routing.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

/// How router products become scores. An expert is called a group here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// Softmax over all groups.
    Softmax,
    /// Sigmoid of each product.
    Sigmoid,
    /// Softmax over the chosen groups only (gpt-oss; equal to Mixtral's).
    SoftmaxChosen,
}

op! {
    /// Scores every group by `w . x + bias`, keeps the `n_used` best (ties: the lower id) and
    /// writes their weights; all others are 0.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `w` | `[n_group, n_embd]` | any weight |
    /// | `bias` | `[1, n_group]` | F32 |
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    /// | `weights` | `[n_tokens, n_group]` | F32 |
    Route {
        /// Router matrix.
        weight w,
        /// Router bias.
        maybe bias,
        /// Input.
        read x,
        /// Weight of each group; 0 where it is not used.
        write weights,
        ;
        /// Groups per token (top-k).
        n_used: usize,
        /// How products become scores.
        scoring: Scoring,
        /// Divide the chosen weights by their sum.
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
        let some = self.n_used >= 1 && self.n_used <= w.n_rows;
        c.that(some, "n_used", format!("1 to {}", w.n_rows), self.n_used)?;
        c.f32("weights", &self.weights, x.n_rows, w.n_rows)
    }
}
