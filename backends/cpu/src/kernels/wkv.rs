//! The recurrences of RWKV-6 and RWKV-7. A chunk advances one sequence's state in one head over all of the
//! sequence's tokens in the step, so the state stays in the CPU cache.

use hal::Tensor;
use hal::op::{self, GateActivation, MIN_KEY_NORM, WKV7_DECAY};

use super::operand::optional_view;
use super::recurrent::{Sequences, dot};
use super::{Context, Kernel};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::{Kernels, WkvToken};

/// Vectors of a head that a thread computes for a token.
const N_VECTORS: usize = 7;

/// Workspace: the vectors of a head, `[n_threads, N_VECTORS * d]`.
pub(super) struct WkvSpan(Span<f32>);

impl WkvSpan {
    pub(super) fn new(d: usize, n_threads: usize, scratch: &mut Scratch) -> WkvSpan {
        WkvSpan(scratch.take(n_threads, d.saturating_mul(N_VECTORS)))
    }
}

#[derive(Debug)]
pub(super) struct Wkv7 {
    r: ReadView<f32>,
    w: ReadView<f32>,
    k: ReadView<f32>,
    v: ReadView<f32>,
    a: ReadView<f32>,
    first: Option<ReadView<f32>>,
    mix: Option<ReadView<f32>>,
    vectors: ReadView<f32>,
    sequences: Sequences,
    state: WriteView<f32>,
    y: WriteView<f32>,
    bonus: WriteView<f32>,
    scratch: WriteView<f32>,
    n_head: usize,
    simd: Kernels,
}

impl Wkv7 {
    pub(super) fn new(op: &op::Wkv7<Tensor>, context: &Context<'_>) -> Wkv7 {
        let span = WkvSpan::new(op.d_head(), context.n_threads, &mut Scratch::default());
        let bind = &context.bind;
        Wkv7 {
            r: bind.read(&op.r),
            w: bind.read(&op.w),
            k: bind.read(&op.k),
            v: bind.read(&op.v),
            a: bind.read(&op.a),
            first: optional_view(op.first.as_ref(), context),
            mix: optional_view(op.mix.as_ref(), context),
            vectors: bind.read(&op.vectors),
            sequences: Sequences::new(&op.batch, &op.r, context),
            state: bind.write(&op.state),
            y: bind.write(&op.y),
            bonus: bind.write(&op.bonus),
            scratch: bind.scratch(&span.0),
            n_head: op.n_head,
            simd: context.simd,
        }
    }

    /// Advances head `h` by token `t`; `vectors` are the head's part of the workspace.
    fn advance(&self, h: usize, t: usize, state: &mut [f32], vectors: &mut [f32]) {
        let d = vectors.len() / N_VECTORS;
        let own = h * d..(h + 1) * d;
        let [r, w, k, v, a] =
            [&self.r, &self.w, &self.k, &self.v, &self.a].map(|x| &x.row(t)[own.clone()]);
        let [k_k, k_a, r_k, offset] = [0, 1, 2, 3].map(|i| &self.vectors.row(i)[own.clone()]);
        let mut parts = vectors.chunks_exact_mut(d);
        let [decay, decayed_r, u, rated_u, key, value, rate] =
            std::array::from_fn(|_| parts.next().expect("the workspace has a row per vector"));
        decay.copy_from_slice(w);
        rate.copy_from_slice(a);
        let sigmoid = |x: &mut [f32]| (self.simd.gate())(GateActivation::Sigmoid, x);
        sigmoid(decay);
        sigmoid(rate);
        value.copy_from_slice(v);
        if let (Some(first), Some(mix)) = (&self.first, &self.mix) {
            // `key` is still unused.
            key.copy_from_slice(&mix.row(t)[own.clone()]);
            sigmoid(key);
            let first = &first.row(t)[own.clone()];
            for ((value, first), share) in value.iter_mut().zip(first).zip(&*key) {
                *value += share * (first - *value);
            }
        }
        for i in 0..d {
            decay[i] = (WKV7_DECAY * decay[i]).exp();
            decayed_r[i] = decay[i] * r[i];
            u[i] = k[i] * k_k[i];
            key[i] = k[i] * (1.0 + k_a[i] * (rate[i] - 1.0));
        }
        let scale = dot(u, u).sqrt().max(MIN_KEY_NORM).recip();
        for i in 0..d {
            u[i] *= scale;
            rated_u[i] = u[i] * rate[i];
        }
        let (k_dot_r, u_dot_r) = (dot(key, r), dot(rated_u, r));
        let token = WkvToken { decay, decayed_r, u, rated_u, k: key, k_dot_r, u_dot_r };
        (self.simd.wkv())(&token, state, value, self.y.columns(t, own.clone()));
        // `rate` is no longer used.
        for i in 0..d {
            rate[i] = r[i] * r_k[i];
        }
        let weight = dot(key, rate);
        let bonus = self.bonus.columns(t, own.clone()).iter_mut();
        for (bonus, (value, offset)) in bonus.zip(value.iter().zip(offset)) {
            *bonus = weight * value + offset;
        }
    }
}

impl Kernel for Wkv7 {
    fn chunks(&self, _phase: usize) -> usize {
        self.sequences.n_seqs() * self.n_head
    }

    fn run(&self, _phase: usize, chunk: usize, worker: usize) {
        let (state, scratch) = (&self.state, &self.scratch);
        advance_head(
            &self.sequences,
            self.n_head,
            (state, scratch),
            (chunk, worker),
            |h, t, s, x| {
                self.advance(h, t, s, x);
            },
        );
    }
}

#[derive(Debug)]
pub(super) struct Wkv6 {
    r: ReadView<f32>,
    w: ReadView<f32>,
    k: ReadView<f32>,
    v: ReadView<f32>,
    first: Option<ReadView<f32>>,
    sequences: Sequences,
    state: WriteView<f32>,
    y: WriteView<f32>,
    scratch: WriteView<f32>,
    n_head: usize,
    simd: Kernels,
}

impl Wkv6 {
    pub(super) fn new(op: &op::Wkv6<Tensor>, context: &Context<'_>) -> Wkv6 {
        let span = WkvSpan::new(op.d_head(), context.n_threads, &mut Scratch::default());
        let bind = &context.bind;
        Wkv6 {
            r: bind.read(&op.r),
            w: bind.read(&op.w),
            k: bind.read(&op.k),
            v: bind.read(&op.v),
            first: optional_view(op.first.as_ref(), context),
            sequences: Sequences::new(&op.batch, &op.r, context),
            state: bind.write(&op.state),
            y: bind.write(&op.y),
            scratch: bind.scratch(&span.0),
            n_head: op.n_head,
            simd: context.simd,
        }
    }

    /// Advances head `h` by token `t`, as a step of RWKV-7 that removes nothing; `vectors` are the
    /// head's part of the workspace.
    fn advance(&self, h: usize, t: usize, state: &mut [f32], vectors: &mut [f32]) {
        let d = vectors.len() / N_VECTORS;
        let own = h * d..(h + 1) * d;
        let [r, w, k, v] = [&self.r, &self.w, &self.k, &self.v].map(|x| &x.row(t)[own.clone()]);
        let mut parts = vectors.chunks_exact_mut(d);
        let [decay, read_r, zeros, key, weighted] =
            std::array::from_fn(|_| parts.next().expect("the workspace has a row per vector"));
        zeros.fill(0.0);
        for i in 0..d {
            decay[i] = (-w[i].exp()).exp();
        }
        match &self.first {
            // The output reads the state before its decay.
            Some(first) => {
                let first = &first.row(0)[own.clone()];
                read_r.copy_from_slice(r);
                key.copy_from_slice(k);
                for i in 0..d {
                    weighted[i] = first[i] * r[i];
                }
            }
            None => {
                weighted.copy_from_slice(r);
                for i in 0..d {
                    read_r[i] = decay[i] * r[i];
                    key[i] = (1.0 - decay[i]) * k[i];
                }
            }
        }
        let token = WkvToken {
            decay,
            decayed_r: read_r,
            u: zeros,
            rated_u: zeros,
            k: key,
            k_dot_r: dot(key, weighted),
            u_dot_r: 0.0,
        };
        (self.simd.wkv())(&token, state, v, self.y.columns(t, own));
    }
}

impl Kernel for Wkv6 {
    fn chunks(&self, _phase: usize) -> usize {
        self.sequences.n_seqs() * self.n_head
    }

    fn run(&self, _phase: usize, chunk: usize, worker: usize) {
        let (state, scratch) = (&self.state, &self.scratch);
        advance_head(
            &self.sequences,
            self.n_head,
            (state, scratch),
            (chunk, worker),
            |h, t, s, x| {
                self.advance(h, t, s, x);
            },
        );
    }
}

/// Advances the state of a sequence in one head, which `chunk` names, by all of the sequence's
/// tokens: calls `step` with head, token, state and the part of the workspace of `worker`.
fn advance_head(
    sequences: &Sequences,
    n_head: usize,
    (state, scratch): (&WriteView<f32>, &WriteView<f32>),
    (chunk, worker): (usize, usize),
    step: impl Fn(usize, usize, &mut [f32], &mut [f32]),
) {
    let (seq, h) = (chunk / n_head, chunk % n_head);
    let Some(tokens) = sequences.tokens_if_any(seq) else { return };
    let vectors = scratch.row(worker);
    let d = vectors.len() / N_VECTORS;
    let state = state.columns(seq, h * d * d..(h + 1) * d * d);
    for (t, begins) in tokens {
        if begins {
            state.fill(0.0);
        }
        step(h, t, state, vectors);
    }
}
