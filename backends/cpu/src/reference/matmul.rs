//! Dense matrix products.

use hal::op::MatMul;
use hal::{Operand, Tensor};

use super::Memory;
use super::operands::{activation_rows, dot, optional_floats, row, write_row};

pub(super) fn matmul(op: &MatMul<Tensor>, memory: &dyn Memory) {
    let bias = optional_floats(memory, op.bias.as_ref());
    let products = products(memory, &op.w, &op.x);
    for (t, mut products) in products.into_iter().enumerate() {
        if let Some(bias) = &bias {
            products.iter_mut().zip(bias).for_each(|(y, &b)| *y += f64::from(b));
        }
        let values: Vec<f32> = products.into_iter().map(|y| y as f32).collect();
        write_row(memory, &op.y, t, &values);
    }
}

/// Dot products of every row of `w` with every row of `x`: `[n_tokens][n_out]`.
pub(super) fn products(memory: &dyn Memory, w: &Tensor, x: &Tensor) -> Vec<Vec<f64>> {
    multiply(memory, w, &activation_rows(memory, x, w.desc().format))
}

/// [`products`] with activations that are already quantised as the format of `w` requires.
pub(super) fn multiply(memory: &dyn Memory, w: &Tensor, x: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let n_out = w.desc().n_rows;
    let mut y = vec![vec![0.0; n_out]; x.len()];
    for i in 0..n_out {
        let weights = row(memory, w, i);
        for (y, x) in y.iter_mut().zip(x) {
            y[i] = dot(&weights, x);
        }
    }
    y
}
