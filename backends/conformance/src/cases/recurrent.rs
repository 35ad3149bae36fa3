//! ShortConv, GatedDelta, SsmScan: state per sequence, starting over at position 0.

use hal::op::{GatedDelta, ShortConv, SsmScan};
use hal::{Batch, BatchShape, Result, Tensor};

use crate::Case;
use crate::rig::{POISON, Rig};

const MAX_TOKENS: usize = 20;
const MAX_SEQS: usize = 3;

type Steps = &'static [(usize, usize)];

/// Sequences that go on, that begin, both, and a long one.
const STEPS: [(&str, Steps); 4] = [
    ("goes-on", &[(9, 1)]),
    ("begins", &[(3, 3)]),
    ("mixed", &[(7, 3), (2, 2)]),
    ("long", &[(17, 17), (40, 1)]),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, seqs) in STEPS {
        for taps in [2, 4, 9] {
            let body = move |rig: &mut Rig| short_conv(rig, seqs, taps);
            cases.push(Case::new(format!("ShortConv/{taps}/{name}"), body));
        }
        for (n_head, d_k, d_v) in [(2, 16, 16), (3, 5, 7), (2, 96, 40), (1, 160, 33)] {
            let body = move |rig: &mut Rig| gated_delta(rig, seqs, [n_head, d_k, d_v]);
            cases.push(Case::new(format!("GatedDelta/{n_head}x{d_k}x{d_v}/{name}"), body));
        }
        for (n_head, n_group, d_head, d_state) in
            [(4, 2, 8, 16), (3, 1, 5, 7), (2, 2, 5, 128), (1, 1, 3, 200)]
        {
            let body = move |rig: &mut Rig| ssm_scan(rig, seqs, [n_head, n_group, d_head, d_state]);
            cases.push(Case::new(format!("SsmScan/{n_head}x{d_head}x{d_state}/{name}"), body));
        }
    }
    cases
}

/// The batch, and the states before it: random where a sequence goes on, poison where one begins.
fn before(rig: &mut Rig, seqs: Steps, n_cols: usize) -> Result<(Batch<Tensor>, Tensor)> {
    let facts = rig.facts(seqs, 4);
    let shape = BatchShape { max_tokens: MAX_TOKENS, max_seqs: MAX_SEQS, max_blocks: 2 };
    let batch = rig.batch(shape, &facts, 4, 1 << 20)?;
    let mut state = rig.rng.floats(MAX_SEQS * n_cols);
    for (s, _) in seqs.iter().enumerate().filter(|(_, (len, new))| len == new) {
        state[s * n_cols..][..n_cols].fill(POISON);
    }
    let state = rig.updated(MAX_SEQS, n_cols, &state)?;
    Ok((batch, state))
}

/// Reads what a step made; states of absent sequences must not have moved.
fn after(rig: &mut Rig, seqs: Steps, y: &Tensor, state: &Tensor) -> Result<()> {
    let n_tokens = seqs.iter().map(|(_, new)| new).sum();
    rig.watch("y", &y.rows(0..n_tokens))?;
    rig.watch("state", &state.rows(0..seqs.len()))?;
    rig.watch_bits("other states", &state.rows(seqs.len()..MAX_SEQS))
}

fn short_conv(rig: &mut Rig, seqs: Steps, taps: usize) -> Result<()> {
    let n = 37;
    let (batch, state) = before(rig, seqs, (taps - 1) * n)?;
    let x = rig.input(MAX_TOKENS, n)?;
    let weight = rig.input(n, taps)?;
    let silu = seqs.len() == 1;
    let bias = if silu { Some(rig.input(1, n)?) } else { None };
    let y = rig.output(MAX_TOKENS, n)?;
    let op = ShortConv { x, weight, bias, batch, state: state.clone(), y: y.clone(), silu };
    rig.run([op.into()])?;
    after(rig, seqs, &y, &state)
}

fn gated_delta(rig: &mut Rig, seqs: Steps, [n_head, d_k, d_v]: [usize; 3]) -> Result<()> {
    let (batch, state) = before(rig, seqs, n_head * d_k * d_v)?;
    let (q, k) = (rig.input(MAX_TOKENS, n_head * d_k)?, rig.input(MAX_TOKENS, n_head * d_k)?);
    let v = rig.input(MAX_TOKENS, n_head * d_v)?;
    let negative: Vec<f32> = rig.rng.floats(MAX_TOKENS * n_head).iter().map(|v| -v.abs()).collect();
    let decay = rig.tensor(MAX_TOKENS, n_head, &negative)?;
    let positive: Vec<f32> = rig.rng.floats(MAX_TOKENS * n_head).iter().map(|v| v.abs()).collect();
    let small: Vec<f32> = positive.iter().map(|v| v / d_k as f32).collect();
    let beta = rig.tensor(MAX_TOKENS, n_head, &small)?;
    let y = rig.output(MAX_TOKENS, n_head * d_v)?;
    let op = GatedDelta {
        q,
        k,
        v,
        decay,
        beta,
        batch,
        state: state.clone(),
        y: y.clone(),
        n_head,
        scale: 0.25,
    };
    rig.run([op.into()])?;
    after(rig, seqs, &y, &state)
}

fn ssm_scan(rig: &mut Rig, seqs: Steps, size: [usize; 4]) -> Result<()> {
    let [n_head, n_group, d_head, d_state] = size;
    let (batch, state) = before(rig, seqs, n_head * d_head * d_state)?;
    let x = rig.input(MAX_TOKENS, n_head * d_head)?;
    let (dt, dt_bias) = (rig.input(MAX_TOKENS, n_head)?, rig.input(1, n_head)?);
    let rates: Vec<f32> = rig.rng.floats(n_head).iter().map(|v| -0.1 - v.abs()).collect();
    let (a, d) = (rig.tensor(1, n_head, &rates)?, rig.input(1, n_head)?);
    let (b, c) =
        (rig.input(MAX_TOKENS, n_group * d_state)?, rig.input(MAX_TOKENS, n_group * d_state)?);
    let y = rig.output(MAX_TOKENS, n_head * d_head)?;
    let op =
        SsmScan { x, dt, dt_bias, a, b, c, d, batch, state: state.clone(), y: y.clone(), n_group };
    rig.run([op.into()])?;
    after(rig, seqs, &y, &state)
}
