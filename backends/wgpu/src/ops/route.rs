//! Mixture-of-experts routing: the router's products, then top-k.

use hal::op::{Route, Scoring};
use hal::{Bytes, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{Scratch, route_scratch};

use super::elementwise::plan_bindings;
use super::weights::{products, refuse_products};
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of experts that `route.wgsl` can rank.
const MAX_EXPERTS: usize = 4096;

/// Maximum number of groups of experts that `route.wgsl` can rank.
const MAX_GROUPS: usize = 64;

pub(super) fn plan(op: &Route<TensorDesc>, facts: &Facts) -> Plan {
    if op.w.n_rows > MAX_EXPERTS {
        return Plan::No(format!("{} experts; at most {MAX_EXPERTS} are supported", op.w.n_rows));
    }
    if op.n_per_chunk > 1 && (op.selection.is_some() || op.groups.is_some()) {
        let reason = "experts that share weights cannot have groups or a bias for the selection";
        return Plan::No(reason.to_owned());
    }
    if op.n_groups[0] > MAX_GROUPS {
        let reason =
            format!("{} groups of experts; at most {MAX_GROUPS} are supported", op.n_groups[0]);
        return Plan::No(reason);
    }
    if let Some(reason) = refuse_products(&op.w, op.x.n_rows, facts) {
        return Plan::No(reason);
    }
    match plan_bindings(&[("x", &op.x), ("weights", &op.weights)], facts) {
        Plan::No(reason) => Plan::No(reason),
        Plan::Yes { slow, .. } => {
            let mut scratch = Scratch::default();
            route_scratch(&op.w, op.x.n_rows, &mut scratch);
            Plan::Yes { workspace: Bytes(scratch.bytes()), slow }
        }
    }
}

pub(super) fn lower(op: &Route<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (w, n_tokens) = (op.w.desc(), op.x.desc().n_rows);
    if n_tokens == 0 {
        return Ok(());
    }
    let [q8, scores] = route_scratch(&w, n_tokens, &mut Scratch::default());
    let (q8, scores) = (q8.span(out)?, scores.span(out)?);
    let x = plain(&op.x)?;
    products(&op.w, &x, n_tokens, op.bias.as_ref(), scores.clone(), q8, out)?;
    let scoring = match op.scoring {
        Scoring::Softmax => 0,
        Scoring::Sigmoid => 1,
        Scoring::SoftmaxChosen => 2,
        Scoring::SqrtSoftplus => 3,
    };
    let numbers = [
        n_tokens as u32,
        w.n_rows as u32,
        op.n_used as u32,
        op.n_per_chunk as u32,
        scoring,
        u32::from(op.renormalise),
        u32::from(op.selection.is_some()),
        u32::from(op.chosen.is_some()),
        op.groups.as_ref().map_or(0, |_| op.n_groups[0] as u32),
        op.n_groups[1] as u32,
        op.scale.to_bits(),
    ];
    let source = Source::new("route").set("ROW", out.facts().tuning.row);
    let grid = out.facts().grid(n_tokens);
    let optional = |part: &Option<Tensor>| part.as_ref().map_or(Ok(scores.clone()), plain);
    let bindings = [
        scores.clone(),
        optional(&op.selection)?,
        optional(&op.groups)?,
        optional(&op.chosen)?,
        plain(&op.weights)?,
    ];
    out.dispatch(&source, &bindings, &numbers, grid)
}
