//! Norms over runs of columns.

use hal::op::{Norm, NormKind};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};
use lower::FusedWork;

use super::elementwise::plan_bindings;
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

pub(super) fn plan(op: &Norm<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

/// Whether a workgroup, which processes a run, has whole blocks of 32 values.
pub(super) fn is_blocks(op: &Norm<Tensor>) -> bool {
    op.width.is_multiple_of(32)
}

pub(super) fn lower(
    op: &Norm<Tensor>,
    fused: &FusedWork<'_, Span>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let desc = op.x.desc();
    let n_runs = desc.n_rows * (desc.n_cols / op.width);
    if n_runs == 0 {
        return Ok(());
    }
    let source = Source::new("norm").set("ROW", out.facts().tuning.row);
    let y = plain(&op.y)?;
    let (quantizes, fill) = (fused.quantized.is_some(), fused.clear.as_ref());
    // What is not written is bound to y, since the dummy buffer may be bound for reading.
    let written = |span: Option<&Span>| span.unwrap_or(&y).clone();
    let spans = [
        plain(&op.x)?,
        out.plain_or_dummy(fused.add)?,
        out.plain_or_dummy(op.weight.as_ref())?,
        out.plain_or_dummy(op.bias.as_ref())?,
        y.clone(),
        written(fused.quantized.as_ref()),
        written(fill.map(|fill| &fill.span)),
    ];
    let kind = match op.kind {
        NormKind::Rms => 0,
        NormKind::Layer => 1,
        NormKind::L2 => 2,
    };
    let has = u32::from(op.weight.is_some())
        | u32::from(op.bias.is_some()) << 1
        | u32::from(fused.add.is_some()) << 2
        | u32::from(quantizes) << 3;
    let numbers = [
        n_runs as u32,
        op.width as u32,
        kind,
        has,
        op.eps.to_bits(),
        fill.map_or(0, |fill| fill.n as u32),
        fill.map_or(0, |fill| fill.word),
        fill.map_or(0, |fill| fill.n_zero as u32),
    ];
    let grid = out.facts().grid(n_runs);
    out.dispatch(&source, &spans, &numbers, grid)
}
