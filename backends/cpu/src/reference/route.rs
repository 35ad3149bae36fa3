//! Mixture-of-experts routing.

use hal::Tensor;
use hal::op::{MIN_WEIGHT_SUM, Route, Scoring};

use super::Memory;
use super::activation::{sigmoid, softplus};
use super::matmul::products;
use super::operands::{optional_floats, row, write_row};

pub(super) fn route(op: &Route<Tensor>, memory: &dyn Memory) {
    let bias = optional_floats(memory, op.bias.as_ref());
    let selection = optional_floats(memory, op.selection.as_ref());
    let groups = optional_floats(memory, op.groups.as_ref());
    for (t, mut products) in products(memory, &op.w, &op.x).into_iter().enumerate() {
        if let Some(bias) = &bias {
            products.iter_mut().zip(bias).for_each(|(p, &b)| *p += f64::from(b));
        }
        let best = products.iter().copied().max_by(f64::total_cmp).unwrap_or(0.0);
        let exp = |g: usize| (products[g] - best).exp();
        let total: f64 = (0..products.len()).map(exp).sum();
        let mut keys = products.clone();
        if selection.is_some() || groups.is_some() {
            for (g, key) in keys.iter_mut().enumerate() {
                *key = match op.scoring {
                    Scoring::Softmax => exp(g) / total,
                    Scoring::SoftmaxChosen => products[g],
                    Scoring::Sigmoid => sigmoid(products[g]),
                    Scoring::SqrtSoftplus => softplus(products[g]).sqrt(),
                } + selection.as_ref().map_or(0.0, |selection| f64::from(selection[g]));
            }
        }
        if let Some(groups) = &groups {
            mask_groups(&mut keys, groups, op.n_groups);
        }
        let mut order: Vec<usize> = (0..products.len()).collect();
        // The sort is stable, so the lower id wins a tie.
        order.sort_by(|&a, &b| keys[b].total_cmp(&keys[a]));
        if let Some(chosen) = &op.chosen {
            order = row(memory, chosen, t).into_iter().map(|expert| expert as usize).collect();
        }
        let chosen = &order[..op.n_used];
        let score = |g: usize| match op.scoring {
            Scoring::Softmax => exp(g) / total,
            Scoring::SoftmaxChosen => exp(g) / chosen.iter().map(|&g| exp(g)).sum::<f64>(),
            Scoring::Sigmoid => sigmoid(products[g]),
            Scoring::SqrtSoftplus => softplus(products[g]).sqrt(),
        };
        let chunks = chosen.iter().map(|&g| g / op.n_per_chunk);
        let sum = chunks.clone().map(score).sum::<f64>().max(f64::from(MIN_WEIGHT_SUM));
        let sum = if op.renormalise { sum } else { 1.0 };
        let mut weights = vec![0.0; products.len() / op.n_per_chunk];
        for chunk in chunks {
            weights[chunk] += (score(chunk) / sum * f64::from(op.scale)) as f32;
        }
        write_row(memory, &op.weights, t, &weights);
    }
}

/// Sets the keys of experts outside the best groups below all others.
fn mask_groups(keys: &mut [f64], groups: &[f32], [n_group, n_group_used]: [usize; 2]) {
    let quality = |group: usize| {
        let mut own: Vec<f64> =
            (0..keys.len()).filter(|&g| groups[g] as usize == group).map(|g| keys[g]).collect();
        own.sort_by(|a, b| b.total_cmp(a));
        own.iter().take(2).sum::<f64>()
    };
    let qualities: Vec<f64> = (0..n_group).map(quality).collect();
    let mut order: Vec<usize> = (0..n_group).collect();
    order.sort_by(|&a, &b| qualities[b].total_cmp(&qualities[a]));
    for (key, &group) in keys.iter_mut().zip(groups) {
        if !order[..n_group_used].contains(&(group as usize)) {
            *key = f64::NEG_INFINITY;
        }
    }
}
