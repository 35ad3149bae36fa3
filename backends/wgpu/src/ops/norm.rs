//! Norms over runs of columns.

use hal::op::{Norm, NormKind};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::plan_bindings;
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

pub(super) fn plan(op: &Norm<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn lower(op: &Norm<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let n_runs = desc.n_rows * (desc.n_cols / op.width);
    let source = Source::new("norm").set("ROW", out.facts().tuning.row);
    let spans = [
        plain(&op.x)?,
        out.plain_or_dummy(op.weight.as_ref())?,
        out.plain_or_dummy(op.bias.as_ref())?,
        plain(&op.y)?,
    ];
    let kind = match op.kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
        NormKind::L2 => 2,
    };
    let numbers = [
        n_runs as u32,
        op.width as u32,
        kind,
        u32::from(op.weight.is_some()),
        u32::from(op.bias.is_some()),
        op.eps.to_bits(),
    ];
    if n_runs == 0 {
        return Ok(());
    }
    let grid = out.facts().grid(n_runs);
    out.dispatch(&source, &spans, &numbers, grid)
}
