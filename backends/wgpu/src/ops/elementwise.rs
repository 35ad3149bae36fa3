//! Values in, values out.

use hal::op::Add;
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Yes, if every operand fits one binding.
pub(super) fn bindable(operands: &[(&'static str, &TensorDesc)], facts: &Facts) -> Plan {
    let refusal = operands.iter().find_map(|(name, desc)| facts.unbindable(name, desc));
    refusal.map_or_else(Plan::yes, Plan::No)
}

pub(super) fn plan_add(op: &Add<TensorDesc>, facts: &Facts) -> Plan {
    bindable(&[("x", &op.x)], facts)
}

pub(super) fn add(op: &Add<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let n = op.x.desc().n_rows * op.x.desc().n_cols;
    let flat = out.facts().tuning.flat;
    let source = Source::new("add").set("FLAT", flat);
    let grid = out.facts().grid(n.div_ceil(flat as usize));
    out.dispatch(&source, &[plain(&op.a)?, plain(&op.x)?], &[n as u32], grid)
}
