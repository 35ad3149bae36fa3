//! Products per head: the activations of all heads are quantised or copied, ordered by head; then
//! each head is a dense product as in `matmul`.

use hal::format::Activation;
use hal::op;
use hal::{Operand, Tensor};

use super::operand::{Acts, Q8Span, Weight, rows_per_chunk};
use super::panels::{FEW_TOKENS, PanelCut, PanelSpans, Panels};
use super::{Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::{ActView, RowIds, TokenRows};

pub(super) struct Workspace {
    /// The input in Q8 blocks, a row per head and token.
    q8: Option<Q8Span>,
    /// The input as F32, likewise; empty if the weights take Q8 blocks.
    floats: Span<f32>,
    panels: PanelSpans,
}

impl Workspace {
    pub(super) fn new<T: Operand>(
        op: &op::HeadMatMul<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let (w, n_tokens) = (op.w.desc(), op.x.desc().n_rows);
        let n_slots = n_tokens * op.n_head;
        let q8 = Q8Span::new(&[Some(w.format)], n_slots, w.n_cols, scratch);
        Self {
            floats: scratch.take(if q8.is_some() { 0 } else { n_slots }, w.n_cols),
            q8,
            panels: PanelSpans::new(n_tokens, 1, n_threads, scratch),
        }
    }
}

#[derive(Debug)]
pub(super) struct HeadMatMul {
    w: Weight,
    x: ReadView<f32>,
    q8: Acts,
    floats: WriteView<f32>,
    y: WriteView<f32>,
    n_head: usize,
    n_in: usize,
    n_out: usize,
    x_step: usize,
    y_step: usize,
    /// Rows per chunk in decode.
    rows: usize,
    /// The cut of each head; used only in prefill.
    cut: Option<PanelCut>,
    panels: Panels,
}

impl HeadMatMul {
    pub(super) fn new(op: &op::HeadMatMul<Tensor>, context: &Context<'_>) -> HeadMatMul {
        let spans = Workspace::new(op, context.n_threads, &mut Scratch::default());
        let (w, x) = (Weight::new(&op.w, context), context.bind.read(&op.x));
        let (n_tokens, n_out) = (op.x.desc().n_rows, op.n_out());
        HeadMatMul {
            w,
            x,
            q8: Acts::new(x, spans.q8.as_ref(), context),
            floats: context.bind.scratch(&spans.floats),
            y: context.bind.write(&op.y),
            n_head: op.n_head,
            n_in: op.w.desc().n_cols,
            n_out,
            x_step: op.x_step(),
            y_step: op.y_step(),
            rows: rows_per_chunk(w.rows.row_bytes()),
            cut: (n_tokens > FEW_TOKENS).then(|| PanelCut::of_matrices(n_tokens, n_out, op.n_head)),
            panels: Panels::new(&spans.panels, context),
        }
    }

    fn n_tokens(&self) -> usize {
        self.y.n_rows()
    }

    /// Where the input of a head begins in the workspace, as a row.
    fn slots(&self, head: usize) -> usize {
        head * self.n_tokens()
    }

    /// Quantises or copies the input of all heads of token `t`.
    fn prepare(&self, t: usize) {
        let x = self.x.row(t);
        for head in 0..self.n_head {
            let (values, slot) = (&x[head * self.x_step..][..self.n_in], self.slots(head) + t);
            match self.w.activation {
                Activation::Q8 => self.q8.quantize_blocks(values, slot, 0),
                Activation::F32 => self.floats.row(slot).copy_from_slice(values),
            }
        }
    }

    /// The input of a head for token `t`.
    fn input(&self, head: usize, t: usize) -> ActView<'_> {
        let slot = self.slots(head) + t;
        match self.w.activation {
            Activation::Q8 => self.q8.view(Activation::Q8, 0, slot),
            Activation::F32 => ActView::F32(self.floats.read_row(slot)),
        }
    }

    fn multiply_panel(&self, cut: &PanelCut, chunk: usize, worker: usize) {
        let (head, chunk) = (chunk / cut.n_chunks(), chunk % cut.n_chunks());
        let (tokens, rows) = cut.chunk(chunk);
        let slots = self.slots(head) + tokens.start..self.slots(head) + tokens.end;
        let x = match self.w.activation {
            Activation::Q8 => self.q8.rows(Activation::Q8, 0, slots, self.n_in),
            Activation::F32 => TokenRows {
                acts: ActView::F32(self.floats.read_rows(slots)),
                n_cols: self.n_in,
                ids: RowIds::From(0),
            },
        };
        let of_head = head * self.n_out + rows.start..head * self.n_out + rows.end;
        let sums = self.panels.multiply(&self.w, &of_head, &x, tokens.len(), worker, 0);
        let to = head * self.y_step + rows.start..head * self.y_step + rows.end;
        for (t, sums) in tokens.zip(sums) {
            let y = self.y.columns(t, to.clone());
            y.copy_from_slice(&sums[..y.len()]);
        }
    }

    fn multiply(&self, chunk: usize) {
        let n_chunks = self.n_out.div_ceil(self.rows);
        let (head, chunk) = (chunk / n_chunks, chunk % n_chunks);
        let rows = nth_range(chunk, self.rows, self.n_out);
        let to = head * self.y_step + rows.start..head * self.y_step + rows.end;
        for first in (0..self.n_tokens()).step_by(4) {
            let tokens = first..self.n_tokens().min(first + 4);
            let last = tokens.len() - 1;
            let xs: [_; 4] = std::array::from_fn(|i| self.input(head, first + i.min(last)));
            let xs = &xs[..tokens.len()];
            let mut ys = tokens.map(|t| self.y.columns(t, to.clone()));
            let mut ys: [&mut [f32]; 4] = std::array::from_fn(|_| ys.next().unwrap_or_default());
            let ids = RowIds::From(head * self.n_out + rows.start);
            self.w.for_rows(ids, rows.len(), xs, |i, values| {
                ys.iter_mut().zip(values).for_each(|(y, value)| y[i] = *value);
            });
        }
    }
}

impl Kernel for HeadMatMul {
    fn n_phases(&self) -> usize {
        2
    }

    fn chunks(&self, phase: usize) -> usize {
        match (phase, &self.cut) {
            (0, _) => self.n_tokens().div_ceil(cheap_rows(self.n_head * self.n_in)),
            (_, Some(cut)) => self.n_head * cut.n_chunks(),
            (_, None) => self.n_head * self.n_out.div_ceil(self.rows),
        }
    }

    fn run(&self, phase: usize, chunk: usize, worker: usize) {
        match (phase, &self.cut) {
            (0, _) => nth_range(chunk, cheap_rows(self.n_head * self.n_in), self.n_tokens())
                .for_each(|t| self.prepare(t)),
            (_, Some(cut)) => self.multiply_panel(cut, chunk, worker),
            (_, None) => self.multiply(chunk),
        }
    }
}
