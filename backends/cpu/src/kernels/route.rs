//! Mixture-of-experts routing: the router's products, then top-k per token.

use hal::op::{self, MIN_WEIGHT_SUM, Scoring};
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
    /// `[n_tokens, n_expert]`: what experts are selected by, if it is not their product.
    keys: Option<Span<f32>>,
    /// `[n_tokens, 2 * n_group]`: the two largest keys of each group.
    best: Option<Span<f32>>,
}

impl Workspace {
    pub(super) fn new<T: Operand>(op: &op::Route<T>, scratch: &mut Scratch) -> Self {
        let (w, x) = (op.w.desc(), op.x.desc());
        Self {
            x: Q8Span::new(&[Some(w.format)], x.n_rows, x.n_cols, scratch),
            products: scratch.take(x.n_rows, w.n_rows),
            chosen: scratch.take(x.n_rows, op.n_used),
            keys: (op.selection.is_some() || op.groups.is_some())
                .then(|| scratch.take(x.n_rows, w.n_rows)),
            best: op.groups.as_ref().map(|_| scratch.take(x.n_rows, 2 * op.n_groups[0])),
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
    keys: Option<WriteView<f32>>,
    best: Option<WriteView<f32>>,
    selection: Option<ReadView<f32>>,
    groups: Option<ReadView<f32>>,
    /// The experts of each token, if the router does not select them.
    given: Option<ReadView<f32>>,
    n_group_used: usize,
    n_per_chunk: usize,
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
            rows: rows_per_chunk(w.rows.row_bytes()),
            w,
            bias: optional_view(op.bias.as_ref(), context),
            x: Acts::new(bind.read(&op.x), spans.x.as_ref(), context),
            products: bind.scratch(&spans.products),
            chosen: bind.scratch(&spans.chosen),
            keys: spans.keys.as_ref().map(|keys| bind.scratch(keys)),
            best: spans.best.as_ref().map(|best| bind.scratch(best)),
            selection: optional_view(op.selection.as_ref(), context),
            groups: optional_view(op.groups.as_ref(), context),
            given: optional_view(op.chosen.as_ref(), context),
            n_group_used: op.n_groups[1],
            n_per_chunk: op.n_per_chunk,
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

    /// The score of expert `g` unless only the selected experts are scored: then its product.
    fn score(&self, product: f32, best: f64, total: f64) -> f64 {
        let product = f64::from(product);
        match self.scoring {
            Scoring::Softmax => (product - best).exp() / total,
            Scoring::SoftmaxChosen => product,
            Scoring::Sigmoid => 1.0 / (1.0 + (-product).exp()),
            Scoring::SqrtSoftplus => (product.max(0.0) + (-product.abs()).exp().ln_1p()).sqrt(),
        }
    }

    /// What the experts of token `t` are selected by.
    fn keys(&self, t: usize, best: f64, total: f64) -> &[f32] {
        let products = self.products.read_row(t);
        let Some(keys) = &self.keys else { return products };
        let row = keys.row(t);
        for (g, key) in row.iter_mut().enumerate() {
            let bias = self.selection.map_or(0.0, |bias| f64::from(bias.as_slice()[g]));
            *key = (self.score(products[g], best, total) + bias) as f32;
        }
        if let (Some(groups), Some(best)) = (&self.groups, &self.best) {
            mask_groups(row, groups.as_slice(), best.row(t), self.n_group_used);
        }
        keys.read_row(t)
    }

    /// Writes the experts of token `t`.
    fn select(&self, t: usize, best: f64, total: f64, chosen: &mut [u32]) {
        if let Some(given) = &self.given {
            let last = self.products.n_cols() - 1;
            let experts = given.row(t).iter().map(|&expert| (expert as u32).min(last as u32));
            return chosen.iter_mut().zip(experts).for_each(|(out, expert)| *out = expert);
        }
        let keys = self.keys(t, best, total);
        let mut n = 0;
        for g in 0..keys.len() {
            // Only a larger key is inserted before earlier entries, so the lower id wins a tie.
            let behind = |&other: &u32| keys[g].total_cmp(&keys[other as usize]).is_gt();
            let at = chosen[..n].iter().rposition(|other| !behind(other)).map_or(0, |i| i + 1);
            if at == chosen.len() {
                continue;
            }
            n = (n + 1).min(chosen.len());
            chosen.copy_within(at..n - 1, at + 1);
            chosen[at] = g as u32;
        }
    }

    fn choose_experts(&self, t: usize) {
        let (products, weights) = (self.products.read_row(t), self.weights.row(t));
        let best = products.iter().copied().max_by(f32::total_cmp).map_or(0.0, f64::from);
        let exp = |g: usize| (f64::from(products[g]) - best).exp();
        let total: f64 = match self.scoring {
            Scoring::Softmax => (0..products.len()).map(exp).sum(),
            Scoring::SoftmaxChosen | Scoring::Sigmoid | Scoring::SqrtSoftplus => 1.0,
        };
        let chosen = self.chosen.row(t);
        self.select(t, best, total, chosen);
        let chosen = &*chosen;
        let of_chosen: f64 = match self.scoring {
            Scoring::SoftmaxChosen => chosen.iter().map(|&g| exp(g as usize)).sum(),
            Scoring::Softmax | Scoring::Sigmoid | Scoring::SqrtSoftplus => 1.0,
        };
        let score = |g: usize| match self.scoring {
            Scoring::SoftmaxChosen => exp(g) / of_chosen,
            Scoring::Softmax | Scoring::Sigmoid | Scoring::SqrtSoftplus => {
                self.score(products[g], best, total)
            }
        };
        let chunks = chosen.iter().map(|&g| g as usize / self.n_per_chunk);
        let sum = if self.renormalise {
            let sum: f64 = chunks.clone().map(score).sum();
            sum.max(f64::from(MIN_WEIGHT_SUM))
        } else {
            1.0
        };
        weights.fill(0.0);
        for chunk in chunks {
            weights[chunk] += (score(chunk) / sum * f64::from(self.scale)) as f32;
        }
    }
}

/// Sets the keys of experts outside the best `n_used` groups below all others. `best` has room for
/// the two largest keys of each group.
fn mask_groups(keys: &mut [f32], groups: &[f32], best: &mut [f32], n_used: usize) {
    best.fill(f32::NEG_INFINITY);
    for (&key, &group) in keys.iter().zip(groups) {
        let Some([first, second]) = best.as_chunks_mut::<2>().0.get_mut(group as usize) else {
            continue;
        };
        if key > *first {
            (*second, *first) = (*first, key);
        } else if key > *second {
            *second = key;
        }
    }
    let quality = |group: usize| match [best[2 * group], best[2 * group + 1]] {
        // A group of one expert is as good as that expert.
        [first, f32::NEG_INFINITY] => first,
        [first, second] => first + second,
    };
    let n_group = best.len() / 2;
    let rank = |group: usize| {
        let before = |other: &usize| {
            let order = quality(*other).total_cmp(&quality(group));
            order.is_gt() || (order.is_eq() && *other < group)
        };
        (0..n_group).filter(before).count()
    };
    for (key, &group) in keys.iter_mut().zip(groups) {
        if rank(group as usize) >= n_used {
            *key = f32::NEG_INFINITY;
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
