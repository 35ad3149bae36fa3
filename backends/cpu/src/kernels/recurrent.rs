//! Recurrent layers. A chunk advances one sequence's state in one head, or in some channels, over
//! all of the sequence's tokens in the step, so the state stays in the CPU cache.
//!
//! Neither these kernels nor that of the gated delta rule use the chunked form of the recurrences:
//! for heads of 128 by 128 it needs as many multiplications as these loops, which are not limited by
//! memory.

use std::ops::Range;

use hal::op::{self, GateActivation};
use hal::{Operand, Tensor};

use super::operand::{Step, optional_view};
use super::{Context, Kernel, nth_range};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::{ActivateFn, Kernels, MultiplyAddFn, ScanRates, ScanToken};

/// Channels of a convolution per chunk: one token's inputs, filters and outputs fit in the L1
/// cache.
const CONV_CHANNELS: usize = 256;

/// Channels of a scan per chunk: few enough that a step of one token occupies all threads.
const SCAN_CHANNELS: usize = 32;

/// The tokens of the step, by sequence.
#[derive(Debug)]
pub(super) struct Sequences {
    step: Step,
    n_rows: usize,
}

impl Sequences {
    pub(super) fn new(batch: &hal::Batch<Tensor>, x: &Tensor, context: &Context<'_>) -> Sequences {
        Sequences { step: Step::new(batch, context), n_rows: x.desc().n_rows }
    }

    pub(super) fn n_seqs(&self) -> usize {
        self.step.view().n_seqs()
    }

    /// The tokens of a sequence in ascending position; the flag is true for a token at position 0.
    pub(super) fn tokens(&self, seq: usize) -> impl Iterator<Item = (usize, bool)> {
        let (view, n) = (self.step.view(), self.step.n_tokens(self.n_rows));
        let tokens = view.seqs()[..n].iter().zip(view.positions()).enumerate();
        tokens.filter(move |(_, (s, _))| **s as usize == seq).map(|(t, (_, pos))| (t, *pos == 0))
    }

    /// Like [`Self::tokens`]; `None` if the sequence has no token in the step, so its state stays
    /// untouched.
    pub(super) fn tokens_if_any(&self, seq: usize) -> Option<impl Iterator<Item = (usize, bool)>> {
        let mut tokens = self.tokens(seq).peekable();
        tokens.peek()?;
        Some(tokens)
    }
}

/// Workspace of a convolution: transposed filters, `[n_threads, kernel size * CONV_CHANNELS]`.
pub(super) struct ConvSpan(Span<f32>);

impl ConvSpan {
    pub(super) fn new<T: Operand>(
        op: &op::ShortConv<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> ConvSpan {
        ConvSpan(scratch.take(n_threads, op.weight.desc().n_cols.saturating_mul(CONV_CHANNELS)))
    }
}

#[derive(Debug)]
pub(super) struct ShortConv {
    x: ReadView<f32>,
    weight: ReadView<f32>,
    bias: Option<ReadView<f32>>,
    sequences: Sequences,
    state: WriteView<f32>,
    y: WriteView<f32>,
    filters: WriteView<f32>,
    silu: bool,
    multiply_add: MultiplyAddFn,
    activate: ActivateFn,
}

impl ShortConv {
    pub(super) fn new(op: &op::ShortConv<Tensor>, context: &Context<'_>) -> ShortConv {
        let span = ConvSpan::new(op, context.n_threads, &mut Scratch::default());
        ShortConv {
            x: context.bind.read(&op.x),
            weight: context.bind.read(&op.weight),
            bias: optional_view(op.bias.as_ref(), context),
            sequences: Sequences::new(&op.batch, &op.x, context),
            state: context.bind.write(&op.state),
            y: context.bind.write(&op.y),
            filters: context.bind.scratch(&span.0),
            silu: op.silu,
            multiply_add: context.simd.multiply_add(),
            activate: context.simd.activate(),
        }
    }

    fn chunks_per_sequence(&self) -> usize {
        self.x.n_cols().div_ceil(CONV_CHANNELS)
    }
}

impl Kernel for ShortConv {
    fn chunks(&self, _phase: usize) -> usize {
        self.sequences.n_seqs() * self.chunks_per_sequence()
    }

    fn run(&self, _phase: usize, chunk: usize, worker: usize) {
        let per_sequence = self.chunks_per_sequence();
        let (seq, n, kernel_size) = (chunk / per_sequence, self.x.n_cols(), self.weight.n_cols());
        let channels = nth_range(chunk % per_sequence, CONV_CHANNELS, n);
        let Some(tokens) = self.sequences.tokens_if_any(seq) else { return };
        let filters = self.filters.row(worker);
        for (c, channel) in channels.clone().enumerate() {
            for (i, weight) in self.weight.row(channel).iter().enumerate() {
                filters[i * CONV_CHANNELS + c] = *weight;
            }
        }
        let weights = |i: usize| &filters[i * CONV_CHANNELS..][..channels.len()];
        // The input from `kernel_size - 1 - i` tokens ago.
        let before =
            |i: usize| self.state.columns(seq, i * n + channels.start..i * n + channels.end);
        for (t, begins) in tokens {
            if begins {
                (0..kernel_size - 1).for_each(|i| before(i).fill(0.0));
            }
            let x = &self.x.row(t)[channels.clone()];
            let y = self.y.columns(t, channels.clone());
            match &self.bias {
                Some(bias) => y.copy_from_slice(&bias.as_slice()[channels.clone()]),
                None => y.fill(0.0),
            }
            for i in 0..kernel_size - 1 {
                (self.multiply_add)(y, weights(i), before(i));
            }
            (self.multiply_add)(y, weights(kernel_size - 1), x);
            if self.silu {
                (self.activate)(op::Activation::Silu, y);
            }
            for i in 1..kernel_size - 1 {
                before(i - 1).copy_from_slice(before(i));
            }
            if kernel_size > 1 {
                before(kernel_size - 2).copy_from_slice(x);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct SsmScan {
    x: ReadView<f32>,
    dt: ReadView<f32>,
    dt_bias: ReadView<f32>,
    a: ReadView<f32>,
    b: ReadView<f32>,
    c: ReadView<f32>,
    d: ReadView<f32>,
    sequences: Sequences,
    state: WriteView<f32>,
    y: WriteView<f32>,
    n_group: usize,
    n_rates: usize,
    simd: Kernels,
}

impl SsmScan {
    pub(super) fn new(op: &op::SsmScan<Tensor>, context: &Context<'_>) -> SsmScan {
        let bind = &context.bind;
        SsmScan {
            x: bind.read(&op.x),
            dt: bind.read(&op.dt),
            dt_bias: bind.read(&op.dt_bias),
            a: bind.read(&op.a),
            b: bind.read(&op.b),
            c: bind.read(&op.c),
            d: bind.read(&op.d),
            sequences: Sequences::new(&op.batch, &op.x, context),
            state: bind.write(&op.state),
            y: bind.write(&op.y),
            n_group: op.n_group,
            n_rates: op.n_rates(),
            simd: context.simd,
        }
    }

    fn n_head(&self) -> usize {
        self.dt.n_cols()
    }

    /// Number of parts of which a chunk computes some channels: heads, or, if a head is one channel
    /// with many decay rates, groups of heads.
    fn n_parts(&self) -> usize {
        if self.n_rates > 1 { self.n_group } else { self.n_head() }
    }

    fn chunks_per_part(&self) -> usize {
        (self.x.n_cols() / self.n_parts()).div_ceil(SCAN_CHANNELS)
    }

    /// Advances channels that share one decay rate and step size, those of head `h`.
    fn advance(&self, seq: usize, h: usize, channels: Range<usize>) {
        let d_state = self.b.n_cols() / self.n_group;
        let group = h * self.n_group / self.n_head() * d_state;
        let (rate, offset, d) =
            (self.a.as_slice()[h], self.dt_bias.as_slice()[h], self.d.as_slice()[h]);
        let Some(tokens) = self.sequences.tokens_if_any(seq) else { return };
        let state = self.state.columns(seq, channels.start * d_state..channels.end * d_state);
        for (t, begins) in tokens {
            if begins {
                state.fill(0.0);
            }
            let dt = softplus(self.dt.row(t)[h] + offset);
            let [b, c] = [&self.b, &self.c].map(|v| &v.row(t)[group..][..d_state]);
            let token = ScanToken { b, c, dt, decay: (dt * rate).exp(), d };
            let (x, y) = (&self.x.row(t)[channels.clone()], self.y.columns(t, channels.clone()));
            (self.simd.scan())(&token, state, x, y);
        }
    }

    /// Advances channels of `group`, each of which has many decay rates.
    fn advance_rates(&self, seq: usize, group: usize, channels: Range<usize>) {
        let d_state = self.b.n_cols() / self.n_group;
        let states = channels.start * d_state..channels.end * d_state;
        let rates = &self.a.as_slice()[states.clone()];
        let [offsets, d] = [&self.dt_bias, &self.d].map(|v| &v.as_slice()[channels.clone()]);
        let Some(tokens) = self.sequences.tokens_if_any(seq) else { return };
        let state = self.state.columns(seq, states);
        let mut steps = [0.0; SCAN_CHANNELS];
        let dt = &mut steps[..channels.len()];
        for (t, begins) in tokens {
            if begins {
                state.fill(0.0);
            }
            let raw = self.dt.row(t)[channels.clone()].iter();
            dt.iter_mut().zip(raw.zip(offsets)).for_each(|(dt, (raw, offset))| *dt = raw + offset);
            (self.simd.gate())(GateActivation::Softplus, dt);
            let [b, c] = [&self.b, &self.c].map(|v| &v.row(t)[group * d_state..][..d_state]);
            let token = ScanRates { b, c, dt, rates, d };
            let (x, y) = (&self.x.row(t)[channels.clone()], self.y.columns(t, channels.clone()));
            (self.simd.scan_rates())(&token, state, x, y);
        }
    }
}

impl Kernel for SsmScan {
    fn chunks(&self, _phase: usize) -> usize {
        self.sequences.n_seqs() * self.n_parts() * self.chunks_per_part()
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let (n_parts, per_part) = (self.n_parts(), self.chunks_per_part());
        let (seq, part) = (chunk / per_part / n_parts, chunk / per_part % n_parts);
        let n_channel = self.x.n_cols() / n_parts;
        let own = nth_range(chunk % per_part, SCAN_CHANNELS, n_channel);
        let channels = part * n_channel + own.start..part * n_channel + own.end;
        if self.n_rates > 1 {
            self.advance_rates(seq, part, channels);
        } else {
            self.advance(seq, part, channels);
        }
    }
}

/// `ln(1 + e^x)`, without overflow.
pub(super) fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The dot product, accumulated in eight interleaved sums.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}
