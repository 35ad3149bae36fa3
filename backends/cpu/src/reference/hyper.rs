//! Hyper-connections: weights of residual streams, and reading and writing the streams.

use hal::op::{HyperRead, HyperWeights, HyperWrite};
use hal::{Operand, Tensor};

use super::Memory;
use super::operands::{floats, row, write_row};

pub(super) fn hyper_weights(op: &HyperWeights<Tensor>, memory: &dyn Memory) {
    let (scale, base) = (floats(memory, &op.scale), floats(memory, &op.base));
    let (n, eps) = (op.n_streams, f64::from(op.eps));
    let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
    for t in 0..op.weights.desc().n_rows {
        let products = row(memory, &op.weights, t);
        let z = |i: usize| {
            let factor = scale[(i / n).min(2)];
            f64::from(factor) * f64::from(products[i]) + f64::from(base[i])
        };
        let mut weights: Vec<f64> = (0..n).map(|i| sigmoid(z(i)) + eps).collect();
        if op.mixes() {
            weights.extend((n..2 * n).map(|i| 2.0 * sigmoid(z(i))));
            let mix: Vec<f64> = (2 * n..products.len()).map(z).collect();
            weights.extend(sinkhorn(mix, n, eps, op.n_iterations));
        }
        let weights: Vec<f32> = weights.into_iter().map(|w| w as f32).collect();
        write_row(memory, &op.weights, t, &weights);
    }
}

fn sinkhorn(mut mix: Vec<f64>, n: usize, eps: f64, n_iterations: usize) -> Vec<f64> {
    for row in mix.chunks_exact_mut(n) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|z| *z = (*z - max).exp());
        let sum: f64 = row.iter().sum();
        row.iter_mut().for_each(|z| *z = *z / sum + eps);
    }
    for iteration in 0..n_iterations {
        if iteration > 0 {
            for row in mix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f64>() + eps;
                row.iter_mut().for_each(|z| *z /= sum);
            }
        }
        for to in 0..n {
            let sum = (0..n).map(|from| mix[from * n + to]).sum::<f64>() + eps;
            (0..n).for_each(|from| mix[from * n + to] /= sum);
        }
    }
    mix
}

pub(super) fn hyper_read(op: &HyperRead<Tensor>, memory: &dyn Memory) {
    let (y, n_rows) = (op.y.desc(), op.weights.desc().n_rows);
    for t in 0..y.n_rows {
        let (streams, weights) =
            (row(memory, &op.streams, t), row(memory, &op.weights, t.min(n_rows - 1)));
        let share =
            |i: usize, s: usize| f64::from(weights[s]) * f64::from(streams[s * y.n_cols + i]);
        let sum = |i: usize| (0..op.n_streams).map(|s| share(i, s)).sum::<f64>() as f32;
        let values: Vec<f32> = (0..y.n_cols).map(sum).collect();
        write_row(memory, &op.y, t, &values);
    }
}

pub(super) fn hyper_write(op: &HyperWrite<Tensor>, memory: &dyn Memory) {
    let (x, n) = (op.x.desc(), op.n_streams);
    for t in 0..x.n_rows {
        let [block, weights, streams] =
            [&op.x, &op.weights, &op.streams].map(|operand| row(memory, operand, t));
        let (post, mix) = (&weights[n..2 * n], &weights[2 * n..]);
        let mut new = Vec::with_capacity(streams.len());
        for to in 0..n {
            for i in 0..x.n_cols {
                let old = |from: usize| {
                    f64::from(mix[from * n + to]) * f64::from(streams[from * x.n_cols + i])
                };
                let mixed: f64 = (0..n).map(old).sum();
                new.push((f64::from(post[to]) * f64::from(block[i]) + mixed) as f32);
            }
        }
        write_row(memory, &op.streams, t, &new);
    }
}
