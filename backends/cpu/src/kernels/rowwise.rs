//! Ops on rows: embedding, output selection, norms, sums, gates, soft caps, copies of heads.

use hal::op::{self, GateActivation, HeadColumns, NormKind};
use hal::{Tensor, TensorDesc};

use super::operand::{Step, optional_view};
use super::{CHEAP_CHUNK, Context, Kernel, cheap_rows, nth_range};
use crate::buffer::{ReadView, WriteView};
use simd::{GateFn, Kernels};

#[derive(Debug)]
pub(super) struct GetRows {
    table: ReadView<u8>,
    whole: TensorDesc,
    first: usize,
    step: Step,
    y: WriteView<f32>,
    scale: f32,
}

impl GetRows {
    pub(super) fn new(op: &op::GetRows<Tensor>, context: &Context<'_>) -> GetRows {
        GetRows {
            table: context.bind.whole(&op.table),
            whole: op.table.whole(),
            first: op.table.first_row(),
            step: Step::new(&op.batch, context),
            y: context.bind.write(&op.y),
            scale: op.scale,
        }
    }
}

impl Kernel for GetRows {
    fn chunks(&self, _phase: usize) -> usize {
        self.step.n_tokens(self.y.n_rows())
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let id = self.step.view().ids()[chunk] as usize;
        let y = self.y.row(chunk);
        hal::pack::dequantize_row_plain(&self.whole, self.table.as_slice(), self.first + id, y);
        if self.scale != 1.0 {
            y.iter_mut().for_each(|y| *y *= self.scale);
        }
    }
}

#[derive(Debug)]
pub(super) struct Gather {
    x: ReadView<f32>,
    step: Step,
    y: WriteView<f32>,
}

impl Gather {
    pub(super) fn new(op: &op::Gather<Tensor>, context: &Context<'_>) -> Gather {
        Gather {
            x: context.bind.read(&op.x),
            step: Step::new(&op.batch, context),
            y: context.bind.write(&op.y),
        }
    }

    fn n_out(&self) -> usize {
        self.step.view().n_out().min(self.y.n_rows())
    }
}

impl Kernel for Gather {
    fn chunks(&self, _phase: usize) -> usize {
        self.n_out().div_ceil(cheap_rows(self.y.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        for i in nth_range(chunk, cheap_rows(self.y.n_cols()), self.n_out()) {
            let token = self.step.view().outputs()[i] as usize;
            self.y.row(i).copy_from_slice(self.x.row(token));
        }
    }
}

#[derive(Debug)]
pub(super) struct Norm {
    x: ReadView<f32>,
    weight: Option<ReadView<f32>>,
    bias: Option<ReadView<f32>>,
    y: WriteView<f32>,
    kind: NormKind,
    eps: f32,
    width: usize,
    simd: Kernels,
}

impl Norm {
    pub(super) fn new(op: &op::Norm<Tensor>, context: &Context<'_>) -> Norm {
        Norm {
            x: context.bind.read(&op.x),
            weight: optional_view(op.weight.as_ref(), context),
            bias: optional_view(op.bias.as_ref(), context),
            y: context.bind.write(&op.y),
            kind: op.kind,
            eps: op.eps,
            width: op.width,
            simd: context.simd,
        }
    }

    fn norm(&self, x: &[f32], y: &mut [f32]) {
        y.copy_from_slice(x);
        let n = x.len() as f32;
        if self.kind == NormKind::Layer {
            let mean = y.iter().sum::<f32>() / n;
            y.iter_mut().for_each(|y| *y -= mean);
        }
        let squares = self.simd.sum_squares(y);
        let factor = match self.kind {
            NormKind::Rms | NormKind::Layer => 1.0 / (squares / n + self.eps).sqrt(),
            NormKind::L2 => 1.0 / squares.sqrt().max(self.eps),
        };
        match &self.weight {
            Some(weight) => {
                y.iter_mut().zip(weight.as_slice()).for_each(|(y, w)| *y = *y * factor * w);
            }
            None => y.iter_mut().for_each(|y| *y *= factor),
        }
        if let Some(bias) = &self.bias {
            y.iter_mut().zip(bias.as_slice()).for_each(|(y, b)| *y += b);
        }
    }
}

impl Kernel for Norm {
    fn chunks(&self, _phase: usize) -> usize {
        self.x.n_rows().div_ceil(cheap_rows(self.x.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        for t in nth_range(chunk, cheap_rows(self.x.n_cols()), self.x.n_rows()) {
            let runs = self.x.row(t).chunks_exact(self.width);
            for (x, y) in runs.zip(self.y.row(t).chunks_exact_mut(self.width)) {
                self.norm(x, y);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Add {
    a: ReadView<f32>,
    x: WriteView<f32>,
}

impl Add {
    pub(super) fn new(op: &op::Add<Tensor>, context: &Context<'_>) -> Add {
        Add { a: context.bind.read(&op.a), x: context.bind.write(&op.x) }
    }
}

impl Kernel for Add {
    fn chunks(&self, _phase: usize) -> usize {
        self.x.n_rows().div_ceil(cheap_rows(self.x.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        for t in nth_range(chunk, cheap_rows(self.x.n_cols()), self.x.n_rows()) {
            self.x.row(t).iter_mut().zip(self.a.row(t)).for_each(|(x, a)| *x += a);
        }
    }
}

#[derive(Debug)]
pub(super) struct Mul {
    g: ReadView<f32>,
    x: WriteView<f32>,
    activation: GateActivation,
    activate: GateFn,
}

/// Gate values per call of the activation function.
const GATES: usize = 256;

impl Mul {
    pub(super) fn new(op: &op::Mul<Tensor>, context: &Context<'_>) -> Mul {
        Mul {
            g: context.bind.read(&op.g),
            x: context.bind.write(&op.x),
            activation: op.activation,
            activate: context.simd.gate(),
        }
    }

    /// Multiplies each run of `x` by its activated gate.
    fn scale(&self, gates: &[f32], x: &mut [f32]) {
        let mut factors = [0.0; GATES];
        let factors = &mut factors[..gates.len()];
        factors.copy_from_slice(gates);
        (self.activate)(self.activation, factors);
        if x.len() == factors.len() {
            return x.iter_mut().zip(factors).for_each(|(x, factor)| *x *= *factor);
        }
        for (run, factor) in x.chunks_exact_mut(x.len() / factors.len()).zip(factors) {
            run.iter_mut().for_each(|x| *x *= *factor);
        }
    }
}

impl Kernel for Mul {
    fn chunks(&self, _phase: usize) -> usize {
        self.x.n_rows().div_ceil(cheap_rows(self.x.n_cols()))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let per_gate = self.x.n_cols() / self.g.n_cols();
        for t in nth_range(chunk, cheap_rows(self.x.n_cols()), self.x.n_rows()) {
            let gates = self.g.row(t.min(self.g.n_rows() - 1)).chunks(GATES);
            for (gates, x) in gates.zip(self.x.row(t).chunks_mut(GATES * per_gate)) {
                self.scale(gates, x);
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct SoftCap {
    x: WriteView<f32>,
    cap: f32,
    hard: bool,
}

impl SoftCap {
    pub(super) fn new(op: &op::SoftCap<Tensor>, context: &Context<'_>) -> SoftCap {
        SoftCap { x: context.bind.write(&op.x), cap: op.cap, hard: op.hard }
    }

    /// Chunks per row. The rows are logits: few of them, each as long as the vocabulary.
    fn chunks_per_row(&self) -> usize {
        self.x.n_cols().div_ceil(CHEAP_CHUNK)
    }
}

impl Kernel for SoftCap {
    fn chunks(&self, _phase: usize) -> usize {
        self.x.n_rows() * self.chunks_per_row()
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        let (t, part) = (chunk / self.chunks_per_row(), chunk % self.chunks_per_row());
        let values = self.x.columns(t, nth_range(part, CHEAP_CHUNK, self.x.n_cols()));
        if self.hard {
            return values.iter_mut().for_each(|x| *x = x.clamp(-self.cap, self.cap));
        }
        for x in values {
            *x = self.cap * (*x / self.cap).tanh();
        }
    }
}

#[derive(Debug)]
pub(super) struct CopyHeads {
    x: ReadView<f32>,
    y: WriteView<f32>,
    n_head: usize,
    width: usize,
    from: HeadColumns,
    to: HeadColumns,
}

impl CopyHeads {
    pub(super) fn new(op: &op::CopyHeads<Tensor>, context: &Context<'_>) -> CopyHeads {
        CopyHeads {
            x: context.bind.read(&op.x),
            y: context.bind.write(&op.y),
            n_head: op.n_head,
            width: op.width,
            from: op.from,
            to: op.to,
        }
    }
}

impl Kernel for CopyHeads {
    fn chunks(&self, _phase: usize) -> usize {
        self.x.n_rows().div_ceil(cheap_rows(self.n_head * self.width))
    }

    fn run(&self, _phase: usize, chunk: usize, _worker: usize) {
        for t in nth_range(chunk, cheap_rows(self.n_head * self.width), self.x.n_rows()) {
            let (x, y) = (self.x.row(t), self.y.row(t));
            for h in 0..self.n_head {
                let [from, to] = [self.from, self.to].map(|at| at.first + h * at.step);
                y[to..to + self.width].copy_from_slice(&x[from..from + self.width]);
            }
        }
    }
}
