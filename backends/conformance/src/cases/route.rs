//! Cases of Route.

use hal::format::Format;
use hal::op::{Route, Scoring};
use hal::{PackDesc, Result};

use super::widths;
use crate::Case;
use crate::rig::Rig;
use crate::weights::{Origin, host_rows, random_bytes, weight_formats};

const SCORINGS: [Scoring; 4] =
    [Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxChosen, Scoring::SqrtSoftplus];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for n_tokens in [1, 5, 17] {
            let body = move |rig: &mut Rig| route(rig, format, n_tokens, 3, Scoring::Softmax, true);
            cases.push(Case::new(format!("Route/{format}/t{n_tokens}"), body));
        }
    }
    for scoring in SCORINGS {
        for (n_used, renormalise) in [(1, false), (2, true), (4, false), (9, false)] {
            let name = format!("Route/F32/{scoring:?}/{n_used}/renormalise-{renormalise}");
            let body =
                move |rig: &mut Rig| route(rig, Format::F32, 5, n_used, scoring, renormalise);
            cases.push(Case::new(name, body));
        }
    }
    cases.push(Case::new("Route/F32/ties", run_ties));
    for scoring in SCORINGS {
        cases.push(Case::new(format!("Route/F32/{scoring:?}/listed"), move |rig| {
            listed(rig, scoring)
        }));
        for n_groups in [[1, 1], [4, 2], [12, 5]] {
            let [n_group, used] = n_groups;
            let name = format!("Route/F32/{scoring:?}/selection/groups-{used}-of-{n_group}");
            cases.push(Case::new(name, move |rig| select(rig, scoring, n_groups)));
        }
    }
    cases.push(Case::new("Route/F32/small-sum", small_sum));
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        for (n_per_chunk, n_used) in [(2, 5), (3, 4), (12, 2)] {
            let name = format!("Route/F32/{scoring:?}/chunks-of-{n_per_chunk}");
            cases.push(Case::new(name, move |rig| chunks(rig, scoring, n_per_chunk, n_used)));
        }
    }
    cases
}

fn route(
    rig: &mut Rig,
    format: Format,
    n_tokens: usize,
    n_used: usize,
    scoring: Scoring,
    renormalise: bool,
) -> Result<()> {
    let (n_expert, n_embd) = (9, widths(format)[1]);
    let w = rig.weight(n_expert, n_embd, format)?;
    let bias = if n_used == 2 { Some(rig.input(1, n_expert)?) } else { None };
    let x = rig.input(n_tokens, n_embd)?;
    let weights = rig.output(n_tokens, n_expert)?;
    let scale = if n_used == 4 { 2.5 } else { 1.0 };
    let op = Route {
        w,
        bias,
        selection: None,
        groups: None,
        chosen: None,
        x,
        weights: weights.clone(),
        n_used,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring,
        renormalise,
        scale,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

/// Experts with equal rows have equal scores: the lower indices win.
fn run_ties(rig: &mut Rig) -> Result<()> {
    let row = random_bytes(&mut rig.rng, 1, 33, Format::F32);
    let source = host_rows(row.repeat(6), 6, 33, Format::F32, Origin::Owned)?;
    let w = rig.device.import("router", &PackDesc::whole(source.desc()), &source)?;
    let x = rig.input(2, 33)?;
    let weights = rig.output(2, 6)?;
    let op = Route {
        w,
        bias: None,
        selection: None,
        groups: None,
        chosen: None,
        x,
        weights: weights.clone(),
        n_used: 2,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring: Scoring::Softmax,
        renormalise: false,
        scale: 1.0,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

/// Several experts share a weight, which selected experts of a chunk multiply.
fn chunks(rig: &mut Rig, scoring: Scoring, n_per_chunk: usize, n_used: usize) -> Result<()> {
    let (n_expert, n_embd, n_tokens) = (12, 65, 7);
    let w = rig.weight(n_expert, n_embd, Format::F32)?;
    let x = rig.input(n_tokens, n_embd)?;
    let weights = rig.output(n_tokens, n_expert / n_per_chunk)?;
    let op = Route {
        w,
        bias: None,
        selection: None,
        groups: None,
        chosen: None,
        x,
        weights: weights.clone(),
        n_used,
        n_per_chunk,
        n_groups: [1, 1],
        scoring,
        renormalise: true,
        scale: 0.05,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

/// A bias for the selection changes the order of the experts, whose groups are not consecutive, as
/// after swaps of experts.
fn select(rig: &mut Rig, scoring: Scoring, n_groups: [usize; 2]) -> Result<()> {
    let (n_expert, n_embd, n_tokens) = (12, 65, 5);
    let w = rig.weight(n_expert, n_embd, Format::F32)?;
    let selection = rig.input(1, n_expert)?;
    let group = |expert: usize| ((5 * expert + 3) % n_expert * n_groups[0] / n_expert) as f32;
    let groups: Vec<f32> = (0..n_expert).map(group).collect();
    let groups = if n_groups[0] > 1 { Some(rig.tensor(1, n_expert, &groups)?) } else { None };
    let x = rig.input(n_tokens, n_embd)?;
    let weights = rig.output(n_tokens, n_expert)?;
    let op = Route {
        w,
        bias: None,
        selection: Some(selection),
        groups,
        chosen: None,
        x,
        weights: weights.clone(),
        n_used: 4,
        n_per_chunk: 1,
        n_groups,
        scoring,
        renormalise: true,
        scale: 2.5,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

/// Scores whose sum is below the smallest divisor.
fn small_sum(rig: &mut Rig) -> Result<()> {
    let (n_expert, n_embd, n_tokens) = (6, 33, 2);
    let w = rig.weight(n_expert, n_embd, Format::F32)?;
    let bias = Some(rig.tensor(1, n_expert, &[-14.0, -13.5, -13.0, -12.5, -12.0, -11.5])?);
    let x = rig.tensor(n_tokens, n_embd, &vec![0.0; n_tokens * n_embd])?;
    let weights = rig.output(n_tokens, n_expert)?;
    let op = Route {
        w,
        bias,
        selection: None,
        groups: None,
        chosen: None,
        x,
        weights: weights.clone(),
        n_used: 2,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring: Scoring::Sigmoid,
        renormalise: true,
        scale: 1.0,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}

/// Each token uses the experts of its row.
fn listed(rig: &mut Rig, scoring: Scoring) -> Result<()> {
    let (n_expert, n_used, n_tokens, n_embd) = (9, 4, 5, 64);
    let w = rig.weight(n_expert, n_embd, Format::F32)?;
    let experts: Vec<f32> = (0..n_tokens)
        .flat_map(|_| rig.rng.choose(n_used, n_expert))
        .map(|expert| expert as f32)
        .collect();
    let chosen = Some(rig.tensor(n_tokens, n_used, &experts)?);
    let x = rig.input(n_tokens, n_embd)?;
    let weights = rig.output(n_tokens, n_expert)?;
    let op = Route {
        w,
        bias: None,
        selection: None,
        groups: None,
        chosen,
        x,
        weights: weights.clone(),
        n_used,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring,
        renormalise: true,
        scale: 1.5,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}
