//! Rows in, rows out: embedding, choosing outputs, norms, sums.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// `y[t] = scale * table[id_t]`: the embedding of each token.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `table` | `[n_vocab, n_embd]` | any weight |
    /// | `y` | `[n_tokens, n_embd]` | F32 |
    GetRows {
        /// Embedding table.
        read table,
        /// The step's tokens.
        batch batch,
        /// Embeddings.
        write y,
        ;
        /// Factor on every value (Gemma's `sqrt(n_embd)`; 1 elsewhere).
        scale: f32,
    }
}

impl<T: Operand> GetRows<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("GetRows");
        let y = self.y.desc();
        c.weight("table", &self.table)?;
        c.at_least("table", &self.table, 1, y.n_cols)?;
        c.batch(&self.batch, y.n_rows)?;
        c.f32("y", &self.y, y.n_rows, y.n_cols)
    }
}

op! {
    /// `y[i] = x[out_i]`: the tokens whose output is wanted.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    /// | `y` | `[n_out, n]`; rows from the batch's `n_out` on are not written | F32 |
    Gather {
        /// All tokens.
        read x,
        /// The step's facts.
        batch batch,
        /// Chosen tokens.
        write y,
        ;
    }
}

impl<T: Operand> Gather<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Gather");
        let (x, y) = (self.x.desc(), self.y.desc());
        c.f32("x", &self.x, x.n_rows, y.n_cols)?;
        c.f32("y", &self.y, y.n_rows, y.n_cols)?;
        c.batch(&self.batch, x.n_rows)
    }
}

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`.
    Layer,
}

op! {
    /// `y = norm(x) * weight + bias`, over each run of `width` columns.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x`, `y` | `[n_tokens, n]`, `n` a multiple of `width` | F32 |
    /// | `weight`, `bias` | `[1, width]` | F32 |
    ///
    /// `width` is `n` for a layer's norm and `d_head` for norms of queries and keys.
    Norm {
        /// Input.
        read x,
        /// Factor per column.
        maybe weight,
        /// Offset per column.
        maybe bias,
        /// Output.
        write y,
        ;
        /// Which norm.
        kind: NormKind,
        /// Added to the mean square.
        eps: f32,
        /// Columns that are normalised together.
        width: usize,
    }
}

impl<T: Operand> Norm<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Norm");
        let x = self.x.desc();
        c.that(
            self.width > 0 && x.n_cols.is_multiple_of(self.width),
            "width",
            "a divisor of n",
            self.width,
        )?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, x.n_cols)?;
        c.maybe_f32("weight", &self.weight, 1, self.width)?;
        c.maybe_f32("bias", &self.bias, 1, self.width)
    }
}

op! {
    /// `x += a`, for each value.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `a`, `x` | `[n_tokens, n]` | F32 |
    Add {
        /// What is added.
        read a,
        /// Where.
        update x,
        ;
    }
}

impl<T: Operand> Add<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Add");
        let x = self.x.desc();
        c.f32("a", &self.a, x.n_rows, x.n_cols)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}
