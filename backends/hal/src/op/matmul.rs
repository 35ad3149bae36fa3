//! Dense matrix products.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// `y[t, i] = sum_k w[i, k] * x[t, k] + bias[i]`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `w` | `[n_out, n_in]` | any weight |
    /// | `x` | `[n_tokens, n_in]` | F32 |
    /// | `bias` | `[1, n_out]` | F32 |
    /// | `y` | `[n_tokens, n_out]` | F32 |
    MatMul {
        /// Weights.
        weight w,
        /// Input.
        read x,
        /// Bias per output.
        maybe bias,
        /// Output.
        write y,
        ;
    }
}

impl<T: Operand> MatMul<T> {
    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, n_values(&self.w))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("MatMul");
        let (w, x) = (self.w.desc(), self.x.desc());
        c.weight("w", &self.w)?;
        c.require(w.layout == crate::Layout::Rows, "w", "not transposed", w)?;
        c.f32("x", &self.x, x.n_rows, w.n_cols)?;
        c.maybe_f32("bias", &self.bias, 1, w.n_rows)?;
        c.f32("y", &self.y, x.n_rows, w.n_rows)
    }
}

op! {
    /// A product per head: `y[t, h * y_step + i] = sum_k w[h * n_out + i, k] * x[t, h * x_step + k]`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `w` | `[n_head * n_out, n_in]`: a matrix per head | any weight |
    /// | `x` | `[n_tokens, n_head * x_step]`, `x_step` at least `n_in` | F32 |
    /// | `y` | `[n_tokens, n_head * y_step]`, `y_step` at least `n_out` | F32 |
    ///
    /// The first `n_in` values of a head of `x` are multiplied, and the first `n_out` values of a head
    /// of `y` are written; the others are neither read nor changed. Source: absorbed latent attention
    /// (DeepSeek-V2, 2024), which multiplies queries and outputs by a matrix per head.
    HeadMatMul {
        /// Weights of all heads.
        weight w,
        /// Input.
        read x,
        /// Output.
        update y,
        ;
        /// Number of heads.
        n_head: usize,
    }
}

impl<T: Operand> HeadMatMul<T> {
    /// Rows of a head's matrix.
    #[must_use]
    pub fn n_out(&self) -> usize {
        self.w.desc().n_rows / self.n_head
    }

    /// Values of `x` from one head to the next.
    #[must_use]
    pub fn x_step(&self) -> usize {
        self.x.desc().n_cols / self.n_head
    }

    /// Values of `y` from one head to the next.
    #[must_use]
    pub fn y_step(&self) -> usize {
        self.y.desc().n_cols / self.n_head
    }

    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, n_values(&self.w))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("HeadMatMul");
        c.require(self.n_head > 0, "n_head", "at least 1", self.n_head)?;
        let (w, x, y) = (self.w.desc(), self.x.desc(), self.y.desc());
        c.weight("w", &self.w)?;
        c.require(w.layout == crate::Layout::Rows, "w", "not transposed", w)?;
        for (name, desc, n) in [("w", w, w.n_rows), ("x", x, x.n_cols), ("y", y, y.n_cols)] {
            let whole = n.is_multiple_of(self.n_head);
            c.require(whole, name, format!("{} heads", self.n_head), desc)?;
        }
        let reads = w.n_cols <= self.x_step();
        c.require(reads, "x", format!("heads of {} or more values", w.n_cols), x)?;
        let writes = self.n_out() <= self.y_step();
        c.require(writes, "y", format!("heads of {} or more values", self.n_out()), y)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, y.n_cols)
    }
}
