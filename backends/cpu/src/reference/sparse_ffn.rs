//! The feed-forward block that computes only the active neurons.

use hal::op::{Down, Skip, SparseFfn};
use hal::{Operand, Rows, Tensor};

use super::Memory;
use super::activation::{activate, neuron};
use super::matmul::multiply;
use super::operands::{
    activation_rows, activations, dot, floats, optional_floats, row, words, write_row,
};

/// The rows to compute, and the tokens that need them.
struct RowFactors {
    ids: Vec<usize>,
    /// `[ids][n_tokens]`: factor of each row for each token, 0 if the token does not need the row.
    factor: Vec<Vec<f64>>,
}

pub(super) fn sparse_ffn(op: &SparseFfn<Tensor>, memory: &dyn Memory) {
    let listed = list_rows(op, memory);
    let RowValues { h, n_active, hits } = neuron_values(op, memory, &listed);
    let (n_tokens, n_out) = (op.y.desc().n_rows, op.y.desc().n_cols);
    let mut sums = match op.orientation {
        Down::ByNeuron => {
            let mut sums = vec![vec![0.0; n_out]; n_tokens];
            for (&id, h) in listed.ids.iter().zip(&h) {
                let down = row(memory, &op.down, id);
                for (sums, &h) in sums.iter_mut().zip(h).filter(|(_, h)| **h != 0.0) {
                    sums.iter_mut().zip(&down).for_each(|(y, &w)| *y += h * f64::from(w));
                }
            }
            sums
        }
        Down::AcrossNeurons => multiply_across_neurons(op, memory, &h),
    };
    add_bias(op, memory, &mut sums);
    for (t, sums) in sums.into_iter().enumerate() {
        let old = if op.accumulate { row(memory, &op.y, t) } else { vec![0.0; n_out] };
        let total = sums.into_iter().zip(old).map(|(sum, old)| (sum + f64::from(old)) as f32);
        let values: Vec<f32> = total.collect();
        write_row(memory, &op.y, t, &values);
    }
    let counts = floats(memory, &op.active);
    let counts: Vec<f32> = counts.iter().zip(n_active).map(|(a, n)| a + n as f32).collect();
    write_row(memory, &op.active, 0, &counts);
    if let Some(to) = &op.hits {
        let mut counts = floats(memory, to);
        listed.ids.iter().zip(hits).for_each(|(&id, n)| counts[id] += n as f32);
        write_row(memory, to, 0, &counts);
    }
}

struct RowValues {
    /// `factor * h` of every listed row and token; 0 if the row is inactive for the token.
    h: Vec<Vec<f64>>,
    /// Number of active rows for each token.
    n_active: Vec<usize>,
    /// Number of tokens for which each listed row was active.
    hits: Vec<usize>,
}

fn list_rows(op: &SparseFfn<Tensor>, memory: &dyn Memory) -> RowFactors {
    let n_tokens = op.x.desc().n_rows;
    let (ids, mut factor) = match &op.rows {
        Rows::All => {
            let n_rows = op.up.desc().n_rows;
            ((0..n_rows).collect::<Vec<_>>(), vec![vec![1.0; n_tokens]; n_rows])
        }
        Rows::Active(set) => {
            let count = words(memory, &set.count)[0] as usize;
            let ids = words(memory, &set.ids).into_iter().take(count).map(|id| id as usize);
            let (members, n) = (words(memory, &set.members), set.members.desc().n_cols);
            let needs = |i: usize, t: usize| f64::from(members[i * n + t / 32] >> (t % 32) & 1);
            let factor = |i| (0..n_tokens).map(|t| needs(i, t)).collect();
            (ids.collect(), (0..count).map(factor).collect())
        }
    };
    if let (Some(experts), Some(weight)) = (&op.experts, &op.expert_weights) {
        let expert_of: Vec<usize> =
            experts.rows().enumerate().flat_map(|(g, rows)| rows.map(move |_| g)).collect();
        let (weight, n_expert) = (floats(memory, weight), experts.n_expert());
        for (&id, factor) in ids.iter().zip(&mut factor) {
            for (t, factor) in factor.iter_mut().enumerate() {
                *factor *= f64::from(weight[t * n_expert + expert_of[id]]);
            }
        }
    }
    RowFactors { ids, factor }
}

fn neuron_values(op: &SparseFfn<Tensor>, memory: &dyn Memory, listed: &RowFactors) -> RowValues {
    let n_tokens = op.x.desc().n_rows;
    let up = Projection::new(memory, &op.up, op.bias_up.as_ref(), &op.x);
    let gate =
        op.gate.as_ref().map(|gate| Projection::new(memory, gate, op.bias_gate.as_ref(), &op.x));
    let first = gate.as_ref().unwrap_or(&up);
    let tests: Vec<_> = listed.ids.iter().map(|&id| first.row(memory, id)).collect();
    let cuts: Vec<f64> =
        (0..n_tokens).map(|t| gaussian_cut_off(op.skip, listed, &tests, t)).collect();
    let thresholds = optional_floats(memory, op.threshold.as_ref());

    let mut n_active = vec![0; n_tokens];
    let mut hits = vec![0; listed.ids.len()];
    let mut h = vec![vec![0.0; n_tokens]; listed.ids.len()];
    for (i, &id) in listed.ids.iter().enumerate() {
        let ups = up.row(memory, id);
        for t in (0..n_tokens).filter(|&t| listed.factor[i][t] != 0.0) {
            let test = tests[i][t];
            let below = |limit: f32| activate(op.activation, test).abs() < f64::from(limit);
            let dropped = match op.skip {
                Skip::Never => false,
                Skip::NotPositive => test <= 0.0,
                Skip::BelowPerRow => thresholds.as_ref().is_some_and(|limits| below(limits[id])),
                Skip::GaussianCut(_) => test < cuts[t],
            };
            if !dropped {
                n_active[t] += 1;
                hits[i] += 1;
                let value = neuron(op.kind, op.activation, test - cuts[t], ups[t]);
                h[i][t] = listed.factor[i][t] * value;
            }
        }
    }
    RowValues { h, n_active, hits }
}

/// Multiplies `h` by down with one row per output: one matrix for all rows, or one matrix for each
/// expert that has rows.
fn multiply_across_neurons(
    op: &SparseFfn<Tensor>,
    memory: &dyn Memory,
    h: &[Vec<f64>],
) -> Vec<Vec<f64>> {
    let (n_tokens, n_out, n_cols) = (op.y.desc().n_rows, op.y.desc().n_cols, op.down.desc().n_cols);
    let mut sums = vec![vec![0.0; n_out]; n_tokens];
    for (i, h) in h.chunks(n_cols.max(1)).enumerate() {
        let column = |t: usize| h.iter().map(|h| h[t] as f32).collect::<Vec<f32>>();
        let format = op.down.desc().format;
        let h: Vec<_> = (0..n_tokens).map(|t| activations(&column(t), format)).collect();
        let products = multiply(memory, &op.down.rows(i * n_out..(i + 1) * n_out), &h);
        for (sums, products) in sums.iter_mut().zip(products) {
            sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
        }
    }
    sums
}

/// The cut-off that [`Skip::GaussianCut`] subtracts from the test values of token `t`; 0 for any
/// other `skip`.
fn gaussian_cut_off(skip: Skip, listed: &RowFactors, tests: &[Vec<f64>], t: usize) -> f64 {
    let Skip::GaussianCut(factor) = skip else { return 0.0 };
    let computed = listed.factor.iter().zip(tests).filter(|(factor, _)| factor[t] != 0.0);
    let tests: Vec<f64> = computed.map(|(_, tests)| tests[t]).collect();
    let n = tests.len().max(1) as f64;
    let mean = tests.iter().sum::<f64>() / n;
    let variance = tests.iter().map(|test| (test - mean).powi(2)).sum::<f64>() / n;
    mean + f64::from(factor) * variance.sqrt()
}

fn add_bias(op: &SparseFfn<Tensor>, memory: &dyn Memory, sums: &mut [Vec<f64>]) {
    let Some(bias) = &op.bias_down else { return };
    let weight = optional_floats(memory, op.expert_weights.as_ref());
    let n_expert = bias.desc().n_rows;
    for g in 0..n_expert {
        let bias = row(memory, bias, g);
        for (t, sums) in sums.iter_mut().enumerate() {
            let factor = weight.as_ref().map_or(1.0, |weight| f64::from(weight[t * n_expert + g]));
            sums.iter_mut().zip(&bias).for_each(|(y, &b)| *y += factor * f64::from(b));
        }
    }
}

/// Gate or up, with the input quantised as the weight format requires.
struct Projection<'a> {
    weight: &'a Tensor,
    bias: Option<Vec<f32>>,
    x: Vec<Vec<f64>>,
}

impl<'a> Projection<'a> {
    fn new(memory: &dyn Memory, weight: &'a Tensor, bias: Option<&Tensor>, x: &Tensor) -> Self {
        let x = activation_rows(memory, x, weight.desc().format);
        Projection { weight, bias: optional_floats(memory, bias), x }
    }

    /// Row `id` multiplied by every token, plus the bias.
    fn row(&self, memory: &dyn Memory, id: usize) -> Vec<f64> {
        let weights = row(memory, self.weight, id);
        let bias = self.bias.as_ref().map_or(0.0, |bias| f64::from(bias[id]));
        self.x.iter().map(|x| dot(&weights, x) + bias).collect()
    }
}
