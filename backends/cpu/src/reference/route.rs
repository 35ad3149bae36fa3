//! Mixture-of-experts routing.

use hal::Tensor;
use hal::op::{Route, Scoring};

use super::Memory;
use super::activation::sigmoid;
use super::matmul::products;
use super::operands::{optional_floats, write_row};

pub(super) fn route(op: &Route<Tensor>, memory: &dyn Memory) {
    let bias = optional_floats(memory, op.bias.as_ref());
    for (t, mut products) in products(memory, &op.w, &op.x).into_iter().enumerate() {
        if let Some(bias) = &bias {
            products.iter_mut().zip(bias).for_each(|(p, &b)| *p += f64::from(b));
        }
        let mut order: Vec<usize> = (0..products.len()).collect();
        // The sort is stable, so the lower id wins a tie.
        order.sort_by(|&a, &b| products[b].total_cmp(&products[a]));
        let chosen = &order[..op.n_used];
        let best = products[order[0]];
        let sum_exp = |ids: &[usize]| ids.iter().map(|&g| (products[g] - best).exp()).sum::<f64>();
        let score = |g: usize| match op.scoring {
            Scoring::Softmax => sum_exp(&[g]) / sum_exp(&order),
            Scoring::SoftmaxChosen => sum_exp(&[g]) / sum_exp(chosen),
            Scoring::Sigmoid => sigmoid(products[g]),
        };
        let sum = if op.renormalise { chosen.iter().map(|&g| score(g)).sum() } else { 1.0 };
        let mut weights = vec![0.0; products.len()];
        for &g in chosen {
            weights[g] = (score(g) / sum * f64::from(op.scale)) as f32;
        }
        write_row(memory, &op.weights, t, &weights);
    }
}
