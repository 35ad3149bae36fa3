//! Recurrent layers, with a state per sequence instead of a cache entry per position.
//!
//! The states are rows of an ordinary tensor. The state of token `t`'s sequence is row
//! `batch.seqs[t]`. Rows from `max_seqs` on are free for snapshots, which
//! [`crate::Queue::copy_rows`] saves and restores. The tokens of a sequence are in ascending order
//! of position; tokens of different sequences may alternate. A token at position 0 starts from a
//! state of zeros. Padding tokens change no state.

use super::facts::{Work, n_values};
use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Batch, Error, Operand, Result};

op! {
    /// A short causal convolution per channel:
    /// `y[t, c] = act(bias[c] + sum_i weight[c, i] * in[i, c])`, where `in` is the last `k - 1`
    /// inputs from the state followed by `x[t]`. The state then advances by one input. `act` is
    /// SiLU if `silu`, otherwise the identity.
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
        /// Bias per channel.
        maybe bias,
        /// Sequences of the tokens.
        batch batch,
        /// Last inputs of every sequence.
        state state,
        /// Output.
        write y,
        ;
        /// Apply SiLU.
        silu: bool,
    }
}

impl<T: Operand> ShortConv<T> {
    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, n_values(&self.weight))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("ShortConv");
        let (x, w) = (self.x.desc(), self.weight.desc());
        c.f32("weight", &self.weight, x.n_cols, w.n_cols)?;
        c.require(w.n_cols >= 1, "weight", "at least one column", w)?;
        c.f32("x", &self.x, x.n_rows, x.n_cols)?;
        c.f32("y", &self.y, x.n_rows, x.n_cols)?;
        c.maybe_f32("bias", &self.bias, 1, x.n_cols)?;
        c.f32("state", &self.state, self.state.desc().n_rows, (w.n_cols - 1) * x.n_cols)?;
        c.at_least("state", &self.state, self.batch.shape.max_seqs, (w.n_cols - 1) * x.n_cols)?;
        c.batch(&self.batch, x.n_rows)
    }
}

/// Which key head a value head reads, in models with fewer key heads than value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HeadMapping {
    /// Value head `h` reads key head `h % n_head_k` (qwen35).
    Modulo,
    /// Value head `h` reads key head `h / (n_head_v / n_head_k)` (qwen3next).
    Grouped,
}

impl HeadMapping {
    /// The key head of value head `h`; `n_head_k` must divide `n_head_v`.
    #[must_use]
    pub fn key_head(self, h: usize, n_head_k: usize, n_head_v: usize) -> usize {
        match self {
            HeadMapping::Modulo => h % n_head_k,
            HeadMapping::Grouped => h / (n_head_v / n_head_k),
        }
    }
}

/// The logarithm of the decay factor of a gated delta rule, from `x = decay + dt_bias` and the
/// head's rate `a`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DecayCurve {
    /// `a * softplus(x)`; `a` is `-exp(A_log)`.
    Softplus,
    /// `bound * sigmoid(a * x)`: at least `bound`, which is negative (Ling 3); `a` is `exp(A_log)`.
    Sigmoid {
        /// The lower bound.
        bound: f32,
    },
}

impl DecayCurve {
    /// The lower bound; 0 without one.
    #[must_use]
    pub fn bound(self) -> f32 {
        match self {
            DecayCurve::Softplus => 0.0,
            DecayCurve::Sigmoid { bound } => bound,
        }
    }
}

op! {
    /// The gated delta rule, per value head: with state `S` of `[d_k, d_v]`, decay factors
    /// `f = exp(curve(decay + dt_bias))` and `D = diag(f)`, `S = D S`,
    /// `S += sigmoid(beta) * k (v - S^T k)^T`, `y = scale * S^T q`. A head has one factor, or, in
    /// Kimi Delta Attention, one for each row of its state.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `q`, `k` | `[n_tokens, n_head_k * d_k]` | F32 |
    /// | `v`, `y` | `[n_tokens, n_head_v * d_v]` | F32 |
    /// | `beta` | `[n_tokens, n_head_v]`, before the sigmoid | F32 |
    /// | `decay` | `[n_tokens, n_head_v]` or `[n_tokens, n_head_v * d_k]`, before bias and curve | F32 |
    /// | `dt_bias` | `[1, n]` with the columns of `decay` | F32 |
    /// | `a` | `[1, n_head_v]` | F32 |
    /// | `state` | `[n_seq, n_head_v * d_k * d_v]`, `S[i, j]` at `i * d_v + j` | F32 |
    ///
    /// `n_head_k` divides `n_head_v`. The op does not normalise queries and keys; a model that
    /// needs it runs [`super::NormKind::L2`] before. Sources: Gated Delta Networks (Yang et al.
    /// 2024), Kimi Linear (Kimi Team 2025).
    GatedDelta {
        /// Queries.
        read q,
        /// Keys.
        read k,
        /// Values.
        read v,
        /// Decay before bias and curve.
        read decay,
        /// Writing strength before the sigmoid.
        read beta,
        /// Bias of the decay.
        read dt_bias,
        /// Decay rates.
        read a,
        /// Sequences of the tokens.
        batch batch,
        /// State of every sequence.
        state state,
        /// Output.
        write y,
        ;
        /// Heads of queries and keys.
        n_head_k: usize,
        /// Heads of values.
        n_head_v: usize,
        /// Which key head each value head reads.
        heads: HeadMapping,
        /// The logarithm of the decay factors.
        curve: DecayCurve,
        /// Factor on the output.
        scale: f32,
    }
}

impl<T: Operand> GatedDelta<T> {
    /// Four multiplications per state value: the decay, the products with `k` and with `q`, and
    /// the outer product that is added.
    pub(super) fn work(&self) -> Work {
        Work::new(self.q.desc().n_rows, (self.state.desc().n_cols as u64).saturating_mul(4))
    }

    /// Values of a key head and of a value head: `[d_k, d_v]`.
    #[must_use]
    pub fn head_dims(&self) -> [usize; 2] {
        [self.q.desc().n_cols / self.n_head_k, self.v.desc().n_cols / self.n_head_v]
    }

    /// Number of decay factors of a head: 1, or one for each row of its state. A head of one row
    /// has one factor either way.
    #[must_use]
    pub fn n_factors(&self) -> usize {
        self.decay.desc().n_cols / self.n_head_v
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("GatedDelta");
        let (q, v) = (self.q.desc(), self.v.desc());
        let (n, n_head_k, n_head_v) = (q.n_rows, self.n_head_k, self.n_head_v);
        let divides = |name, heads: usize, n: usize| {
            let holds = heads > 0 && n.is_multiple_of(heads);
            c.require(holds, name, format!("a divisor of {n}"), heads)
        };
        divides("n_head_k", n_head_k, q.n_cols)?;
        divides("n_head_v", n_head_v, v.n_cols)?;
        divides("n_head_k", n_head_k, n_head_v)?;
        for (name, tensor) in [("q", &self.q), ("k", &self.k)] {
            c.f32(name, tensor, n, q.n_cols)?;
        }
        for (name, tensor) in [("v", &self.v), ("y", &self.y)] {
            c.f32(name, tensor, n, v.n_cols)?;
        }
        let [d_k, _] = self.head_dims();
        let per_row = self.decay.desc().n_cols != n_head_v;
        let n_decay = if per_row { d_k.saturating_mul(n_head_v) } else { n_head_v };
        c.f32("decay", &self.decay, n, n_decay)?;
        c.f32("dt_bias", &self.dt_bias, 1, n_decay)?;
        c.f32("beta", &self.beta, n, n_head_v)?;
        c.f32("a", &self.a, 1, n_head_v)?;
        let bound = self.curve.bound();
        c.require(bound <= 0.0 && bound.is_finite(), "curve", "a bound of at most 0", bound)?;
        let Some(cols) = d_k.checked_mul(v.n_cols) else {
            return Err(Error::shape("GatedDelta", "state", "a size that does not overflow", v));
        };
        c.f32("state", &self.state, self.state.desc().n_rows, cols)?;
        c.at_least("state", &self.state, self.batch.shape.max_seqs, cols)?;
        c.batch(&self.batch, n)
    }
}

op! {
    /// The recurrence of Mamba-1 and Mamba-2, per head with its group's `b` and `c`: with state
    /// `S` of `[d_head, d_state]` and `dt = softplus(dt_raw + dt_bias)`,
    /// `S = exp(dt * a) * S + dt * x b^T`, `y = S c + d * x`. A head has one decay rate `a`, or, if
    /// its size is 1 (Mamba-1), one for each value of its state.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `x`, `y` | `[n_tokens, n_head * d_head]` | F32 |
    /// | `dt` | `[n_tokens, n_head]`: `dt_raw`, before bias and softplus | F32 |
    /// | `dt_bias`, `d` | `[1, n_head]` | F32 |
    /// | `a` | `[1, n_head]`, or `[1, n_head * d_state]` if `d_head` is 1; negative | F32 |
    /// | `b`, `c` | `[n_tokens, n_group * d_state]` | F32 |
    /// | `state` | `[n_seq, n_head * d_head * d_state]` | F32 |
    ///
    /// Sources: Mamba (Gu and Dao 2023), Mamba-2 (Dao and Gu 2024).
    SsmScan {
        /// Input.
        read x,
        /// Step sizes before softplus.
        read dt,
        /// Bias of the step sizes.
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
        state state,
        /// Output.
        write y,
        ;
        /// Number of groups. The heads of a group share `b` and `c`.
        n_group: usize,
    }
}

impl<T: Operand> SsmScan<T> {
    /// Number of decay rates of a head: 1, or one for each value of its state.
    #[must_use]
    pub fn n_rates(&self) -> usize {
        self.a.desc().n_cols / self.dt.desc().n_cols
    }

    /// Three multiplications per state value: the decay, the outer product that is added, and the
    /// product with `c`.
    pub(super) fn work(&self) -> Work {
        Work::new(self.x.desc().n_rows, (self.state.desc().n_cols as u64).saturating_mul(3))
    }

    pub(super) fn check(&self) -> Result<()> {
        let check = Check("SsmScan");
        let (x, dt, b) = (self.x.desc(), self.dt.desc(), self.b.desc());
        let (n, heads) = (x.n_rows, dt.n_cols);
        check.require(
            heads > 0 && x.n_cols % heads == 0,
            "dt",
            "a divisor of x's columns",
            heads,
        )?;
        let groups = self.n_group > 0 && heads % self.n_group == 0 && b.n_cols % self.n_group == 0;
        check.require(b.n_cols > 0, "b", "at least one column", b)?;
        check.require(groups, "n_group", "a divisor of heads and b's columns", self.n_group)?;
        check.f32("x", &self.x, n, x.n_cols)?;
        check.f32("y", &self.y, n, x.n_cols)?;
        check.f32("dt", &self.dt, n, heads)?;
        for (name, tensor) in [("dt_bias", &self.dt_bias), ("d", &self.d)] {
            check.f32(name, tensor, 1, heads)?;
        }
        check.f32("b", &self.b, n, b.n_cols)?;
        check.f32("c", &self.c, n, b.n_cols)?;
        let d_state = b.n_cols / self.n_group;
        let per_state = x.n_cols == heads && self.a.desc().n_cols != heads;
        check.f32("a", &self.a, 1, if per_state { heads * d_state } else { heads })?;
        let cols = x.n_cols * d_state;
        check.f32("state", &self.state, self.state.desc().n_rows, cols)?;
        check.at_least("state", &self.state, self.batch.shape.max_seqs, cols)?;
        check.batch(&self.batch, n)
    }
}

op! {
    /// The recurrence of RWKV-6, per head of `d` columns, with a state `S` of `[d, d]` whose rows
    /// decay by `decay = exp(-exp(w))`:
    ///
    /// - with `first`: `y = (S + (first * k) v^T)^T r`, then `S = decay * S + k v^T`;
    /// - without: `S = decay * S + ((1 - decay) * k) v^T`, then `y = S^T r`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `r`, `w`, `k`, `v`, `y` | `[n_tokens, n_head * d]` | F32 |
    /// | `first` | `[1, n_head * d]` | F32 |
    /// | `state` | `[n_seq, n_head * d * d]`, `S[i, j]` at `i * d + j` | F32 |
    ///
    /// Sources: Eagle and Finch (Peng et al. 2024); without `first`, gated linear attention (Yang
    /// et al. 2023) as QRWKV uses it.
    Wkv6 {
        /// Receptance.
        read r,
        /// Logarithm of the decay rate.
        read w,
        /// Keys.
        read k,
        /// Values.
        read v,
        /// Weight of a token's own key in its output.
        maybe first,
        /// Sequences of the tokens.
        batch batch,
        /// State of every sequence.
        state state,
        /// Output.
        write y,
        ;
        /// Number of heads.
        n_head: usize,
    }
}

impl<T: Operand> Wkv6<T> {
    /// Three multiplications per state value: the product with `r`, the decay, and the outer
    /// product that is added.
    pub(super) fn work(&self) -> Work {
        Work::new(self.r.desc().n_rows, (self.state.desc().n_cols as u64).saturating_mul(3))
    }

    /// Number of columns of a head.
    #[must_use]
    pub fn d_head(&self) -> usize {
        self.r.desc().n_cols / self.n_head
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Wkv6");
        let all = [&self.r, &self.w, &self.k, &self.v, &self.y];
        check_wkv(&c, all, ["r", "w", "k", "v", "y"], self.n_head, &self.state, &self.batch)?;
        c.maybe_f32("first", &self.first, 1, self.r.desc().n_cols)
    }
}

/// Checks the operands with a row per token, the first of which is the receptance, and the state of
/// a recurrence of RWKV.
fn check_wkv<T: Operand, const N: usize>(
    c: &Check,
    per_token: [&T; N],
    names: [&'static str; N],
    n_head: usize,
    state: &T,
    batch: &Batch<T>,
) -> Result<()> {
    let r = per_token[0].desc();
    let (n, n_cols) = (r.n_rows, r.n_cols);
    let divides = n_head > 0 && n_cols.is_multiple_of(n_head) && n_cols > 0;
    c.require(divides, "n_head", format!("a divisor of {n_cols}"), n_head)?;
    for (name, tensor) in names.into_iter().zip(per_token) {
        c.f32(name, tensor, n, n_cols)?;
    }
    let Some(cols) = (n_cols / n_head).checked_mul(n_cols) else {
        return Err(Error::shape(c.0, "state", "a size that does not overflow", r));
    };
    c.f32("state", state, state.desc().n_rows, cols)?;
    c.at_least("state", state, batch.shape.max_seqs, cols)?;
    c.batch(batch, n)
}

op! {
    /// The recurrence of RWKV-7, per head of `d` columns, with a state `S` of `[d, d]`:
    ///
    /// - `decay = exp(-e^-0.5 * sigmoid(w))`, `rate = sigmoid(a)`;
    /// - `v' = v + sigmoid(mix) * (first - v)`, or `v` without `first`;
    /// - `u = norm(k * vectors[0])` with length 1, `k' = k * (1 + vectors[1] * (rate - 1))`;
    /// - `S = decay * S + k' v'^T - (u * rate) (S^T u)^T`, where `decay` scales rows;
    /// - `y = S^T r`, `bonus = sum(k' * r * vectors[2]) * v' + vectors[3]`.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `r`, `w`, `k`, `v`, `a`, `first`, `mix`, `y`, `bonus` | `[n_tokens, n_head * d]` | F32 |
    /// | `vectors` | `[4, n_head * d]` | F32 |
    /// | `state` | `[n_seq, n_head * d * d]`, `S[i, j]` at `i * d + j` | F32 |
    ///
    /// Source: RWKV-7 "Goose" (Peng et al. 2025).
    Wkv7 {
        /// Receptance.
        read r,
        /// Decay before the sigmoid.
        read w,
        /// Keys.
        read k,
        /// Values.
        read v,
        /// In-context learning rates before the sigmoid.
        read a,
        /// Values of the first layer; given together with `mix`.
        maybe first,
        /// Share of the first layer's values before the sigmoid.
        maybe mix,
        /// Vectors of the key and the bonus.
        read vectors,
        /// Sequences of the tokens.
        batch batch,
        /// State of every sequence.
        state state,
        /// Output.
        write y,
        /// Added to the output after its norm.
        write bonus,
        ;
        /// Number of heads.
        n_head: usize,
    }
}

/// Smallest divisor of the key's norm in [`Wkv7`].
pub const MIN_KEY_NORM: f32 = 1e-12;

/// Factor on the sigmoid in the decay of [`Wkv7`]: `-e^-0.5`, with llama.cpp's digits.
pub const WKV7_DECAY: f32 = -0.606_531;

impl<T: Operand> Wkv7<T> {
    /// Four multiplications per state value: the products with `u` and `r`, the decay, and the two
    /// outer products that are added.
    pub(super) fn work(&self) -> Work {
        Work::new(self.r.desc().n_rows, (self.state.desc().n_cols as u64).saturating_mul(4))
    }

    /// Number of columns of a head.
    #[must_use]
    pub fn d_head(&self) -> usize {
        self.r.desc().n_cols / self.n_head
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("Wkv7");
        let all = [&self.r, &self.w, &self.k, &self.v, &self.a, &self.y, &self.bonus];
        let names = ["r", "w", "k", "v", "a", "y", "bonus"];
        check_wkv(&c, all, names, self.n_head, &self.state, &self.batch)?;
        let r = self.r.desc();
        let (n, n_cols) = (r.n_rows, r.n_cols);
        c.maybe_f32("first", &self.first, n, n_cols)?;
        c.maybe_f32("mix", &self.mix, n, n_cols)?;
        let both = self.first.is_some() == self.mix.is_some();
        c.require(both, "mix", "given together with `first`", "only one of them")?;
        c.f32("vectors", &self.vectors, 4, n_cols)
    }
}
