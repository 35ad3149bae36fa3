//! Recurrent layers, with a state per sequence.

use hal::op::{DecayCurve, GatedDelta, MIN_KEY_NORM, ShortConv, SsmScan, WKV7_DECAY, Wkv6, Wkv7};
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
    let ([d_k, d_v], n_factors) = (op.head_dims(), op.n_factors());
    let [dt_bias, a] = [&op.dt_bias, &op.a].map(|v| floats(memory, v));
    for_each_token(&op.batch, op.q.desc().n_rows, &op.state, memory, |t, state| {
        let [q, k, v, decay, beta] =
            [&op.q, &op.k, &op.v, &op.decay, &op.beta].map(|x| row(memory, x, t));
        let mut y = vec![0.0; op.n_head_v * d_v];
        for (h, state) in state.chunks_exact_mut(d_k * d_v).enumerate() {
            let key_head = op.heads.key_head(h, op.n_head_k, op.n_head_v);
            let (q, k) = (&q[key_head * d_k..][..d_k], &k[key_head * d_k..][..d_k]);
            let rows = h * n_factors..(h + 1) * n_factors;
            let factors: Vec<f64> = decay[rows.clone()]
                .iter()
                .zip(&dt_bias[rows])
                .map(|(&decay, &bias)| {
                    let (x, rate) = (f64::from(decay) + f64::from(bias), f64::from(a[h]));
                    match op.curve {
                        DecayCurve::Softplus => (rate * softplus(x)).exp(),
                        DecayCurve::Sigmoid { bound } => {
                            (f64::from(bound) * sigmoid(rate * x)).exp()
                        }
                    }
                })
                .collect();
            let strength = sigmoid(f64::from(beta[h]));
            for j in 0..d_v {
                let kept = |i: usize| factors[i % n_factors] * f64::from(state[i * d_v + j]);
                let mut column: Vec<f64> = (0..d_k).map(kept).collect();
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
    let n_rates = op.n_rates();
    for_each_token(&op.batch, op.x.desc().n_rows, &op.state, memory, |t, state| {
        let [x, dt, b, c] = [&op.x, &op.dt, &op.b, &op.c].map(|v| row(memory, v, t));
        let mut y = vec![0.0; x.len()];
        for (i, state) in state.chunks_exact_mut(d_state).enumerate() {
            let h = i / d_head;
            let group = h * op.n_group / n_head * d_state;
            let (b, c) = (&b[group..][..d_state], &c[group..][..d_state]);
            let dt = softplus(f64::from(dt[h]) + f64::from(dt_bias[h]));
            let rates = a[h * n_rates..][..n_rates].iter().cycle();
            let mut sum = f64::from(d[h]) * f64::from(x[i]);
            for ((s, &rate), (&b, &c)) in state.iter_mut().zip(rates).zip(b.iter().zip(c)) {
                let factor = (dt * f64::from(rate)).exp();
                let next = factor * f64::from(*s) + dt * f64::from(x[i]) * f64::from(b);
                sum += next * f64::from(c);
                *s = next as f32;
            }
            y[i] = sum as f32;
        }
        write_row(memory, &op.y, t, &y);
    });
}

pub(super) fn wkv6(op: &Wkv6<Tensor>, memory: &dyn Memory) {
    let (n, d) = (op.r.desc().n_cols, op.d_head());
    let first = optional_floats(memory, op.first.as_ref());
    for_each_token(&op.batch, op.r.desc().n_rows, &op.state, memory, |t, state| {
        let [r, w, k, v] = [&op.r, &op.w, &op.k, &op.v]
            .map(|x| row(memory, x, t).into_iter().map(f64::from).collect::<Vec<_>>());
        let mut y = vec![0.0; n];
        for (h, state) in state.chunks_exact_mut(d * d).enumerate() {
            let at = h * d;
            for j in 0..d {
                let mut sum = 0.0;
                for i in 0..d {
                    let (old, decay) = (f64::from(state[i * d + j]), (-w[at + i].exp()).exp());
                    let pair = k[at + i] * v[at + j];
                    let (seen, next) = match &first {
                        Some(first) => (old + f64::from(first[at + i]) * pair, decay * old + pair),
                        None => {
                            let next = decay * old + (1.0 - decay) * pair;
                            (next, next)
                        }
                    };
                    sum += seen * r[at + i];
                    state[i * d + j] = next as f32;
                }
                y[at + j] = sum as f32;
            }
        }
        write_row(memory, &op.y, t, &y);
    });
}

pub(super) fn wkv7(op: &Wkv7<Tensor>, memory: &dyn Memory) {
    let (n, d) = (op.r.desc().n_cols, op.d_head());
    let vectors = floats(memory, &op.vectors);
    let [k_k, k_a, r_k, offset] = [0, 1, 2, 3].map(|i| &vectors[i * n..][..n]);
    for_each_token(&op.batch, op.r.desc().n_rows, &op.state, memory, |t, state| {
        let [r, w, k, v, a] = [&op.r, &op.w, &op.k, &op.v, &op.a]
            .map(|x| row(memory, x, t).into_iter().map(f64::from).collect::<Vec<_>>());
        let mut v = v;
        if let (Some(first), Some(mix)) = (&op.first, &op.mix) {
            let both = row(memory, first, t).into_iter().zip(row(memory, mix, t));
            for (v, (first, mix)) in v.iter_mut().zip(both) {
                *v += sigmoid(f64::from(mix)) * (f64::from(first) - *v);
            }
        }
        let (mut y, mut bonus) = (vec![0.0; n], vec![0.0; n]);
        for (h, state) in state.chunks_exact_mut(d * d).enumerate() {
            let at = h * d;
            let raw: Vec<f64> = (at..at + d).map(|i| k[i] * f64::from(k_k[i])).collect();
            let length = raw.iter().map(|u| u * u).sum::<f64>().sqrt();
            let length = length.max(f64::from(MIN_KEY_NORM));
            let rates: Vec<f64> = (at..at + d).map(|i| sigmoid(a[i])).collect();
            let key = |i: usize| k[at + i] * (1.0 + f64::from(k_a[at + i]) * (rates[i] - 1.0));
            let decay = |i: usize| (f64::from(WKV7_DECAY) * sigmoid(w[at + i])).exp();
            let weight: f64 = (0..d).map(|i| key(i) * r[at + i] * f64::from(r_k[at + i])).sum();
            for j in 0..d {
                let known: f64 =
                    (0..d).map(|i| f64::from(state[i * d + j]) * raw[i] / length).sum();
                let mut sum = 0.0;
                for i in 0..d {
                    let next = decay(i) * f64::from(state[i * d + j]) + key(i) * v[at + j]
                        - raw[i] / length * rates[i] * known;
                    sum += next * r[at + i];
                    state[i * d + j] = next as f32;
                }
                y[at + j] = sum as f32;
                bonus[at + j] = (weight * v[at + j] + f64::from(offset[at + j])) as f32;
            }
        }
        write_row(memory, &op.y, t, &y);
        write_row(memory, &op.bonus, t, &bonus);
    });
}
