//! Hyper-connections: weights of residual streams, and reading and writing the streams.

use std::ops::Range;

use hal::op::{self, MAX_STREAMS};
use hal::{Operand, Tensor};

use super::{CHEAP_CHUNK, Context, Kernel, nth_range};
use crate::buffer::{ReadView, WriteView};

#[derive(Debug)]
pub(super) struct HyperWeights {
    scale: ReadView<f32>,
    base: ReadView<f32>,
    weights: WriteView<f32>,
    n_streams: usize,
    eps: f32,
    n_iterations: usize,
}

impl HyperWeights {
    pub(super) fn new(op: &op::HyperWeights<Tensor>, context: &Context<'_>) -> HyperWeights {
        HyperWeights {
            scale: context.bind.read(&op.scale),
            base: context.bind.read(&op.base),
            weights: context.bind.write(&op.weights),
            n_streams: op.n_streams,
            eps: op.eps,
            n_iterations: op.n_iterations,
        }
    }

    /// Replaces logarithms by a matrix whose columns have a sum of nearly 1.
    fn sinkhorn(&self, mix: &mut [f32]) {
        let (n, eps) = (self.n_streams, self.eps);
        for row in mix.chunks_exact_mut(n) {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|z| *z = (*z - max).exp());
            let factor = 1.0 / row.iter().sum::<f32>();
            row.iter_mut().for_each(|z| *z = *z * factor + eps);
        }
        for iteration in 0..self.n_iterations {
            if iteration > 0 {
                for row in mix.chunks_exact_mut(n) {
                    let factor = 1.0 / (row.iter().sum::<f32>() + eps);
                    row.iter_mut().for_each(|z| *z *= factor);
                }
            }
            for to in 0..n {
                let column = mix[to..].iter_mut().step_by(n);
                let factor = 1.0 / (column.map(|z| *z).sum::<f32>() + eps);
                mix[to..].iter_mut().step_by(n).for_each(|z| *z *= factor);
            }
        }
    }
}

impl Kernel for HyperWeights {
    fn chunks(&self, _phase: usize) -> usize {
        self.weights.n_rows()
    }

    fn run(&self, _phase: usize, t: usize, _worker: usize) {
        let (n, weights) = (self.n_streams, self.weights.row(t));
        let scales = self.scale.as_slice();
        for (i, (z, base)) in weights.iter_mut().zip(self.base.as_slice()).enumerate() {
            *z = *z * scales[(i / n).min(2)] + base;
        }
        let sigmoid = |z: f32| 1.0 / (1.0 + (-z).exp());
        let (pre, rest) = weights.split_at_mut(n);
        pre.iter_mut().for_each(|z| *z = sigmoid(*z) + self.eps);
        if !rest.is_empty() {
            let (post, mix) = rest.split_at_mut(n);
            post.iter_mut().for_each(|z| *z = 2.0 * sigmoid(*z));
            self.sinkhorn(mix);
        }
    }
}

/// How values of `width` columns per token are cut into chunks.
#[derive(Clone, Copy, Debug)]
struct Cut {
    n_tokens: usize,
    width: usize,
    /// Columns per chunk.
    size: usize,
}

impl Cut {
    fn new(n_tokens: usize, width: usize, n_streams: usize) -> Cut {
        Cut { n_tokens, width, size: CHEAP_CHUNK / n_streams }
    }

    fn chunks(&self) -> usize {
        self.n_tokens * self.width.div_ceil(self.size)
    }

    /// The token and the columns of a chunk.
    fn at(&self, chunk: usize) -> (usize, Range<usize>) {
        let per_token = self.width.div_ceil(self.size);
        (chunk / per_token, nth_range(chunk % per_token, self.size, self.width))
    }
}

#[derive(Debug)]
pub(super) struct HyperRead {
    streams: ReadView<f32>,
    weights: ReadView<f32>,
    y: WriteView<f32>,
    n_streams: usize,
    cut: Cut,
}

impl HyperRead {
    pub(super) fn new(op: &op::HyperRead<Tensor>, context: &Context<'_>) -> HyperRead {
        let (y, n_streams) = (op.y.desc(), op.n_streams);
        HyperRead {
            streams: context.bind.read(&op.streams),
            weights: context.bind.read(&op.weights),
            y: context.bind.write(&op.y),
            n_streams,
            cut: Cut::new(y.n_rows, y.n_cols, n_streams),
        }
    }
}

impl Kernel for HyperRead {
    fn chunks(&self, _phase: usize) -> usize {
        self.cut.chunks()
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let (t, columns) = self.cut.at(chunk);
        let y = self.y.columns(t, columns.clone());
        y.fill(0.0);
        let weights = self.weights.row(t.min(self.weights.n_rows() - 1));
        let streams = self.streams.row(t).chunks_exact(self.cut.width);
        for (stream, weight) in streams.zip(&weights[..self.n_streams]) {
            y.iter_mut().zip(&stream[columns.clone()]).for_each(|(y, value)| *y += weight * value);
        }
    }
}

#[derive(Debug)]
pub(super) struct HyperWrite {
    x: ReadView<f32>,
    weights: ReadView<f32>,
    streams: WriteView<f32>,
    n_streams: usize,
    cut: Cut,
}

impl HyperWrite {
    pub(super) fn new(op: &op::HyperWrite<Tensor>, context: &Context<'_>) -> HyperWrite {
        let (x, n_streams) = (op.x.desc(), op.n_streams);
        HyperWrite {
            x: context.bind.read(&op.x),
            weights: context.bind.read(&op.weights),
            streams: context.bind.write(&op.streams),
            n_streams,
            cut: Cut::new(x.n_rows, x.n_cols, n_streams),
        }
    }
}

impl Kernel for HyperWrite {
    fn chunks(&self, _phase: usize) -> usize {
        self.cut.chunks()
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let ((t, columns), n) = (self.cut.at(chunk), self.n_streams);
        let (post, mix) = self.weights.row(t)[n..].split_at(n);
        let first = |stream: usize| stream * self.cut.width + columns.start;
        let mut streams: [&mut [f32]; MAX_STREAMS] = std::array::from_fn(|stream| {
            let columns =
                if stream < n { first(stream)..first(stream) + columns.len() } else { 0..0 };
            self.streams.columns(t, columns)
        });
        for (i, &x) in self.x.row(t)[columns.clone()].iter().enumerate() {
            let mut old = [0.0; MAX_STREAMS];
            old.iter_mut().zip(&streams[..n]).for_each(|(old, stream)| *old = stream[i]);
            for (to, stream) in streams[..n].iter_mut().enumerate() {
                let shares = mix[to..].iter().step_by(n);
                let mixed = old[..n]
                    .iter()
                    .zip(shares)
                    .fold(post[to] * x, |sum, (old, share)| sum + old * share);
                stream[i] = mixed;
            }
        }
    }
}
