//! Compressed keys of blocks, and lists of them. In the first phase, a chunk is a token, which
//! computes the key of its block if it is the block's last one; in the second, a chunk is a
//! sequence, whose state advances.

use hal::op::{self, BlockList, CACHE_ROW, NO_POSITION, Pairing, block_row};
use hal::{BatchView, Operand, Tensor};

use super::operand::Step;
use super::position::CacheRows;
use super::recurrent::Sequences;
use super::{Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::Kernels;

/// Per worker: for each value of a key its weight, its largest gate, the sum of its weights, and
/// the value itself.
pub(super) struct Workspace(Span<f32>);

impl Workspace {
    pub(super) fn new<T: Operand>(
        op: &op::CompressKeys<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Workspace {
        Workspace(scratch.take(n_threads, 4 * op.norm.desc().n_cols))
    }
}

#[derive(Debug)]
pub(super) struct CompressKeys {
    values: ReadView<f32>,
    gates: ReadView<f32>,
    ape: ReadView<f32>,
    norm: ReadView<f32>,
    freqs: ReadView<f32>,
    step: Step,
    sequences: Sequences,
    state: WriteView<f32>,
    cache: CacheRows,
    scratch: WriteView<f32>,
    ratio: usize,
    n_positions: usize,
    eps: f32,
    pairing: Pairing,
    simd: Kernels,
}

impl CompressKeys {
    pub(super) fn new(op: &op::CompressKeys<Tensor>, context: &Context<'_>) -> CompressKeys {
        let bind = &context.bind;
        let span = Workspace::new(op, context.n_threads, &mut Scratch::default());
        CompressKeys {
            values: bind.read(&op.values),
            gates: bind.read(&op.gates),
            ape: bind.read(&op.ape),
            norm: bind.read(&op.norm),
            freqs: bind.read(&op.freqs),
            step: Step::new(&op.batch, context),
            sequences: Sequences::new(&op.batch, &op.values, context),
            state: bind.write(&op.state),
            cache: CacheRows::new(&op.cache.k, context),
            scratch: bind.scratch(&span.0),
            ratio: op.ratio,
            n_positions: op.n_positions(),
            eps: op.eps,
            pairing: op.pairing,
            simd: context.simd,
        }
    }

    /// Columns of a row of values.
    fn width(&self) -> usize {
        self.values.n_cols()
    }

    /// Where position `p` is in the state.
    fn slot(&self, p: usize) -> usize {
        p % self.n_positions * 2 * self.width()
    }

    /// Calls `f` with the values, the gates and the summands of the gates of each position that the
    /// key of the block of token `t` is made from, the last position first: first the positions of
    /// the step, then those of the state.
    fn for_each_position(&self, t: usize, f: &mut dyn FnMut([&[f32]; 3])) {
        let (view, d, width) = (self.step.view(), self.norm.n_cols(), self.width());
        let (seqs, positions) = (view.seqs(), view.positions());
        let (seq, last) = (seqs[t], positions[t] as usize);
        let state = self.state.read_row(seq as usize);
        let mut token = Some(t);
        for p in ((last + 1).saturating_sub(self.n_positions)..=last).rev() {
            let first = if last - p < self.ratio { width - d } else { 0 };
            let columns = first..first + d;
            let ape = &self.ape.row(p % self.ratio)[columns.clone()];
            match token {
                Some(at) => {
                    let rows = [&self.values, &self.gates].map(|by| &by.row(at)[columns.clone()]);
                    f([rows[0], rows[1], ape]);
                    token = (0..at).rev().find(|&other| seqs[other] == seq);
                }
                None => {
                    let (values, gates) = state[self.slot(p)..][..2 * width].split_at(width);
                    f([&values[columns.clone()], &gates[columns], ape]);
                }
            }
        }
    }

    /// Computes the key of the block that ends at token `t`.
    fn compress(&self, t: usize, worker: usize) {
        let d = self.norm.n_cols();
        let pos = self.step.view().positions()[t] as usize;
        let (weights, rest) = self.scratch.row(worker).split_at_mut(d);
        let (max, rest) = rest.split_at_mut(d);
        let (sum, key) = rest.split_at_mut(d);
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        key.fill(0.0);
        self.for_each_position(t, &mut |[_, gates, ape]| {
            let gates = gates.iter().zip(ape).map(|(gate, ape)| gate + ape);
            max.iter_mut().zip(gates).for_each(|(max, gate)| *max = max.max(gate));
        });
        self.for_each_position(t, &mut |[values, gates, ape]| {
            let gates = gates.iter().zip(ape).map(|(gate, ape)| gate + ape);
            let gates = gates.zip(&*max).map(|(gate, max)| gate - max);
            weights.iter_mut().zip(gates).for_each(|(weight, gate)| *weight = gate);
            (self.simd.exp())(weights);
            sum.iter_mut().zip(&*weights).for_each(|(sum, weight)| *sum += weight);
            (self.simd.multiply_add())(key, weights, values);
        });
        key.iter_mut().zip(&*sum).for_each(|(key, sum)| *key /= sum);
        let factor = 1.0 / (self.simd.sum_squares(key) / d as f32 + self.eps).sqrt();
        key.iter_mut().zip(self.norm.as_slice()).for_each(|(key, w)| *key = *key * factor * w);
        self.rotate(key, (pos + 1 - self.ratio) as f32);
        let at = block_row(self.step.view().kv_rows()[t] as usize, self.ratio);
        self.cache.store(at, key);
    }

    /// Rotates the last values of a key.
    fn rotate(&self, key: &mut [f32], pos: f32) {
        let n_pairs = self.freqs.n_cols();
        let first = key.len() - 2 * n_pairs;
        let key = &mut key[first..];
        for (j, freq) in self.freqs.as_slice().iter().enumerate() {
            let (a, b) = match self.pairing {
                Pairing::Adjacent => (2 * j, 2 * j + 1),
                Pairing::Halves => (j, j + n_pairs),
            };
            let (sin, cos) = (pos * freq).sin_cos();
            (key[a], key[b]) = (key[a] * cos - key[b] * sin, key[a] * sin + key[b] * cos);
        }
    }

    /// Writes the last positions of a sequence to its state.
    fn advance(&self, seq: usize) {
        let width = self.width();
        let n = self.sequences.tokens(seq).count();
        for (t, _) in self.sequences.tokens(seq).skip(n.saturating_sub(self.n_positions)) {
            let slot = self.slot(self.step.view().positions()[t] as usize);
            let (values, gates) =
                self.state.columns(seq, slot..slot + 2 * width).split_at_mut(width);
            values.copy_from_slice(self.values.row(t));
            gates.copy_from_slice(self.gates.row(t));
        }
    }
}

impl Kernel for CompressKeys {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 => self.step.n_tokens(self.values.n_rows()),
            _ => self.sequences.n_seqs(),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        if phase > 0 {
            return self.advance(chunk);
        }
        let pos = self.step.view().positions()[chunk] as usize;
        if (pos + 1).is_multiple_of(self.ratio) {
            self.compress(chunk, worker);
        }
    }
}

#[derive(Debug)]
pub(super) struct ListBlocks {
    step: Step,
    selected: WriteView<u32>,
    ratio: usize,
    list: BlockList,
}

impl ListBlocks {
    pub(super) fn new(op: &op::ListBlocks<Tensor>, context: &Context<'_>) -> ListBlocks {
        ListBlocks {
            step: Step::new(&op.batch, context),
            selected: context.bind.write(&op.selected),
            ratio: op.ratio,
            list: op.list,
        }
    }
}

impl Kernel for ListBlocks {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.selected.n_rows()).div_ceil(cheap_rows(self.selected.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let n_tokens = self.step.n_tokens(self.selected.n_rows());
        let view = self.step.view();
        for t in nth_range(chunk, cheap_rows(self.selected.n_cols()), n_tokens) {
            let n_blocks = (view.positions()[t] as usize + 1) / self.ratio;
            let rest = list_window(&view, t, self.list, self.selected.row(t));
            let (rows, rest) = rest.split_at_mut(n_blocks);
            for (out, block) in rows.iter_mut().zip(0..) {
                *out = listed_row(&view, t, self.list, self.ratio, block);
            }
            rest.fill(NO_POSITION);
        }
    }
}

/// Writes the positions of the window of token `t`, and returns the entries after them.
pub(super) fn list_window<'a>(
    view: &BatchView<'_>,
    t: usize,
    list: BlockList,
    entries: &'a mut [u32],
) -> &'a mut [u32] {
    let end = view.positions()[t] + 1;
    let window = end.saturating_sub(list.window as u32)..end;
    let (positions, rest) = entries.split_at_mut(window.len());
    positions.iter_mut().zip(window).for_each(|(out, p)| *out = p);
    rest
}

/// The entry of a block of the sequence of token `t`.
pub(super) fn listed_row(
    view: &BatchView<'_>,
    t: usize,
    list: BlockList,
    ratio: usize,
    block: usize,
) -> u32 {
    let last = view.kv_row(view.seqs()[t] as usize, (block + 1) * ratio - 1);
    (list.first_row + block_row(last, ratio)) as u32 | CACHE_ROW
}
