//! Each op as dispatches: what it asks for when it is planned, and what it becomes when it is compiled.

mod elementwise;
mod handoff;

use hal::{Op, OpDesc, Plan, Result};

use crate::facts::Facts;
use crate::lowering::Lowering;
pub(crate) use handoff::{PostCopies, merge};

/// Whether a device of these facts runs this op.
pub(crate) fn plan(op: &OpDesc, facts: &Facts) -> Plan {
    let mut refusal = None;
    op.visit(&mut |operand, _, desc| {
        refusal = refusal.take().or_else(|| facts.too_large(operand, desc));
    });
    if let Some(reason) = refusal {
        return Plan::No(reason);
    }
    match op {
        Op::Add(op) => elementwise::plan_add(op, facts),
        Op::Post(_) | Op::Merge(_) => Plan::yes(),
        Op::GetRows(_)
        | Op::AddPositions(_)
        | Op::Gather(_)
        | Op::Norm(_)
        | Op::MatMul(_)
        | Op::Rope(_)
        | Op::CopyHeads(_)
        | Op::StoreKv(_)
        | Op::Attention(_)
        | Op::SoftCap(_)
        | Op::SparseFfn(_)
        | Op::Predict(_)
        | Op::Route(_)
        | Op::ShortConv(_)
        | Op::GatedDelta(_)
        | Op::SsmScan(_) => absent(op),
    }
}

fn absent(op: &OpDesc) -> Plan {
    Plan::No(format!("there is no shader for {} yet", op.name()))
}

/// The dispatches of an op that `plan` said yes to. `Post` and `Merge` are the program's business.
///
/// # Errors
/// What the driver refuses.
pub(crate) fn lower(op: &Op, out: &mut Lowering<'_>) -> Result<()> {
    match op {
        Op::Add(op) => elementwise::add(op, out),
        Op::Post(_) | Op::Merge(_) => Ok(()),
        Op::GetRows(_)
        | Op::AddPositions(_)
        | Op::Gather(_)
        | Op::Norm(_)
        | Op::MatMul(_)
        | Op::Rope(_)
        | Op::CopyHeads(_)
        | Op::StoreKv(_)
        | Op::Attention(_)
        | Op::SoftCap(_)
        | Op::SparseFfn(_)
        | Op::Predict(_)
        | Op::Route(_)
        | Op::ShortConv(_)
        | Op::GatedDelta(_)
        | Op::SsmScan(_) => Err(crate::error::driver("compile", "an op that was not planned")),
    }
}
