//! Rows of a weight selected by the batch: embeddings and learned positions.

use hal::op::{AddPositions, GetRows};
use hal::{Batch, Operand, Plan, Result, Tensor, TensorDesc};

use super::operand::{Access, Weight, include, refusal};
use super::plan_of;
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Words of a batch before its sections (`hal::BatchShape::n_words`).
const HEADER: usize = 4;

pub(in super::super) fn plan_get_rows(op: &GetRows<TensorDesc>, facts: &Facts) -> Plan {
    let refused =
        refusal("table", &op.table, 1, facts).or_else(|| facts.binding_refusal("y", &op.y));
    plan_of(refused, 0, None)
}

pub(in super::super) fn plan_add_positions(op: &AddPositions<TensorDesc>, facts: &Facts) -> Plan {
    let refused =
        refusal("table", &op.table, 1, facts).or_else(|| facts.binding_refusal("x", &op.x));
    plan_of(refused, 0, None)
}

pub(in super::super) fn lower_get_rows(op: &GetRows<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let selection = RowSelection { section: 0, offset: 0, scale: Some(op.scale) };
    lower(&op.table, &op.batch, &op.y, &selection, out)
}

pub(in super::super) fn lower_add_positions(
    op: &AddPositions<Tensor>,
    out: &mut Lowering<'_>,
) -> Result<()> {
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
    let (weight, desc) = (Weight::new(table, 1, out)?, y.desc());
    let flat = out.facts().tuning.flat as usize;
    let source = Source::new("get_rows").set("FLAT", flat);
    let source = include(source, "weight", &weight.desc, Access::Fours)?;
    let grid = out.facts().grid((desc.n_rows * desc.n_cols.div_ceil(4)).div_ceil(flat));
    for part in &weight.parts {
        let numbers = [
            part.first,
            part.n,
            weight.row_words,
            desc.n_cols,
            desc.n_rows,
            HEADER + selection.section * batch.shape.max_tokens,
            selection.offset,
            weight.desc.n_rows - 1,
            selection.scale.unwrap_or(1.0).to_bits() as usize,
            usize::from(selection.scale.is_none()),
        ];
        let tables = weight.tables(out)?;
        let spans = [part.span.clone(), tables, plain(&batch.words)?, plain(y)?];
        out.dispatch(&source, &spans, &numbers.map(|n| n as u32), grid)?;
    }
    Ok(())
}
