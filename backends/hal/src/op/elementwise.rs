//! Rows in, rows out: embedding, positions, choosing outputs, norms, sums, soft caps, parts of heads.

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
    /// `x[t] += table[pos_t + offset]`: learned positions. Positions past the table take its last row.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `table` | `[offset + 1 or more, n_embd]` | any weight |
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    AddPositions {
        /// A row per position.
        read table,
        /// The step's positions.
        batch batch,
        /// Embeddings.
        update x,
        ;
        /// Row of position 0.
        offset: usize,
    }
}

impl<T: Operand> AddPositions<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("AddPositions");
        let (x, table) = (self.x.desc(), self.table.desc());
        c.weight("table", &self.table)?;
        c.at_least("table", &self.table, 1, x.n_cols)?;
        let below = format!("below {}", table.n_rows);
        c.that(self.offset < table.n_rows, "offset", below, self.offset)?;
        c.batch(&self.batch, x.n_rows)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
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

op! {
    /// `x = cap * tanh(x / cap)`, for each value.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    SoftCap {
        /// What is capped.
        update x,
        ;
        /// No value lies beyond it.
        cap: f32,
    }
}

impl<T: Operand> SoftCap<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("SoftCap");
        let x = self.x.desc();
        let positive = self.cap > 0.0 && self.cap.is_finite();
        c.that(positive, "cap", "a positive number", self.cap)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}

/// Where a part of each head is in a row: head `h` has it from column `first + h * step` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// Of head 0.
    pub first: usize,
    /// From one head to the next; 0 where all heads share one part.
    pub step: usize,
}

impl HeadColumns {
    /// The column behind the last part, if it can be counted.
    fn end(self, n_head: usize, width: usize) -> Option<usize> {
        let last = n_head.checked_sub(1)?.checked_mul(self.step)?;
        last.checked_add(self.first)?.checked_add(width)
    }
}

op! {
    /// Copies `width` values of each head: `y[t, to(h) + i] = x[t, from(h) + i]`. All else of `y` stays as it is.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    /// | `y` | `[n_tokens, m]` | F32 |
    ///
    /// Latent attention puts its keys together so.
    CopyHeads {
        /// From where.
        read x,
        /// Where to.
        update y,
        ;
        /// Heads.
        n_head: usize,
        /// Values of each.
        width: usize,
        /// Their columns in `x`.
        from: HeadColumns,
        /// Their columns in `y`, which do not overlap.
        to: HeadColumns,
    }
}

impl<T: Operand> CopyHeads<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("CopyHeads");
        let (x, y) = (self.x.desc(), self.y.desc());
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, y.n_cols)?;
        c.that(self.n_head > 0 && self.width > 0, "n_head", "some heads of some values", "none")?;
        for (name, columns, desc) in [("from", self.from, x), ("to", self.to, y)] {
            let inside = columns.end(self.n_head, self.width).is_some_and(|end| end <= desc.n_cols);
            c.that(inside, name, format!("columns inside {desc}"), format!("{columns:?}"))?;
        }
        let apart = self.n_head == 1 || self.to.step >= self.width;
        c.that(apart, "to", "heads that do not overlap", format!("{:?}", self.to))
    }
}
