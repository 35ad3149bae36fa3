//! Cases of GetRows, AddPositions, Gather, Norm, Add, Mul, SoftCap and CopyHeads.

use hal::format::Format;
use hal::op::{
    Add, AddPositions, CopyHeads, GateActivation, Gather, GetRows, HeadColumns, Mul, Norm,
    NormKind, ScaleByPosition, SoftCap,
};
use hal::{BatchShape, Result};

use super::widths;
use crate::Case;
use crate::rig::Rig;
use crate::weights::weight_formats;

const GATE_ACTIVATIONS: [GateActivation; 6] = [
    GateActivation::None,
    GateActivation::Sigmoid,
    GateActivation::Silu,
    GateActivation::Softplus,
    GateActivation::Gelu,
    GateActivation::SigmoidOfRoot,
];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for (n_tokens, scale) in [(1, 1.0), (5, 12.3), (40, 1.0)] {
            let body = move |rig: &mut Rig| get_rows(rig, format, n_tokens, scale);
            cases.push(Case::new(format!("GetRows/{format}/t{n_tokens}"), body));
        }
    }
    for format in weight_formats() {
        for (n_tokens, offset) in [(1, 0), (5, 2), (40, 7)] {
            let body = move |rig: &mut Rig| add_positions(rig, format, n_tokens, offset);
            cases.push(Case::new(format!("AddPositions/{format}/t{n_tokens}"), body));
        }
    }
    for (n_tokens, n_cols, cap) in [(1, 9000, 30.0), (5, 33, 0.7), (40, 64, 1.0)] {
        for hard in [false, true] {
            let name = format!("SoftCap/t{n_tokens}x{n_cols}{}", if hard { "/hard" } else { "" });
            cases.push(Case::new(name, move |rig| soft_cap(rig, n_tokens, n_cols, cap, hard)));
        }
    }
    for (n_tokens, length, offset) in [(1, 8, 0), (5, 3, 1), (40, 8192, 1)] {
        let body = move |rig: &mut Rig| scale_by_position(rig, n_tokens, length, offset);
        cases.push(Case::new(format!("ScaleByPosition/t{n_tokens}/{length}"), body));
    }
    for (name, n_head, width, from, to) in [
        ("all", 3, 5, (0, 5), (0, 5)),
        ("shared", 4, 3, (1, 0), (2, 7)),
        ("inside", 5, 2, (3, 11), (4, 6)),
        ("one", 1, 33, (0, 0), (7, 0)),
    ] {
        for n_tokens in [1, 5, 40] {
            let at = [from, to].map(|(first, step)| HeadColumns { first, step });
            let body = move |rig: &mut Rig| copy_heads(rig, n_tokens, [n_head, width], at);
            cases.push(Case::new(format!("CopyHeads/{name}/t{n_tokens}"), body));
        }
    }
    for (n_tokens, n_cols) in [(1, 257), (5, 33), (40, 64)] {
        let body = move |rig: &mut Rig| gather(rig, n_tokens, n_cols);
        cases.push(Case::new(format!("Gather/t{n_tokens}x{n_cols}"), body));
        let body = move |rig: &mut Rig| add(rig, n_tokens, n_cols);
        cases.push(Case::new(format!("Add/t{n_tokens}x{n_cols}"), body));
    }
    for activation in GATE_ACTIVATIONS {
        for (n_tokens, n, k, shared) in [
            (1, 9000, 9000, false),
            (5, 66, 33, false),
            (40, 96, 3, false),
            (7, 35, 1, false),
            (6, 40, 40, true),
        ] {
            let body = move |rig: &mut Rig| mul(rig, activation, [n_tokens, n, k], shared);
            let name = if shared { "/shared" } else { "" };
            cases.push(Case::new(format!("Mul/{activation:?}/t{n_tokens}x{n}/{k}{name}"), body));
        }
    }
    for kind in [NormKind::Rms, NormKind::Layer, NormKind::L2] {
        for (n_tokens, n_cols, width) in
            [(1, 257, 257), (3, 64, 64), (17, 240, 40), (2, 5, 1), (2, 2500, 2500), (1, 9000, 9000)]
        {
            for affine in [true, false] {
                let name = format!("Norm/{kind:?}/t{n_tokens}x{n_cols}/{width}/affine-{affine}");
                let body = move |rig: &mut Rig| norm(rig, kind, [n_tokens, n_cols, width], affine);
                cases.push(Case::new(name, body));
            }
        }
    }
    cases
}

fn get_rows(rig: &mut Rig, format: Format, n_tokens: usize, scale: f32) -> Result<()> {
    let (n_vocab, n_cols, max_tokens) = (67, widths(format)[1], n_tokens + 3);
    let table = rig.weight(n_vocab, n_cols, format)?;
    let mut facts = rig.facts(&[(n_tokens, n_tokens)], 2);
    facts.tokens.iter_mut().for_each(|token| token.id %= n_vocab as u32);
    facts.tokens[0].id = n_vocab as u32 - 1;
    let shape = BatchShape { max_tokens, max_seqs: 2, max_blocks: 3 };
    let batch = rig.batch(shape, &facts, 2, n_vocab)?;
    let y = rig.output(max_tokens, n_cols)?;
    rig.run([GetRows { table, batch, y: y.clone(), scale }.into()])?;
    rig.watch("y", &y.rows(0..n_tokens))
}

/// Rows past the number of outputs must not be written.
fn gather(rig: &mut Rig, n_tokens: usize, n_cols: usize) -> Result<()> {
    let max_tokens = n_tokens + 2;
    let mut facts = rig.facts(&[(n_tokens, n_tokens)], 2);
    facts.tokens[n_tokens - 1].output = true;
    let shape = BatchShape { max_tokens, max_seqs: 1, max_blocks: 2 };
    let batch = rig.batch(shape, &facts, 2, 1 << 20)?;
    let x = rig.input(max_tokens, n_cols)?;
    let y = rig.output(max_tokens, n_cols)?;
    rig.run([Gather { x, batch, y: y.clone() }.into()])?;
    rig.watch_bits("y", &y)
}

fn add(rig: &mut Rig, n_tokens: usize, n_cols: usize) -> Result<()> {
    let a = rig.input(n_tokens, n_cols)?;
    let values = rig.rng.floats(n_tokens * n_cols);
    let x = rig.output_from(n_tokens, n_cols, &values)?;
    rig.run([Add { a, x: x.clone() }.into()])?;
    rig.watch_bits("x", &x)
}

/// Some gate values make `exp` overflow or underflow.
fn mul(
    rig: &mut Rig,
    activation: GateActivation,
    [n_tokens, n, k]: [usize; 3],
    shared: bool,
) -> Result<()> {
    let g_rows = if shared { 1 } else { n_tokens };
    let mut gates = rig.rng.floats(g_rows * k);
    gates.iter_mut().for_each(|g| *g *= 8.0);
    for (g, far) in gates.iter_mut().zip([-120.0, 120.0, 0.0, -18.0]) {
        *g = far;
    }
    let g = rig.tensor(g_rows, k, &gates)?;
    let values = rig.rng.floats(n_tokens * n);
    let x = rig.output_from(n_tokens, n, &values)?;
    rig.run([Mul { g, x: x.clone(), activation }.into()])?;
    rig.watch("x", &x)
}

fn norm(rig: &mut Rig, kind: NormKind, size: [usize; 3], affine: bool) -> Result<()> {
    let [n_tokens, n_cols, width] = size;
    // One token has values so small that eps affects the result, another a mean far from 0.
    let mut values = rig.rng.floats(n_tokens * n_cols);
    values[..n_cols].iter_mut().for_each(|v| *v *= 3e-3);
    if n_tokens > 1 {
        values[n_cols..2 * n_cols].iter_mut().for_each(|v| *v += 20.0);
    }
    let x = rig.tensor(n_tokens, n_cols, &values)?;
    let (weight, bias) = if affine {
        (Some(rig.input(1, width)?), Some(rig.input(1, width)?))
    } else {
        (None, None)
    };
    let y = rig.output(n_tokens, n_cols)?;
    rig.run([Norm { x, weight, bias, y: y.clone(), kind, eps: 1e-5, width }.into()])?;
    rig.watch("y", &y)
}

/// The position of one token is past the end of the table.
fn add_positions(rig: &mut Rig, format: Format, n_tokens: usize, offset: usize) -> Result<()> {
    let (n_cols, max_tokens) = (widths(format)[1], n_tokens + 3);
    let n_rows = offset + 9 + n_tokens;
    let table = rig.weight(n_rows, n_cols, format)?;
    let facts = rig.facts(&[(n_tokens, n_tokens), (n_rows + 1, 1)], 4);
    let shape = BatchShape { max_tokens, max_seqs: 2, max_blocks: 3 };
    let batch = rig.batch(shape, &facts, 4, 1 << 20)?;
    let values = rig.rng.floats(max_tokens * n_cols);
    let x = rig.output_from(max_tokens, n_cols, &values)?;
    rig.run([AddPositions { table, batch, x: x.clone(), offset }.into()])?;
    rig.watch("x", &x.rows(0..n_tokens + 1))
}

fn soft_cap(rig: &mut Rig, n_tokens: usize, n_cols: usize, cap: f32, hard: bool) -> Result<()> {
    let mut values = rig.rng.floats(n_tokens * n_cols);
    values.iter_mut().for_each(|v| *v *= 3.0 * cap);
    let x = rig.output_from(n_tokens, n_cols, &values)?;
    rig.run([SoftCap { x: x.clone(), cap, hard }.into()])?;
    rig.watch("x", &x)
}

/// Rows of padding tokens are not scaled.
fn scale_by_position(rig: &mut Rig, n_tokens: usize, length: u32, offset: u32) -> Result<()> {
    let (n_cols, max_tokens) = (33, n_tokens + 3);
    let facts = rig.facts(&[(n_tokens, n_tokens), (20_000, 1)], 700);
    let shape = BatchShape { max_tokens, max_seqs: 2, max_blocks: 640 };
    let batch = rig.batch(shape, &facts, 700, 1 << 20)?;
    let values = rig.rng.floats(max_tokens * n_cols);
    let x = rig.output_from(max_tokens, n_cols, &values)?;
    rig.run([ScaleByPosition { batch, x: x.clone(), factor: 0.1, length, offset }.into()])?;
    rig.watch("x", &x.rows(0..n_tokens + 1))
}

/// Values of `y` outside the copied columns stay unchanged.
fn copy_heads(
    rig: &mut Rig,
    n_tokens: usize,
    [n_head, width]: [usize; 2],
    [from, to]: [HeadColumns; 2],
) -> Result<()> {
    let n_cols = |at: HeadColumns| at.first + (n_head - 1) * at.step + width + 2;
    let x = rig.input(n_tokens, n_cols(from))?;
    let values = rig.rng.floats(n_tokens * n_cols(to));
    let y = rig.output_from(n_tokens, n_cols(to), &values)?;
    rig.run([CopyHeads { x, y: y.clone(), n_head, width, from, to }.into()])?;
    rig.watch_bits("y", &y)
}
