//! Ops on rows of values: embedding, learned positions, output selection, norms, sums, gating, soft
//! caps, copies between heads.

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
        table table,
        /// The step's tokens.
        batch batch,
        /// Embeddings.
        write y,
        ;
        /// Factor on every value, such as Gemma's `sqrt(n_embd)`; 1 for most models.
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
    /// `x[t] += table[pos_t + offset]`: learned positions. Positions past the table use its last
    /// row.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `table` | `[offset + 1 or more, n_embd]` | any weight |
    /// | `x` | `[n_tokens, n_embd]` | F32 |
    AddPositions {
        /// A row per position.
        table table,
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
        c.require(self.offset < table.n_rows, "offset", below, self.offset)?;
        c.batch(&self.batch, x.n_rows)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}

op! {
    /// `x[t] *= 1 + factor * ln(1 + floor((pos_t + offset) / length))`: queries that grow with
    /// their position (attention temperature of Llama 4 and Mistral 3).
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    ScaleByPosition {
        /// The step's positions.
        batch batch,
        /// Updated in place.
        update x,
        ;
        /// Factor on the logarithm.
        factor: f32,
        /// Number of positions with the same scale.
        length: u32,
        /// Added to positions.
        offset: u32,
    }
}

impl<T: Operand> ScaleByPosition<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("ScaleByPosition");
        let x = self.x.desc();
        c.require(self.length > 0, "length", "at least 1", self.length)?;
        c.require(self.offset < 1 << 24, "offset", "below 2^24", self.offset)?;
        c.batch(&self.batch, x.n_rows)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}

op! {
    /// `y[i] = x[out_i]`: selects the tokens whose logits are computed.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    /// | `y` | `[n_out, n]`; rows past the batch's `n_out` are not written | F32 |
    Gather {
        /// Rows of all tokens.
        read x,
        /// Gives the selected tokens.
        batch batch,
        /// Rows of the selected tokens.
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

/// Type of norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)`.
    Layer,
    /// `x / max(sqrt(sum(x^2)), eps)` (GGML's `l2_norm`).
    L2,
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
        /// Bias per column.
        maybe bias,
        /// Output.
        write y,
        ;
        /// Type of norm.
        kind: NormKind,
        /// Added to the mean square or variance; with [`NormKind::L2`] the smallest divisor.
        eps: f32,
        /// Columns per run.
        width: usize,
    }
}

impl<T: Operand> Norm<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Norm");
        let x = self.x.desc();
        c.require(
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
        /// Summand.
        read a,
        /// Updated in place.
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

/// The activation function of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateActivation {
    /// `g`.
    None,
    /// `1 / (1 + exp(-g))`.
    Sigmoid,
    /// `g / (1 + exp(-g))`.
    Silu,
    /// `ln(1 + exp(g))`.
    Softplus,
    /// The tanh approximation of GELU, as GGML's `gelu`.
    Gelu,
    /// The sigmoid of `g`'s root with `g`'s sign, `sign(g) * sqrt(max(|g|, 1e-6))`; 1/2 where `g` is 0
    /// (Qwen3.8-Flash-Next).
    SigmoidOfRoot,
}

op! {
    /// `x[t, i] *= act(g[t, i / (n / k)])`: each gate value scales `n / k` consecutive values.
    /// `k = n` multiplies elementwise, `k = n_head` scales heads, `k = 1` whole tokens.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `g` | `[n_tokens, k]`, or `[1, k]` for all tokens; `k` divides `n` | F32 |
    /// | `x` | `[n_tokens, n]` | F32 |
    Mul {
        /// Gate values before the activation.
        read g,
        /// The gated values, updated in place.
        update x,
        ;
        /// Activation of the gate values.
        activation: GateActivation,
    }
}

impl<T: Operand> Mul<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Mul");
        let (x, g) = (self.x.desc(), self.g.desc());
        let divides = g.n_cols > 0 && x.n_cols.is_multiple_of(g.n_cols);
        c.require(divides, "g", format!("columns that divide {}", x.n_cols), g)?;
        c.f32("g", &self.g, if g.n_rows == 1 { 1 } else { x.n_rows }, g.n_cols)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}

op! {
    /// `x = cap * tanh(x / cap)` for each value; if `hard`, `x` is clamped to `-cap..=cap` instead.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    SoftCap {
        /// Updated in place.
        update x,
        ;
        /// Limit of the magnitude.
        cap: f32,
        /// Clamp the values.
        hard: bool,
    }
}

impl<T: Operand> SoftCap<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("SoftCap");
        let x = self.x.desc();
        let positive = self.cap > 0.0 && self.cap.is_finite();
        c.require(positive, "cap", "a positive number", self.cap)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)
    }
}

/// Where the columns of each head begin in a row: head `h` begins at column `first + h * step`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadColumns {
    /// First column of head 0.
    pub first: usize,
    /// Columns from one head to the next; 0 if all heads share the same columns.
    pub step: usize,
}

impl HeadColumns {
    /// The column after the last head's `width` columns; `None` on overflow.
    fn end(self, n_head: usize, width: usize) -> Option<usize> {
        let last = n_head.checked_sub(1)?.checked_mul(self.step)?;
        last.checked_add(self.first)?.checked_add(width)
    }
}

op! {
    /// Copies `width` values of each head: `y[t, to(h) + i] = x[t, from(h) + i]`. All other values
    /// of `y` stay unchanged.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x` | `[n_tokens, n]` | F32 |
    /// | `y` | `[n_tokens, m]` | F32 |
    ///
    /// Assembles the keys of MLA, separates queries from gates, and selects the embeddings of a layer.
    CopyHeads {
        /// Source.
        read x,
        /// Destination.
        update y,
        ;
        /// Number of heads.
        n_head: usize,
        /// Values per head.
        width: usize,
        /// Columns of each head in `x`.
        from: HeadColumns,
        /// Columns of each head in `y`; they must not overlap.
        to: HeadColumns,
    }
}

impl<T: Operand> CopyHeads<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("CopyHeads");
        let (x, y) = (self.x.desc(), self.y.desc());
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, y.n_cols)?;
        c.require(
            self.n_head > 0 && self.width > 0,
            "n_head",
            "at least one head and one value",
            "none",
        )?;
        for (name, columns, desc) in [("from", self.from, x), ("to", self.to, y)] {
            let inside = columns.end(self.n_head, self.width).is_some_and(|end| end <= desc.n_cols);
            c.require(inside, name, format!("columns inside {desc}"), format!("{columns:?}"))?;
        }
        let apart = self.n_head == 1 || self.to.step >= self.width;
        c.require(apart, "to", "heads that do not overlap", format!("{:?}", self.to))
    }
}
