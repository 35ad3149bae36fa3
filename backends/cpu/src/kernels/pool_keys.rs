//! Keys of blocks of positions: a chunk is a token.

use hal::pack::dequantize_row_plain;
use hal::{Operand, Tensor, TensorDesc, op};

use super::operand::{Step, optional_view};
use super::{Context, Kernel};
use crate::buffer::{ReadView, Scratch, Span, WriteView};

pub(super) struct Workspace {
    /// Per worker: a cache row in F32, and for each value of a key the largest gate and the sum of the
    /// softmax weights.
    rows: Span<f32>,
    softmax: Span<f32>,
}

impl Workspace {
    pub(super) fn new<T: Operand>(
        op: &op::PoolKeys<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Workspace {
        let (width, d) = (op.cache.k.desc().n_cols, op.y.desc().n_cols);
        Workspace { rows: scratch.take(n_threads, width), softmax: scratch.take(n_threads, 2 * d) }
    }
}

#[derive(Debug)]
pub(super) struct PoolKeys {
    cache: ReadView<u8>,
    whole: TensorDesc,
    first: usize,
    ape: Option<ReadView<f32>>,
    step: Step,
    y: WriteView<f32>,
    rows: WriteView<f32>,
    softmax: WriteView<f32>,
    pool: usize,
}

impl PoolKeys {
    pub(super) fn new(op: &op::PoolKeys<Tensor>, context: &Context<'_>) -> PoolKeys {
        let (bind, cache) = (&context.bind, &op.cache.k);
        let spans = Workspace::new(op, context.n_threads, &mut Scratch::default());
        PoolKeys {
            cache: bind.whole(cache),
            whole: cache.whole(),
            first: cache.first_row(),
            ape: optional_view(op.ape.as_ref(), context),
            step: Step::new(&op.batch, context),
            y: bind.write(&op.y),
            rows: bind.scratch(&spans.rows),
            softmax: bind.scratch(&spans.softmax),
            pool: op.pool,
        }
    }

    /// The cache row of position `p` of sequence `seq`, in F32.
    fn row(&self, seq: usize, p: usize, worker: usize) -> &[f32] {
        let row = self.rows.row(worker);
        let at = self.first + self.step.view().kv_row(seq, p);
        dequantize_row_plain(&self.whole, self.cache.as_slice(), at, row);
        row
    }

    /// Adds the weighted key of a position to `y`: a softmax in one pass, so that a row is read once.
    fn add(&self, row: &[f32], ape: &[f32], y: &mut [f32], softmax: &mut [f32]) {
        let (keys, gates) = row.split_at(y.len());
        let (max, sum) = softmax.split_at_mut(y.len());
        for (i, y) in y.iter_mut().enumerate() {
            let gate = gates[i] + ape[i];
            let new = max[i].max(gate);
            let (old, weight) = ((max[i] - new).exp(), (gate - new).exp());
            max[i] = new;
            sum[i] = sum[i] * old + weight;
            *y = *y * old + weight * keys[i];
        }
    }
}

impl Kernel for PoolKeys {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.y.n_rows())
    }

    fn run(&self, _phase: usize, t: usize, worker: usize) {
        let (view, y) = (self.step.view(), self.y.row(t));
        let (seq, end) = (view.seqs()[t] as usize, view.positions()[t] as usize + 1);
        y.fill(0.0);
        if !end.is_multiple_of(self.pool) {
            return;
        }
        let positions = end - self.pool..end;
        let Some(ape) = &self.ape else {
            let factor = 1.0 / self.pool as f32;
            for p in positions {
                let row = self.row(seq, p, worker);
                y.iter_mut().zip(row).for_each(|(y, key)| *y += key);
            }
            return y.iter_mut().for_each(|y| *y *= factor);
        };
        let softmax = self.softmax.row(worker);
        let (max, sum) = softmax.split_at_mut(y.len());
        max.fill(f32::NEG_INFINITY);
        sum.fill(0.0);
        for (j, p) in positions.enumerate() {
            self.add(self.row(seq, p, worker), ape.row(j), y, softmax);
        }
        let sums = &softmax[y.len()..];
        y.iter_mut().zip(sums).for_each(|(y, sum)| *y /= sum);
    }
}
