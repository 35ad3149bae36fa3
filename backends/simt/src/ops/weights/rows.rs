//! Rows of a weight selected by the batch: embeddings and learned positions.

use hal::op::{AddPositions, GetRows};
use hal::{Batch, Operand, Plan, Result, Tensor, TensorDesc};

use super::operand::{Weight, refusal};
use super::{BLOCK, plan_of};
use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Words of a batch before its sections (`hal::BatchShape::n_words`).
const HEADER: usize = 4;

pub(crate) fn plan_get_rows(op: &GetRows<TensorDesc>, _facts: &Facts) -> Plan {
    plan_of(refusal("table", &op.table), 0)
}

pub(crate) fn plan_add_positions(op: &AddPositions<TensorDesc>, _facts: &Facts) -> Plan {
    plan_of(refusal("table", &op.table), 0)
}

pub(crate) fn lower_get_rows(op: &GetRows<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let selection = RowSelection { section: 0, offset: 0, scale: Some(op.scale) };
    lower(&op.table, &op.batch, &op.y, &selection, out)
}

pub(crate) fn lower_add_positions(op: &AddPositions<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let selection = RowSelection { section: 2, offset: op.offset, scale: None };
    lower(&op.table, &op.batch, &op.x, &selection, out)
}

/// The rows that the tokens select, and whether they are written or added.
struct RowSelection {
    /// Index of the batch section that holds a row number per token.
    section: usize,
    offset: usize,
    /// Scale factor if rows are written; `None` if they are added.
    scale: Option<f32>,
}

fn lower(
    table: &Tensor,
    batch: &Batch<Tensor>,
    y: &Tensor,
    selection: &RowSelection,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (weight, desc) = (Weight::new(table)?, y.desc());
    let mut args = vec![
        ptr(weight.span),
        ptr(weight.tables(out)),
        ptr(plain(&batch.words)?),
        ptr(plain(y)?),
        word(weight.row_words),
        word(desc.n_cols),
        word(desc.n_rows),
        word(HEADER + selection.section * batch.shape.max_tokens),
        word(selection.offset),
        word(weight.desc.n_rows - 1),
    ];
    args.extend(selection.scale.map(Arg::F32));
    let kernel = if selection.scale.is_some() { "get_rows" } else { "add_rows" };
    let grid = [desc.n_rows, desc.n_cols.div_ceil(4).div_ceil(BLOCK as usize), 1];
    out.launch(Unit::weight("get_rows", weight.desc.format), kernel, grid, BLOCK, &args);
    Ok(())
}
