//! Mixture-of-experts routing: the router's products, then top-k per token.

use hal::op::{self, Scoring};
use hal::{Operand, Tensor};

use super::operand::{Acts, Q8Span, Weight, optional_view, rows_per_chunk};
use super::{Context, Kernel, nth_range};
use crate::buffer::{ReadView, Scratch, Span, WriteView};
use simd::RowIds;

pub(super) struct Workspace {
    x: Option<Q8Span>,
    /// `[n_tokens, n_expert]`
    products: Span<f32>,
    /// `[n_tokens, n_used]`
    chosen: Span<u32>,
}

impl Workspace {
    pub(super) fn new<T: Operand>(op: &op::Route<T>, scratch: &mut Scratch) -> Self {
        let (w, x) = (op.w.desc(), op.x.desc());
        Self {
            x: Q8Span::new(&[Some(w.format)], x.n_rows, x.n_cols, scratch),
            products: scratch.take(x.n_rows, w.n_rows),
            chosen: scratch.take(x.n_rows, op.n_used),
        }
    }
}

#[derive(Debug)]
pub(super) struct Route {
    w: Weight,
    bias: Option<ReadView<f32>>,
    x: Acts,
    rows: usize,
    products: WriteView<f32>,
    chosen: WriteView<u32>,
    weights: WriteView<f32>,
    scoring: Scoring,
    renormalise: bool,
    scale: f32,
}

impl Route {
    pub(super) fn new(op: &op::Route<Tensor>, context: &Context<'_>) -> Route {
        let (spans, bind) = (Workspace::new(op, &mut Scratch::default()), &context.bind);
        let w = Weight::new(&op.w, context);
        Route {
            rows: rows_per_chunk(w.rows.n_cols()),
            w,
            bias: optional_view(op.bias.as_ref(), context),
            x: Acts::new(bind.read(&op.x), spans.x.as_ref(), context),
            products: bind.scratch(&spans.products),
            chosen: bind.scratch(&spans.chosen),
            weights: bind.write(&op.weights),
            scoring: op.scoring,
            renormalise: op.renormalise,
            scale: op.scale,
        }
    }

    fn multiply(&self, chunk: usize) {
        let rows = nth_range(chunk, self.rows, self.products.n_cols());
        let n_tokens = self.products.n_rows();
        for first in (0..n_tokens).step_by(4) {
            let tokens = first..n_tokens.min(first + 4);
            let xs = self.x.four_rows(self.w.activation, tokens.clone(), first);
            let ids = RowIds::From(rows.start);
            self.w.for_rows(ids, rows.len(), &xs[..tokens.len()], |i, values| {
                let row = rows.start + i;
                let bias = self.bias.map_or(0.0, |bias| bias.as_slice()[row]);
                for (t, value) in tokens.clone().zip(values) {
                    self.products.columns(t, row..row + 1)[0] = value + bias;
                }
            });
        }
    }

    fn choose_experts(&self, t: usize) {
        let (products, weights) = (self.products.read_row(t), self.weights.row(t));
        let chosen = self.chosen.row(t);
        let mut n = 0;
        for g in 0..products.len() {
            // Only a larger product is inserted before earlier entries, so the lower id wins a tie.
            let behind = |&other: &u32| products[g].total_cmp(&products[other as usize]).is_gt();
            let at = chosen[..n].iter().rposition(|other| !behind(other)).map_or(0, |i| i + 1);
            if at == chosen.len() {
                continue;
            }
            n = (n + 1).min(chosen.len());
            chosen.copy_within(at..n - 1, at + 1);
            chosen[at] = g as u32;
        }
        let best = f64::from(products[chosen[0] as usize]);
        let exp = |g: usize| (f64::from(products[g]) - best).exp();
        let total = match self.scoring {
            Scoring::Softmax => (0..products.len()).map(exp).sum(),
            Scoring::SoftmaxChosen => chosen.iter().map(|&g| exp(g as usize)).sum(),
            Scoring::Sigmoid => 1.0,
        };
        let score = |g: usize| match self.scoring {
            Scoring::Softmax | Scoring::SoftmaxChosen => exp(g) / total,
            Scoring::Sigmoid => 1.0 / (1.0 + (-f64::from(products[g])).exp()),
        };
        let sum: f64 =
            if self.renormalise { chosen.iter().map(|&g| score(g as usize)).sum() } else { 1.0 };
        weights.fill(0.0);
        for &g in chosen.iter() {
            weights[g as usize] = (score(g as usize) / sum * f64::from(self.scale)) as f32;
        }
    }
}

impl Kernel for Route {
    fn n_phases(&self) -> usize {
        3
    }

    fn chunks(&self, phase: usize) -> usize {
        match phase {
            0 if !self.x.quantizes() => 0,
            1 => self.products.n_cols().div_ceil(self.rows),
            _ => self.products.n_rows(),
        }
    }

    fn run(&self, phase: usize, chunk: usize, _worker: usize) {
        match phase {
            0 => self.x.quantize(chunk, chunk),
            1 => self.multiply(chunk),
            _ => self.choose_experts(chunk),
        }
    }
}
