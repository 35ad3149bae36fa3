//! Cases of Route.

use hal::format::Format;
use hal::op::{Route, Scoring};
use hal::{PackDesc, Result};

use super::widths;
use crate::Case;
use crate::rig::Rig;
use crate::weights::{Origin, host_rows, random_bytes, weight_formats};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in weight_formats() {
        for n_tokens in [1, 5, 17] {
            let body = move |rig: &mut Rig| route(rig, format, n_tokens, 3, Scoring::Softmax, true);
            cases.push(Case::new(format!("Route/{format}/t{n_tokens}"), body));
        }
    }
    for scoring in [Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxChosen] {
        for (n_used, renormalise) in [(1, false), (2, true), (4, false), (9, false)] {
            let name = format!("Route/F32/{scoring:?}/{n_used}/renormalise-{renormalise}");
            let body =
                move |rig: &mut Rig| route(rig, Format::F32, 5, n_used, scoring, renormalise);
            cases.push(Case::new(name, body));
        }
    }
    cases.push(Case::new("Route/F32/ties", run_ties));
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
    let op = Route { w, bias, x, weights: weights.clone(), n_used, scoring, renormalise, scale };
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
        x,
        weights: weights.clone(),
        n_used: 2,
        scoring: Scoring::Softmax,
        renormalise: false,
        scale: 1.0,
    };
    rig.run([op.into()])?;
    rig.watch("weights", &weights)
}
