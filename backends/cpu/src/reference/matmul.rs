//! Dense matrix products.

use hal::op::{HeadMatMul, MatMul};
use hal::{Operand, Tensor};

use super::Memory;
use super::operands::{activation_rows, activations, dot, optional_floats, row, write_row};

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

pub(super) fn head_matmul(op: &HeadMatMul<Tensor>, memory: &dyn Memory) {
    let (n_in, n_out) = (op.w.desc().n_cols, op.n_out());
    let weights: Vec<Vec<f32>> =
        (0..op.w.desc().n_rows).map(|row_of| row(memory, &op.w, row_of)).collect();
    for t in 0..op.x.desc().n_rows {
        let (x, mut y) = (row(memory, &op.x, t), row(memory, &op.y, t));
        for (head, weights) in weights.chunks_exact(n_out).enumerate() {
            let x = activations(&x[head * op.x_step()..][..n_in], op.w.desc().format);
            let y = &mut y[head * op.y_step()..];
            y.iter_mut().zip(weights).for_each(|(y, weights)| *y = dot(weights, &x) as f32);
        }
        write_row(memory, &op.y, t, &y);
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
