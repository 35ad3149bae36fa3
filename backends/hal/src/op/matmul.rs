//! Dense matrix product.

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
