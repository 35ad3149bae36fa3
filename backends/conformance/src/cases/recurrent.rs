//! Cases of ShortConv, GatedDelta, SsmScan, Wkv6 and Wkv7: state per sequence, reset at position 0.

use hal::op::{DecayCurve, GatedDelta, HeadMapping, ShortConv, SsmScan, Wkv6, Wkv7};
use hal::{Batch, BatchShape, Result, Tensor};

use crate::Case;
use crate::rig::{POISON, Rig};

const MAX_TOKENS: usize = 20;
const MAX_SEQS: usize = 3;

type Steps = &'static [(usize, usize)];

/// Steps with a sequence that continues, one that begins, both, and a long sequence. Each pair is a
/// sequence's length and its number of new tokens.
const STEPS: [(&str, Steps); 4] = [
    ("goes-on", &[(9, 1)]),
    ("begins", &[(3, 3)]),
    ("mixed", &[(7, 3), (2, 2)]),
    ("long", &[(17, 17), (40, 1)]),
];

/// Whether each row of a gated delta rule's state has a decay factor of its own, and its curve. The
/// bound is that of Ling 3.
const DECAYS: [(&str, bool, DecayCurve); 4] = [
    ("", false, DecayCurve::Softplus),
    ("/bounded", false, DecayCurve::Sigmoid { bound: -5.0 }),
    ("/rows", true, DecayCurve::Softplus),
    ("/rows-bounded", true, DecayCurve::Sigmoid { bound: -5.0 }),
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, seqs) in STEPS {
        for kernel_size in [2, 4, 9] {
            let body = move |rig: &mut Rig| short_conv(rig, seqs, kernel_size);
            cases.push(Case::new(format!("ShortConv/{kernel_size}/{name}"), body));
        }
        for (n_head_k, n_head_v, d_k, d_v) in
            [(2, 2, 16, 16), (3, 3, 5, 7), (2, 6, 96, 40), (2, 4, 160, 33), (1, 3, 128, 64)]
        {
            for heads in [HeadMapping::Modulo, HeadMapping::Grouped] {
                let size = [n_head_k, n_head_v, d_k, d_v];
                for (decay, per_row, curve) in DECAYS {
                    let kind = (heads, per_row, curve);
                    let body = move |rig: &mut Rig| gated_delta(rig, seqs, size, kind);
                    let sizes = format!("{n_head_k}-{n_head_v}x{d_k}x{d_v}");
                    let id = format!("GatedDelta/{sizes}/{heads:?}{decay}/{name}");
                    cases.push(Case::new(id, body));
                }
            }
        }
        for (n_head, n_group, d_head, d_state) in
            [(4, 2, 8, 16), (3, 1, 5, 7), (2, 2, 5, 128), (1, 1, 3, 200)]
        {
            let body =
                move |rig: &mut Rig| ssm_scan(rig, seqs, [n_head, n_group, d_head, d_state], 1);
            cases.push(Case::new(format!("SsmScan/{n_head}x{d_head}x{d_state}/{name}"), body));
        }
        // A decay rate for each value of the state, as in Mamba-1.
        for (n_head, n_group, d_state) in [(70, 1, 16), (37, 1, 7), (6, 2, 40), (3, 1, 200)] {
            let body =
                move |rig: &mut Rig| ssm_scan(rig, seqs, [n_head, n_group, 1, d_state], d_state);
            cases.push(Case::new(format!("SsmScan/{n_head}x{d_state}/rates/{name}"), body));
        }
        for (n_head, d) in [(2, 64), (3, 16), (2, 5), (1, 130), (2, 40)] {
            let body = move |rig: &mut Rig| wkv7(rig, seqs, [n_head, d]);
            cases.push(Case::new(format!("Wkv7/{n_head}x{d}/{name}"), body));
            for first in [true, false] {
                let body = move |rig: &mut Rig| wkv6(rig, seqs, [n_head, d], first);
                let kind = if first { "first" } else { "gated" };
                cases.push(Case::new(format!("Wkv6/{n_head}x{d}/{kind}/{name}"), body));
            }
        }
    }
    cases
}

/// The batch and the states before the step: random for a sequence that continues, poison for a new
/// sequence.
fn make_inputs(rig: &mut Rig, seqs: Steps, n_cols: usize) -> Result<(Batch<Tensor>, Tensor)> {
    let facts = rig.facts(seqs, 4);
    let shape = BatchShape { max_tokens: MAX_TOKENS, max_seqs: MAX_SEQS, max_blocks: 2 };
    let batch = rig.batch(shape, &facts, 4, 1 << 20)?;
    let mut state = rig.rng.floats(MAX_SEQS * n_cols);
    for (s, _) in seqs.iter().enumerate().filter(|(_, (len, new))| len == new) {
        state[s * n_cols..][..n_cols].fill(POISON);
    }
    let state = rig.output_from(MAX_SEQS, n_cols, &state)?;
    Ok((batch, state))
}

/// Reads the outputs of a step; states of absent sequences must be unchanged.
fn read_outputs(rig: &mut Rig, seqs: Steps, y: &Tensor, state: &Tensor) -> Result<()> {
    let n_tokens = seqs.iter().map(|(_, new)| new).sum();
    rig.watch("y", &y.rows(0..n_tokens))?;
    rig.watch("state", &state.rows(0..seqs.len()))?;
    rig.watch_bits("other states", &state.rows(seqs.len()..MAX_SEQS))
}

fn short_conv(rig: &mut Rig, seqs: Steps, kernel_size: usize) -> Result<()> {
    let n = 37;
    let (batch, state) = make_inputs(rig, seqs, (kernel_size - 1) * n)?;
    let x = rig.input(MAX_TOKENS, n)?;
    let weight = rig.input(n, kernel_size)?;
    let silu = seqs.len() == 1;
    let bias = if silu { Some(rig.input(1, n)?) } else { None };
    let y = rig.output(MAX_TOKENS, n)?;
    let op = ShortConv { x, weight, bias, batch, state: state.clone(), y: y.clone(), silu };
    rig.run([op.into()])?;
    read_outputs(rig, seqs, &y, &state)
}

fn gated_delta(
    rig: &mut Rig,
    seqs: Steps,
    size: [usize; 4],
    (heads, per_row, curve): (HeadMapping, bool, DecayCurve),
) -> Result<()> {
    let [n_head_k, n_head_v, d_k, d_v] = size;
    let (batch, state) = make_inputs(rig, seqs, n_head_v * d_k * d_v)?;
    let q = rig.input(MAX_TOKENS, n_head_k * d_k)?;
    // Keys of about unit length, as after a norm, so that the state stays bounded.
    let shrink = 1.0 / (d_k as f32).sqrt();
    let keys: Vec<f32> =
        rig.rng.floats(MAX_TOKENS * n_head_k * d_k).iter().map(|v| v * shrink).collect();
    let k = rig.tensor(MAX_TOKENS, n_head_k * d_k, &keys)?;
    let v = rig.input(MAX_TOKENS, n_head_v * d_v)?;
    let n_decay = if per_row { n_head_v * d_k } else { n_head_v };
    let (decay, beta) = (rig.input(MAX_TOKENS, n_decay)?, rig.input(MAX_TOKENS, n_head_v)?);
    let dt_bias = rig.input(1, n_decay)?;
    let sign = match curve {
        DecayCurve::Softplus => -1.0,
        DecayCurve::Sigmoid { .. } => 1.0,
    };
    let rates: Vec<f32> = rig.rng.floats(n_head_v).iter().map(|v| sign * (0.1 + v.abs())).collect();
    let a = rig.tensor(1, n_head_v, &rates)?;
    let y = rig.output(MAX_TOKENS, n_head_v * d_v)?;
    let op = GatedDelta {
        q,
        k,
        v,
        decay,
        beta,
        dt_bias,
        a,
        batch,
        state: state.clone(),
        y: y.clone(),
        n_head_k,
        n_head_v,
        heads,
        curve,
        scale: 0.25,
    };
    rig.run([op.into()])?;
    read_outputs(rig, seqs, &y, &state)
}

fn ssm_scan(rig: &mut Rig, seqs: Steps, size: [usize; 4], n_rates: usize) -> Result<()> {
    let [n_head, n_group, d_head, d_state] = size;
    let (batch, state) = make_inputs(rig, seqs, n_head * d_head * d_state)?;
    let x = rig.input(MAX_TOKENS, n_head * d_head)?;
    let (dt, dt_bias) = (rig.input(MAX_TOKENS, n_head)?, rig.input(1, n_head)?);
    let n = n_head * n_rates;
    let rates: Vec<f32> = rig.rng.floats(n).iter().map(|v| -0.1 - v.abs()).collect();
    let (a, d) = (rig.tensor(1, n, &rates)?, rig.input(1, n_head)?);
    let (b, c) =
        (rig.input(MAX_TOKENS, n_group * d_state)?, rig.input(MAX_TOKENS, n_group * d_state)?);
    let y = rig.output(MAX_TOKENS, n_head * d_head)?;
    let op =
        SsmScan { x, dt, dt_bias, a, b, c, d, batch, state: state.clone(), y: y.clone(), n_group };
    rig.run([op.into()])?;
    read_outputs(rig, seqs, &y, &state)
}

fn wkv6(rig: &mut Rig, seqs: Steps, [n_head, d]: [usize; 2], has_first: bool) -> Result<()> {
    let n = n_head * d;
    let (batch, state) = make_inputs(rig, seqs, n * d)?;
    let (r, w) = (rig.input(MAX_TOKENS, n)?, rig.input(MAX_TOKENS, n)?);
    let (k, v) = (rig.input(MAX_TOKENS, n)?, rig.input(MAX_TOKENS, n)?);
    let first = if has_first { Some(rig.input(1, n)?) } else { None };
    let y = rig.output(MAX_TOKENS, n)?;
    let op = Wkv6 { r, w, k, v, first, batch, state: state.clone(), y: y.clone(), n_head };
    rig.run([op.into()])?;
    read_outputs(rig, seqs, &y, &state)
}

/// With the first layer's values in steps of several sequences.
fn wkv7(rig: &mut Rig, seqs: Steps, [n_head, d]: [usize; 2]) -> Result<()> {
    let n = n_head * d;
    let (batch, state) = make_inputs(rig, seqs, n * d)?;
    let (r, w, k) =
        (rig.input(MAX_TOKENS, n)?, rig.input(MAX_TOKENS, n)?, rig.input(MAX_TOKENS, n)?);
    let (v, a) = (rig.input(MAX_TOKENS, n)?, rig.input(MAX_TOKENS, n)?);
    let both = seqs.len() > 1;
    let first = if both { Some(rig.input(MAX_TOKENS, n)?) } else { None };
    let mix = if both { Some(rig.input(MAX_TOKENS, n)?) } else { None };
    let vectors = rig.input(4, n)?;
    let (y, bonus) = (rig.output(MAX_TOKENS, n)?, rig.output(MAX_TOKENS, n)?);
    let op = Wkv7 {
        r,
        w,
        k,
        v,
        a,
        first,
        mix,
        vectors,
        batch,
        state: state.clone(),
        y: y.clone(),
        bonus: bonus.clone(),
        n_head,
    };
    rig.run([op.into()])?;
    let n_tokens = seqs.iter().map(|(_, new)| new).sum();
    rig.watch("bonus", &bonus.rows(0..n_tokens))?;
    read_outputs(rig, seqs, &y, &state)
}
