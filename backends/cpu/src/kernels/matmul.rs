//! Dense matrix products: quantise the activations, then GEMV by rows for a few tokens, or GEMM by
//! panels of rows.

use hal::op;
use hal::{Operand, Tensor};

use super::operand::{Acts, Q8Span, Weight, optional_view, rows_per_chunk};
use super::panels::{FEW_TOKENS, PanelCut, PanelSpans, Panels};
use super::{Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, Scratch, WriteView};
use simd::RowIds;

pub(super) struct Workspace {
    x: Option<Q8Span>,
    panels: PanelSpans,
}

impl Workspace {
    pub(super) fn new<T: Operand>(
        op: &op::MatMul<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let (w, x) = (op.w.desc(), op.x.desc());
        Self {
            x: Q8Span::new(&[Some(w.format)], x.n_rows, x.n_cols, scratch),
            panels: PanelSpans::new(x.n_rows, 1, n_threads, scratch),
        }
    }
}

#[derive(Debug)]
pub(super) struct MatMul {
    w: Weight,
    x: Acts,
    n_in: usize,
    bias: Option<ReadView<f32>>,
    y: WriteView<f32>,
    rows: usize,
    /// Used only in prefill.
    cut: Option<PanelCut>,
    panels: Panels,
}

impl MatMul {
    pub(super) fn new(op: &op::MatMul<Tensor>, context: &Context<'_>) -> MatMul {
        let spans = Workspace::new(op, context.n_threads, &mut Scratch::default());
        let w = Weight::new(&op.w, context);
        let (n_tokens, n_out) = (op.y.desc().n_rows, op.y.desc().n_cols);
        MatMul {
            w,
            x: Acts::new(context.bind.read(&op.x), spans.x.as_ref(), context),
            n_in: op.x.desc().n_cols,
            bias: optional_view(op.bias.as_ref(), context),
            y: context.bind.write(&op.y),
            rows: rows_per_chunk(w.rows.row_bytes()),
            cut: (n_tokens > FEW_TOKENS).then(|| PanelCut::new(n_tokens, n_out)),
            panels: Panels::new(&spans.panels, context),
        }
    }

    fn multiply_panel(&self, cut: &PanelCut, chunk: usize, worker: usize) {
        let (tokens, rows) = cut.chunk(chunk);
        let x = self.x.rows(self.w.activation, tokens.start, tokens.clone(), self.n_in);
        let sums = self.panels.multiply(&self.w, &rows, &x, tokens.len(), worker, 0);
        for (t, sums) in tokens.zip(sums) {
            let y = self.y.columns(t, rows.clone());
            y.copy_from_slice(&sums[..y.len()]);
            if let Some(bias) = &self.bias {
                y.iter_mut().zip(&bias.as_slice()[rows.clone()]).for_each(|(y, b)| *y += b);
            }
        }
    }

    fn multiply(&self, chunk: usize) {
        let (n_tokens, n_out) = (self.y.n_rows(), self.y.n_cols());
        let rows = nth_range(chunk, self.rows, n_out);
        for first in (0..n_tokens).step_by(4) {
            let tokens = first..n_tokens.min(first + 4);
            let xs = self.x.four_rows(self.w.activation, tokens.clone(), first);
            let xs = &xs[..tokens.len()];
            let mut ys = tokens.clone().map(|t| self.y.columns(t, rows.clone()));
            let mut ys: [&mut [f32]; 4] = std::array::from_fn(|_| ys.next().unwrap_or_default());
            self.w.for_rows(RowIds::From(rows.start), rows.len(), xs, |i, values| {
                let bias = self.bias.as_ref().map_or(0.0, |bias| bias.as_slice()[rows.start + i]);
                for (y, value) in ys.iter_mut().zip(values) {
                    y[i] = value + bias;
                }
            });
        }
    }
}

impl Kernel for MatMul {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 if self.x.quantizes() => self.y.n_rows().div_ceil(cheap_rows(self.n_in)),
            0 => 0,
            _ => match &self.cut {
                Some(cut) => cut.n_chunks(),
                None => self.y.n_cols().div_ceil(self.rows),
            },
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        match phase {
            0 => nth_range(chunk, cheap_rows(self.n_in), self.y.n_rows())
                .for_each(|t| self.x.quantize(t, t)),
            _ => match &self.cut {
                Some(cut) => self.multiply_panel(cut, chunk, worker),
                None => self.multiply(chunk),
            },
        }
    }
}
