//! Keys of blocks of positions.

use hal::op::PoolKeys;
use hal::{Operand, Tensor};

use super::Memory;
use super::operands::{Step, optional_floats, row, write_row};

pub(super) fn pool_keys(op: &PoolKeys<Tensor>, memory: &dyn Memory) {
    let step = Step::new(memory, &op.batch);
    let ape = optional_floats(memory, op.ape.as_ref());
    let d = op.y.desc().n_cols;
    for t in 0..step.n_tokens(op.y.desc().n_rows) {
        let view = step.view();
        let (seq, end) = (view.seqs()[t] as usize, view.positions()[t] as usize + 1);
        let mut y = vec![0.0; d];
        if end.is_multiple_of(op.pool) {
            let rows: Vec<Vec<f32>> = (end - op.pool..end)
                .map(|p| row(memory, &op.cache.k, view.kv_row(seq, p)))
                .collect();
            for (i, y) in y.iter_mut().enumerate() {
                let gate = |j: usize| match &ape {
                    Some(ape) => f64::from(rows[j][d + i]) + f64::from(ape[j * d + i]),
                    None => 0.0,
                };
                let max = (0..op.pool).map(gate).fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = (0..op.pool).map(|j| (gate(j) - max).exp()).collect();
                let sum: f64 =
                    weights.iter().zip(&rows).map(|(w, row)| w * f64::from(row[i])).sum();
                *y = (sum / weights.iter().sum::<f64>()) as f32;
            }
        }
        write_row(memory, &op.y, t, &y);
    }
}
