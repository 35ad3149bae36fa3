//! Layers that carry a state per sequence instead of a cache per position.
//!
//! A state store is an ordinary tensor with one row per sequence slot; [`crate::Queue::copy_rows`] takes and
//! restores snapshots of it. Tokens of one sequence are worked through in order; a token at position 0 starts
//! from a state of zeros.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// A short causal convolution per channel:
    /// `y[t, c] = act(bias[c] + sum_i weight[c, i] * in[i, c])`, where `in` are the last `k - 1` inputs from the
    /// state followed by `x[t]`; the state then moves on by one. `act` is SiLU if `silu`, else nothing.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x`, `y` | `[n_tokens, n_channel]` | F32 |
    /// | `weight` | `[n_channel, k]` | F32 |
    /// | `bias` | `[1, n_channel]` | F32 |
    /// | `state` | `[n_seq, (k - 1) * n_channel]`, oldest input first | F32 |
    ShortConv {
        /// Input.
        read x,
        /// Filter per channel.
        read weight,
        /// Offset per channel.
        maybe bias,
        /// Sequences of the tokens.
        batch batch,
        /// Last inputs of every sequence.
        update state,
        /// Output.
        write y,
        ;
        /// Apply SiLU.
        silu: bool,
    }
}

impl<T: Operand> ShortConv<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("ShortConv");
        let (x, w) = (self.x.desc(), self.weight.desc());
        c.f32("weight", &self.weight, x.n_cols, w.n_cols)?;
        c.that(w.n_cols >= 1, "weight", "at least one tap", w)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, x.n_cols)?;
        c.maybe_f32("bias", &self.bias, 1, x.n_cols)?;
        c.f32("state", &self.state, self.state.desc().n_rows, (w.n_cols - 1) * x.n_cols)?;
        c.at_least("state", &self.state, self.batch.shape.max_seqs, (w.n_cols - 1) * x.n_cols)?;
        c.batch(&self.batch, x.n_rows)
    }
}

op! {
    /// The gated delta rule, per head: with state `S` of `[d_k, d_v]`,
    /// `S *= exp(decay)`, `S += beta * k (v - S^T k)^T`, `y = scale * S^T q`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `q`, `k` | `[n_tokens, n_head * d_k]` | F32 |
    /// | `v`, `y` | `[n_tokens, n_head * d_v]` | F32 |
    /// | `decay`, `beta` | `[n_tokens, n_head]` | F32 |
    /// | `state` | `[n_seq, n_head * d_k * d_v]`, `S[i, j]` at `i * d_v + j` | F32 |
    ///
    /// Source: Gated Delta Networks (Yang et al. 2024).
    GatedDelta {
        /// Queries.
        read q,
        /// Keys.
        read k,
        /// Values.
        read v,
        /// Logarithm of the decay, at most 0.
        read decay,
        /// Writing strength.
        read beta,
        /// Sequences of the tokens.
        batch batch,
        /// State of every sequence.
        update state,
        /// Output.
        write y,
        ;
        /// Heads.
        n_head: usize,
        /// Factor on the output.
        scale: f32,
    }
}

impl<T: Operand> GatedDelta<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("GatedDelta");
        let (q, v) = (self.q.desc(), self.v.desc());
        let (n, heads) = (q.n_rows, self.n_head);
        let divides = heads > 0 && q.n_cols % heads == 0 && v.n_cols % heads == 0;
        c.that(divides, "n_head", format!("a divisor of {} and {}", q.n_cols, v.n_cols), heads)?;
        for (name, tensor) in [("q", &self.q), ("k", &self.k)] {
            c.f32(name, tensor, n, q.n_cols)?;
        }
        for (name, tensor) in [("v", &self.v), ("y", &self.y)] {
            c.f32(name, tensor, n, v.n_cols)?;
        }
        for (name, tensor) in [("decay", &self.decay), ("beta", &self.beta)] {
            c.f32(name, tensor, n, heads)?;
        }
        let cols = q.n_cols / heads * v.n_cols;
        c.f32("state", &self.state, self.state.desc().n_rows, cols)?;
        c.at_least("state", &self.state, self.batch.shape.max_seqs, cols)?;
        c.batch(&self.batch, n)
    }
}

op! {
    /// The Mamba-2 recurrence, per head with its group's `b` and `c`: with state `S` of `[d_head, d_state]` and
    /// `dt = softplus(dt_raw + dt_bias)`, `S = exp(dt * a) * S + dt * x b^T`, `y = S c + d * x`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x`, `y` | `[n_tokens, n_head * d_head]` | F32 |
    /// | `dt` | `[n_tokens, n_head]`, raw | F32 |
    /// | `dt_bias`, `a`, `d` | `[1, n_head]`; `a` is negative | F32 |
    /// | `b`, `c` | `[n_tokens, n_group * d_state]` | F32 |
    /// | `state` | `[n_seq, n_head * d_head * d_state]` | F32 |
    ///
    /// Source: Mamba-2 (Dao and Gu 2024).
    SsmScan {
        /// Input.
        read x,
        /// Step sizes before softplus.
        read dt,
        /// Offset of the step sizes.
        read dt_bias,
        /// Decay rates.
        read a,
        /// Input projections.
        read b,
        /// Output projections.
        read c,
        /// Skip connection.
        read d,
        /// Sequences of the tokens.
        batch batch,
        /// State of every sequence.
        update state,
        /// Output.
        write y,
        ;
        /// Groups that share `b` and `c`.
        n_group: usize,
    }
}

impl<T: Operand> SsmScan<T> {
    pub(super) fn check(&self) -> Result<()> {
        let check = Check("SsmScan");
        let (x, dt, b) = (self.x.desc(), self.dt.desc(), self.b.desc());
        let (n, heads) = (x.n_rows, dt.n_cols);
        check.that(heads > 0 && x.n_cols % heads == 0, "dt", "a divisor of x's columns", heads)?;
        let groups = self.n_group > 0 && heads % self.n_group == 0 && b.n_cols % self.n_group == 0;
        check.that(groups, "n_group", "a divisor of heads and b's columns", self.n_group)?;
        check.f32("x", &self.x, n, x.n_cols)?;
        check.f32("y", &self.y, n, x.n_cols)?;
        check.f32("dt", &self.dt, n, heads)?;
        for (name, tensor) in [("dt_bias", &self.dt_bias), ("a", &self.a), ("d", &self.d)] {
            check.f32(name, tensor, 1, heads)?;
        }
        check.f32("b", &self.b, n, b.n_cols)?;
        check.f32("c", &self.c, n, b.n_cols)?;
        let cols = x.n_cols * (b.n_cols / self.n_group);
        check.f32("state", &self.state, self.state.desc().n_rows, cols)?;
        check.at_least("state", &self.state, self.batch.shape.max_seqs, cols)?;
        check.batch(&self.batch, n)
    }
}
