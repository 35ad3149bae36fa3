//! Mixture-of-experts routing: the router's products, then top-k.

use hal::op::{Route, Scoring};
use hal::{Bytes, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{Scratch, route_scratch};

use super::weights::{products, refuse_products};
use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Maximum number of experts that `route.cu` can rank.
const MAX_EXPERTS: usize = 4096;

/// Maximum number of groups of experts that `route.cu` can rank.
const MAX_GROUPS: usize = 64;

pub(crate) fn plan(op: &Route<TensorDesc>, _facts: &Facts) -> Plan {
    if op.w.n_rows > MAX_EXPERTS {
        return Plan::No(format!("{} experts; at most {MAX_EXPERTS} are supported", op.w.n_rows));
    }
    if op.n_groups[0] > MAX_GROUPS {
        let reason =
            format!("{} groups of experts; at most {MAX_GROUPS} are supported", op.n_groups[0]);
        return Plan::No(reason);
    }
    if let Some(reason) = refuse_products(&op.w) {
        return Plan::No(reason);
    }
    let mut scratch = Scratch::default();
    route_scratch(&op.w, op.x.n_rows, &mut scratch);
    Plan::Yes { workspace: Bytes(scratch.bytes()), slow: None }
}

pub(crate) fn lower(op: &Route<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (w, n_tokens) = (op.w.desc(), op.x.desc().n_rows);
    if n_tokens == 0 {
        return Ok(());
    }
    let [q8, scores] = route_scratch(&w, n_tokens, &mut Scratch::default());
    let (q8, scores) = (q8.span(out)?, scores.span(out)?);
    products(&op.w, plain(&op.x)?, n_tokens, op.bias.as_ref(), scores, q8, out)?;
    let scoring = match op.scoring {
        Scoring::Softmax => 0,
        Scoring::Sigmoid => 1,
        Scoring::SoftmaxChosen => 2,
        Scoring::SqrtSoftplus => 3,
    };
    let args = [
        ptr(scores),
        ptr(out.plain_or_null(op.selection.as_ref())?),
        ptr(out.plain_or_null(op.groups.as_ref())?),
        ptr(out.plain_or_null(op.chosen.as_ref())?),
        ptr(plain(&op.weights)?),
        word(w.n_rows),
        word(op.n_used),
        word(op.n_per_chunk),
        word(op.n_groups[0]),
        word(op.n_groups[1]),
        Arg::U32(scoring),
        Arg::U32(u32::from(op.renormalise)),
        Arg::F32(op.scale),
    ];
    let threads = w.n_rows.next_multiple_of(64).min(256) as u32;
    out.launch(Unit::plain("route"), "route", [n_tokens, 1, 1], threads, &args);
    Ok(())
}
