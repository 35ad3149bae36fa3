//! The gated delta rule. A chunk advances one sequence's state in one head over all of the
//! sequence's tokens in the step.
//!
//! With a decay factor per row of the state, the rule is a step of RWKV-7's recurrence: with
//! `b = beta * k` it adds `b v^T` and removes `b (S^T u)^T`, where `u` is the key times the factors.

use std::ops::Range;

use hal::op::{self, DecayCurve, GateActivation, HeadMapping};
use hal::{Operand, Tensor};

use super::recurrent::{Sequences, dot, sigmoid, softplus};
use super::{Context, Kernel};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::{DeltaColumns, DeltaToken, Kernels, MAX_DELTA_COLUMNS, WkvToken};

/// For a sequence with at least this number of tokens in the step, columns of its state are copied
/// to contiguous memory. In place, rows with a power-of-two stride map to too few sets of the L1
/// cache.
const COPIED_FROM: usize = 4;

/// Vectors of `d_k` values per token with a decay factor per row: factors, factors times query,
/// factors times key, beta times key.
const N_VECTORS: usize = 4;

pub(super) struct DeltaSpans {
    /// With one factor per head: decay, beta and `k . q` of each token, `[n_head_v, 3 * n_tokens]`.
    /// Otherwise the vectors of each token and `beta * k . q`,
    /// `[n_threads, (N_VECTORS * d_k + 1) * n_tokens]`.
    factors: Span<f32>,
    /// Columns of a state, `[n_threads, d_k * MAX_DELTA_COLUMNS]`.
    columns: Span<f32>,
}

impl DeltaSpans {
    pub(super) fn new<T: Operand>(
        op: &op::GatedDelta<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> DeltaSpans {
        let (n_tokens, [d_k, _]) = (op.q.desc().n_rows, op.head_dims());
        let copied = if n_tokens < COPIED_FROM { 0 } else { MAX_DELTA_COLUMNS };
        let (n_rows, n) = match op.n_factors() {
            1 => (op.n_head_v, 3),
            _ => (n_threads, d_k.saturating_mul(N_VECTORS).saturating_add(1)),
        };
        DeltaSpans {
            factors: scratch.take(n_rows, n_tokens.saturating_mul(n)),
            columns: scratch.take(n_threads, d_k.saturating_mul(copied)),
        }
    }
}

#[derive(Debug)]
pub(super) struct GatedDelta {
    q: ReadView<f32>,
    k: ReadView<f32>,
    v: ReadView<f32>,
    decay: ReadView<f32>,
    beta: ReadView<f32>,
    dt_bias: ReadView<f32>,
    a: ReadView<f32>,
    sequences: Sequences,
    state: WriteView<f32>,
    y: WriteView<f32>,
    /// As [`DeltaSpans::factors`].
    factors: WriteView<f32>,
    columns: WriteView<f32>,
    n_head_k: usize,
    n_head_v: usize,
    heads: HeadMapping,
    head_dims: [usize; 2],
    n_factors: usize,
    curve: DecayCurve,
    scale: f32,
    simd: Kernels,
}

impl GatedDelta {
    pub(super) fn new(op: &op::GatedDelta<Tensor>, context: &Context<'_>) -> GatedDelta {
        let spans = DeltaSpans::new(op, context.n_threads, &mut Scratch::default());
        let bind = &context.bind;
        GatedDelta {
            q: bind.read(&op.q),
            k: bind.read(&op.k),
            v: bind.read(&op.v),
            decay: bind.read(&op.decay),
            beta: bind.read(&op.beta),
            dt_bias: bind.read(&op.dt_bias),
            a: bind.read(&op.a),
            sequences: Sequences::new(&op.batch, &op.q, context),
            state: bind.write(&op.state),
            y: bind.write(&op.y),
            factors: bind.scratch(&spans.factors),
            columns: bind.scratch(&spans.columns),
            n_head_k: op.n_head_k,
            n_head_v: op.n_head_v,
            heads: op.heads,
            head_dims: op.head_dims(),
            n_factors: op.n_factors(),
            curve: op.curve,
            scale: op.scale,
            simd: context.simd,
        }
    }

    /// Query and key of value head `h`.
    fn query_key(&self, h: usize, t: usize) -> [&[f32]; 2] {
        let [d_k, _] = self.head_dims;
        let head = self.heads.key_head(h, self.n_head_k, self.n_head_v);
        [&self.q, &self.k].map(|x| &x.row(t)[head * d_k..][..d_k])
    }

    fn factors(&self, h: usize, t: usize) -> &mut [f32] {
        self.factors.columns(h, 3 * t..3 * t + 3)
    }

    /// Advances columns of head `h`, stored in `place`, over all tokens of the sequence.
    fn advance(&self, [seq, h]: [usize; 2], columns: Range<usize>, place: DeltaColumns<'_>) {
        let (delta, at) = (self.simd.delta(), h * self.head_dims[1]);
        let in_row = at + columns.start..at + columns.end;
        let DeltaColumns { state, d_v, first } = place;
        for (t, begins) in self.sequences.tokens(seq) {
            if begins {
                let rows = state.chunks_exact_mut(d_v);
                rows.for_each(|row| row[first..first + columns.len()].fill(0.0));
            }
            let ([q, k], scale) = (self.query_key(h, t), self.scale);
            let &mut [decay, beta, k_dot_q] = self.factors(h, t) else { continue };
            let token = DeltaToken { q, k, k_dot_q, decay, beta, scale };
            let (v, y) = (&self.v.row(t)[in_row.clone()], self.y.columns(t, in_row.clone()));
            delta(&token, DeltaColumns { state, d_v, first }, v, y);
        }
    }

    fn compute_factors(&self, h: usize, t: usize) -> [f32; 3] {
        let (x, rate) = (self.decay.row(t)[h] + self.dt_bias.as_slice()[h], self.a.as_slice()[h]);
        let decay = match self.curve {
            DecayCurve::Softplus => rate * softplus(x),
            DecayCurve::Sigmoid { bound } => bound * sigmoid(rate * x),
        };
        let [q, k] = self.query_key(h, t);
        [decay.exp(), sigmoid(self.beta.row(t)[h]), dot(k, q)]
    }

    /// Computes the vectors of token `t` for a head with a decay factor per row.
    fn compute_vectors(&self, h: usize, t: usize, vectors: &mut [f32]) {
        let [d_k, _] = self.head_dims;
        let (own, rate) = (h * d_k..(h + 1) * d_k, self.a.as_slice()[h]);
        let ([q, k], beta) = (self.query_key(h, t), sigmoid(self.beta.row(t)[h]));
        let (factors, rest) = vectors.split_at_mut(d_k);
        let inputs = self.decay.row(t)[own.clone()].iter().zip(&self.dt_bias.as_slice()[own]);
        let gate = self.simd.gate();
        match self.curve {
            DecayCurve::Softplus => {
                factors.iter_mut().zip(inputs).for_each(|(f, (x, bias))| *f = x + bias);
                gate(GateActivation::Softplus, factors);
                factors.iter_mut().for_each(|f| *f *= rate);
            }
            DecayCurve::Sigmoid { bound } => {
                factors.iter_mut().zip(inputs).for_each(|(f, (x, bias))| *f = rate * (x + bias));
                gate(GateActivation::Sigmoid, factors);
                factors.iter_mut().for_each(|f| *f *= bound);
            }
        }
        (self.simd.exp())(factors);
        let (queries, rest) = rest.split_at_mut(d_k);
        let (keys, rest) = rest.split_at_mut(d_k);
        let (written, product) = rest.split_at_mut(d_k);
        for i in 0..d_k {
            queries[i] = self.scale * factors[i] * q[i];
            keys[i] = factors[i] * k[i];
            written[i] = beta * k[i];
        }
        product[0] = self.scale * dot(written, q);
    }

    /// Like [`Self::advance`], with a decay factor per row. `state` holds only these columns, and
    /// `vectors` the vectors of the sequence's tokens.
    fn advance_rows(
        &self,
        [seq, h]: [usize; 2],
        columns: Range<usize>,
        state: &mut [f32],
        vectors: &[f32],
    ) {
        let ([d_k, d_v], wkv) = (self.head_dims, self.simd.wkv());
        let in_row = h * d_v + columns.start..h * d_v + columns.end;
        let of_tokens = vectors.chunks_exact(N_VECTORS * d_k + 1);
        for ((t, begins), vectors) in self.sequences.tokens(seq).zip(of_tokens) {
            if begins {
                state.fill(0.0);
            }
            let part = |i: usize| &vectors[i * d_k..][..d_k];
            let product = vectors[N_VECTORS * d_k];
            let token = WkvToken {
                decay: part(0),
                decayed_r: part(1),
                u: part(2),
                rated_u: part(3),
                k: part(3),
                k_dot_r: product,
                u_dot_r: product,
            };
            wkv(&token, state, &self.v.row(t)[in_row.clone()], self.y.columns(t, in_row.clone()));
        }
    }

    /// Advances head `h` of a sequence, which has a decay factor per row.
    fn run_rows(&self, [seq, h]: [usize; 2], worker: usize) {
        let [d_k, d_v] = self.head_dims;
        let (width, vectors) = (N_VECTORS * d_k + 1, self.factors.row(worker));
        let mut n_tokens = 0;
        for ((t, _), vectors) in self.sequences.tokens(seq).zip(vectors.chunks_exact_mut(width)) {
            self.compute_vectors(h, t, vectors);
            n_tokens += 1;
        }
        if n_tokens == 0 {
            return;
        }
        let state = self.state.columns(seq, h * d_k * d_v..(h + 1) * d_k * d_v);
        if n_tokens < COPIED_FROM {
            self.advance_rows([seq, h], 0..d_v, state, vectors);
            return;
        }
        self.for_each_tile(state, worker, |columns, tile| {
            self.advance_rows([seq, h], columns, tile, vectors);
        });
    }

    /// Calls `step` with the columns of each tile of a head's state and their values in contiguous
    /// memory, which then replace those of the state.
    fn for_each_tile(
        &self,
        state: &mut [f32],
        worker: usize,
        step: impl Fn(Range<usize>, &mut [f32]),
    ) {
        let ([d_k, d_v], width) = (self.head_dims, self.simd.delta_columns());
        for first in (0..d_v).step_by(width) {
            let columns = first..d_v.min(first + width);
            let n = columns.len();
            let tile = self.columns.columns(worker, 0..d_k * n);
            for (to, from) in tile.chunks_exact_mut(n).zip(state.chunks_exact(d_v)) {
                to.copy_from_slice(&from[columns.clone()]);
            }
            step(columns.clone(), tile);
            for (from, to) in tile.chunks_exact(n).zip(state.chunks_exact_mut(d_v)) {
                to[columns.clone()].copy_from_slice(from);
            }
        }
    }
}

impl Kernel for GatedDelta {
    fn chunks(&self, _phase: usize) -> usize {
        self.sequences.n_seqs() * self.n_head_v
    }

    fn run(&self, _phase: usize, chunk: usize, worker: usize) {
        let (seq, h, [d_k, d_v]) = (chunk / self.n_head_v, chunk % self.n_head_v, self.head_dims);
        if self.n_factors > 1 {
            self.run_rows([seq, h], worker);
            return;
        }
        let mut n_tokens = 0;
        for (t, _) in self.sequences.tokens(seq) {
            self.factors(h, t).copy_from_slice(&self.compute_factors(h, t));
            n_tokens += 1;
        }
        if n_tokens == 0 {
            return;
        }
        let state = self.state.columns(seq, h * d_k * d_v..(h + 1) * d_k * d_v);
        if n_tokens >= COPIED_FROM {
            self.for_each_tile(state, worker, |columns, tile| {
                let place = DeltaColumns { state: tile, d_v: columns.len(), first: 0 };
                self.advance([seq, h], columns, place);
            });
            return;
        }
        let width = self.simd.delta_columns();
        for first in (0..d_v).step_by(width) {
            let place = DeltaColumns { state: &mut *state, d_v, first };
            self.advance([seq, h], first..d_v.min(first + width), place);
        }
    }
}
