//! Dense matrices: round the activations, then blocks of rows against tiles of tokens.

use hal::op;
use hal::{Operand, Tensor};

use super::operand::{Acts, Q8Span, Weight, maybe, rows_per_chunk};
use super::{Context, Kernel, cheap_rows, piece};
use crate::buffer::{Reads, Scratch, Writes};

/// Workspace of the op.
pub(super) struct Spans {
    x: Option<Q8Span>,
}

impl Spans {
    pub(super) fn new<T: Operand>(op: &op::MatMul<T>, scratch: &mut Scratch) -> Spans {
        let (w, x) = (op.w.desc(), op.x.desc());
        Spans { x: Q8Span::new(&[Some(w.format)], x.n_rows, x.n_cols, scratch) }
    }
}

#[derive(Debug)]
pub(super) struct MatMul {
    w: Weight,
    x: Acts,
    n_in: usize,
    bias: Option<Reads<f32>>,
    y: Writes<f32>,
    rows: usize,
}

impl MatMul {
    pub(super) fn new(op: &op::MatMul<Tensor>, context: &Context<'_>) -> MatMul {
        let spans = Spans::new(op, &mut Scratch::default());
        let w = Weight::new(&op.w, context);
        MatMul {
            w,
            x: Acts::new(context.bind.read(&op.x), spans.x.as_ref(), context),
            n_in: op.x.desc().n_cols,
            bias: maybe(op.bias.as_ref(), context),
            y: context.bind.write(&op.y),
            rows: rows_per_chunk(w.rows.n_cols()),
        }
    }

    fn multiply(&self, chunk: usize) {
        let (n_tokens, n_out) = (self.y.n_rows(), self.y.n_cols());
        let rows = piece(chunk, self.rows, n_out);
        for first in (0..n_tokens).step_by(4) {
            let tokens = first..n_tokens.min(first + 4);
            let xs = self.x.four(self.w.activation, tokens.clone(), first);
            let xs = &xs[..tokens.len()];
            let mut ys = tokens.clone().map(|t| self.y.part(t, rows.clone()));
            let mut ys: [&mut [f32]; 4] = std::array::from_fn(|_| ys.next().unwrap_or_default());
            for (i, row) in rows.clone().enumerate() {
                if first == 0 {
                    self.w.ask_after(row);
                }
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias.all()[row]);
                let values = self.w.times(row, xs);
                for (y, value) in ys.iter_mut().zip(values).take(xs.len()) {
                    y[i] = value + bias;
                }
            }
        }
    }
}

impl Kernel for MatMul {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 if self.x.rounds() => self.y.n_rows().div_ceil(cheap_rows(self.n_in)),
            0 => 0,
            _ => self.y.n_cols().div_ceil(self.rows),
        }
    }

    fn run(&self, phase: usize, chunk: usize, _worker: usize) {
        match phase {
            0 => piece(chunk, cheap_rows(self.n_in), self.y.n_rows())
                .for_each(|t| self.x.round(t, t)),
            _ => self.multiply(chunk),
        }
    }
}
