//! Recurrent layers, with a state per sequence.

use hal::op::{GatedDelta, ShortConv, SsmScan};
use hal::{Batch, Operand, Tensor};

use super::Memory;
use super::activation::{sigmoid, softplus};
use super::operands::{Step, floats, optional_floats, row, write_row};

/// Calls `step` with each token and the state of the token's sequence, then stores the changed
/// state. At position 0 the state is zero.
fn for_each_token(
    batch: &Batch<Tensor>,
    n_rows: usize,
    state: &Tensor,
    memory: &dyn Memory,
    mut step: impl FnMut(usize, &mut [f32]),
) {
    let facts = Step::new(memory, batch);
    for t in 0..facts.n_tokens(n_rows) {
        let seq = facts.view().seqs()[t] as usize;
        let mut values = match facts.view().positions()[t] {
            0 => vec![0.0; state.desc().n_cols],
            _ => row(memory, state, seq),
        };
        step(t, &mut values);
        write_row(memory, state, seq, &values);
    }
}

pub(super) fn short_conv(op: &ShortConv<Tensor>, memory: &dyn Memory) {
    let (n, kernel_size) = (op.x.desc().n_cols, op.weight.desc().n_cols);
    let weight = floats(memory, &op.weight);
    let bias = optional_floats(memory, op.bias.as_ref());
    for_each_token(&op.batch, op.x.desc().n_rows, &op.state, memory, |t, state| {
        let inputs = [state.to_vec(), row(memory, &op.x, t)].concat();
        let y = (0..n).map(|c| {
            let offset = bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
            let term =
                |i: usize| f64::from(weight[c * kernel_size + i]) * f64::from(inputs[i * n + c]);
            let sum = offset + (0..kernel_size).map(term).sum::<f64>();
            (if op.silu { sum * sigmoid(sum) } else { sum }) as f32
        });
        write_row(memory, &op.y, t, &y.collect::<Vec<_>>());
        state.copy_from_slice(&inputs[n..]);
    });
}

pub(super) fn gated_delta(op: &GatedDelta<Tensor>, memory: &dyn Memory) {
    let [d_k, d_v] = op.head_dims();
    let [dt_bias, a] = [&op.dt_bias, &op.a].map(|v| floats(memory, v));
    for_each_token(&op.batch, op.q.desc().n_rows, &op.state, memory, |t, state| {
        let [q, k, v, decay, beta] =
            [&op.q, &op.k, &op.v, &op.decay, &op.beta].map(|x| row(memory, x, t));
        let mut y = vec![0.0; op.n_head_v * d_v];
        for (h, state) in state.chunks_exact_mut(d_k * d_v).enumerate() {
            let key_head = op.heads.key_head(h, op.n_head_k, op.n_head_v);
            let (q, k) = (&q[key_head * d_k..][..d_k], &k[key_head * d_k..][..d_k]);
            let dt = softplus(f64::from(decay[h]) + f64::from(dt_bias[h]));
            let factor = (f64::from(a[h]) * dt).exp();
            let strength = sigmoid(f64::from(beta[h]));
            for j in 0..d_v {
                let mut column: Vec<f64> =
                    (0..d_k).map(|i| factor * f64::from(state[i * d_v + j])).collect();
                let known: f64 = column.iter().zip(k).map(|(s, &k)| s * f64::from(k)).sum();
                let change = strength * (f64::from(v[h * d_v + j]) - known);
                column.iter_mut().zip(k).for_each(|(s, &k)| *s += change * f64::from(k));
                let sum: f64 = column.iter().zip(q).map(|(s, &q)| s * f64::from(q)).sum();
                y[h * d_v + j] = (f64::from(op.scale) * sum) as f32;
                column.iter().enumerate().for_each(|(i, &s)| state[i * d_v + j] = s as f32);
            }
        }
        write_row(memory, &op.y, t, &y);
    });
}

pub(super) fn ssm_scan(op: &SsmScan<Tensor>, memory: &dyn Memory) {
    let n_head = op.dt.desc().n_cols;
    let (d_head, d_state) = (op.x.desc().n_cols / n_head, op.b.desc().n_cols / op.n_group);
    let [dt_bias, a, d] = [&op.dt_bias, &op.a, &op.d].map(|v| floats(memory, v));
    for_each_token(&op.batch, op.x.desc().n_rows, &op.state, memory, |t, state| {
        let [x, dt, b, c] = [&op.x, &op.dt, &op.b, &op.c].map(|v| row(memory, v, t));
        let mut y = vec![0.0; x.len()];
        for (i, state) in state.chunks_exact_mut(d_state).enumerate() {
            let h = i / d_head;
            let group = h * op.n_group / n_head * d_state;
            let (b, c) = (&b[group..][..d_state], &c[group..][..d_state]);
            let dt = softplus(f64::from(dt[h]) + f64::from(dt_bias[h]));
            let factor = (dt * f64::from(a[h])).exp();
            let mut sum = f64::from(d[h]) * f64::from(x[i]);
            for (s, (&b, &c)) in state.iter_mut().zip(b.iter().zip(c)) {
                let next = factor * f64::from(*s) + dt * f64::from(x[i]) * f64::from(b);
                sum += next * f64::from(c);
                *s = next as f32;
            }
            y[i] = sum as f32;
        }
        write_row(memory, &op.y, t, &y);
    });
}
