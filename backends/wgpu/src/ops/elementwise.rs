//! Elementwise ops; every invocation computes one value.

use hal::op::{Add, CopyHeads, GateActivation, Gather, Mul, ScaleByPosition, SoftCap};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// `Yes` if one binding covers each operand.
pub(super) fn plan_bindings(operands: &[(&'static str, &TensorDesc)], facts: &Facts) -> Plan {
    let refusal = operands.iter().find_map(|(name, desc)| facts.binding_refusal(name, desc));
    refusal.map_or_else(Plan::yes, Plan::No)
}

/// Dispatches `source` with an invocation for each of `n` values.
pub(super) fn each_value(
    source: Source,
    n: usize,
    spans: &[Span],
    numbers: &[usize],
    out: &mut Lowering<'_>,
) -> Result<()> {
    let numbers: Vec<u32> = numbers.iter().map(|&n| n as u32).collect();
    each_value_u32(source, n, spans, &numbers, out)
}

/// [`each_value`] with parameters as words, which may be the bits of floats.
pub(super) fn each_value_u32(
    source: Source,
    n: usize,
    spans: &[Span],
    numbers: &[u32],
    out: &mut Lowering<'_>,
) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    let flat = out.facts().tuning.flat;
    let grid = out.facts().grid(n.div_ceil(flat as usize));
    out.dispatch(&source.set("FLAT", flat), spans, numbers, grid)
}

fn n_values(tensor: &Tensor) -> usize {
    tensor.desc().n_rows * tensor.desc().n_cols
}

pub(super) fn plan_add(op: &Add<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn add(op: &Add<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let n = n_values(&op.x);
    each_value(Source::new("add"), n, &[plain(&op.a)?, plain(&op.x)?], &[n], out)
}

pub(super) fn plan_mul(op: &Mul<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("g", &op.g), ("x", &op.x)], facts)
}

pub(super) fn mul(op: &Mul<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    // The codes of `gate` in `shaders/mul.wgsl`.
    let activation = match op.activation {
        GateActivation::None => 0,
        GateActivation::Sigmoid => 1,
        GateActivation::Silu => 2,
        GateActivation::Softplus => 3,
        GateActivation::Gelu => 4,
        GateActivation::SigmoidOfRoot => 5,
    };
    let (x, g) = (op.x.desc(), op.g.desc());
    // Gate values per token; 0 if all tokens share them.
    let gate_stride = if g.n_rows == x.n_rows { g.n_cols } else { 0 };
    let numbers = [n_values(&op.x), x.n_cols, x.n_cols / g.n_cols, gate_stride, activation];
    each_value(Source::new("mul"), numbers[0], &[plain(&op.g)?, plain(&op.x)?], &numbers, out)
}

pub(super) fn plan_soft_cap(op: &SoftCap<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn soft_cap(op: &SoftCap<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let n = n_values(&op.x);
    let numbers = [n as u32, u32::from(op.hard), op.cap.to_bits()];
    each_value_u32(Source::new("soft_cap"), n, &[plain(&op.x)?], &numbers, out)
}

pub(super) fn plan_scale_by_position(op: &ScaleByPosition<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn scale_by_position(
    op: &ScaleByPosition<Tensor>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let x = op.x.desc();
    let sizes = [op.batch.shape.max_tokens, x.n_rows, x.n_cols].map(|n| n as u32);
    let scale = [op.length, op.offset, op.factor.to_bits()];
    let spans = [plain(&op.batch.words)?, plain(&op.x)?];
    let numbers = [sizes, scale].concat();
    each_value_u32(Source::new("scale_by_position"), n_values(&op.x), &spans, &numbers, out)
}

pub(super) fn plan_copy_heads(op: &CopyHeads<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x), ("y", &op.y)], facts)
}

pub(super) fn copy_heads(op: &CopyHeads<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (x, y) = (op.x.desc(), op.y.desc());
    let n = x.n_rows * op.n_head * op.width;
    let (from, to) = (op.from, op.to);
    let sizes = [n, op.n_head, op.width, x.n_cols, y.n_cols];
    let columns = [from.first, from.step, to.first, to.step];
    let numbers = [&sizes[..], &columns[..]].concat();
    each_value(Source::new("copy_heads"), n, &[plain(&op.x)?, plain(&op.y)?], &numbers, out)
}

pub(super) fn plan_gather(op: &Gather<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x), ("y", &op.y)], facts)
}

pub(super) fn gather(op: &Gather<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let y = op.y.desc();
    let numbers = [op.batch.shape.max_tokens, y.n_rows, y.n_cols];
    let spans = [plain(&op.x)?, plain(&op.batch.words)?, plain(&op.y)?];
    each_value(Source::new("gather"), n_values(&op.y), &spans, &numbers, out)
}
