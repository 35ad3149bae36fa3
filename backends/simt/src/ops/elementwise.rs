//! Elementwise ops. A thread computes one value; in `add` it computes four.

use hal::op::{Add, CopyHeads, GateActivation, Gather, Mul, ScaleByPosition, SoftCap};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Threads per block of kernels whose threads do not cooperate.
const BLOCK: u32 = 256;

/// Launches `kernel` of the unit of the same name with a thread for each of `n` items.
pub(super) fn launch_per_item(
    kernel: &'static str,
    n: usize,
    args: &[Arg],
    out: &mut Lowering<'_>,
) {
    let grid = [n.div_ceil(BLOCK as usize), 1, 1];
    out.launch(Unit::plain(kernel), kernel, grid, BLOCK, args);
}

fn n_values(tensor: &Tensor) -> usize {
    tensor.desc().n_rows * tensor.desc().n_cols
}

pub(crate) fn plan_add(_op: &Add<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn add(op: &Add<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let n = n_values(&op.x);
    let args = [ptr(plain(&op.a)?), ptr(plain(&op.x)?), word(n)];
    launch_per_item("add", n.div_ceil(4), &args, out);
    Ok(())
}

pub(crate) fn plan_gather(_op: &Gather<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn gather(op: &Gather<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let y = op.y.desc();
    let args = [
        ptr(plain(&op.x)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.y)?),
        word(op.batch.shape.max_tokens),
        word(y.n_rows),
        word(y.n_cols),
    ];
    launch_per_item("gather", n_values(&op.y), &args, out);
    Ok(())
}

pub(crate) fn plan_copy_heads(_op: &CopyHeads<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn copy_heads(op: &CopyHeads<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (x, y) = (op.x.desc(), op.y.desc());
    let spans = [ptr(plain(&op.x)?), ptr(plain(&op.y)?)];
    let (from, to) = (op.from, op.to);
    let sizes = [x.n_rows, op.n_head, op.width, x.n_cols, y.n_cols];
    let columns = [from.first, from.step, to.first, to.step];
    let args: Vec<Arg> =
        spans.into_iter().chain(sizes.into_iter().chain(columns).map(word)).collect();
    launch_per_item("copy_heads", x.n_rows * op.n_head * op.width, &args, out);
    Ok(())
}

pub(crate) fn plan_mul(_op: &Mul<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn mul(op: &Mul<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    // The codes of `gate` in `kernels-cuda/mul.cu`.
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
    let n = n_values(&op.x);
    let sizes = [n, x.n_cols, x.n_cols / g.n_cols, gate_stride].map(word);
    let args = [&[ptr(plain(&op.g)?), ptr(plain(&op.x)?)], &sizes[..], &[Arg::U32(activation)]];
    launch_per_item("mul", n, &args.concat(), out);
    Ok(())
}

pub(crate) fn plan_soft_cap(_op: &SoftCap<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn soft_cap(op: &SoftCap<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let n = n_values(&op.x);
    let hard = Arg::U32(u32::from(op.hard));
    let args = [ptr(plain(&op.x)?), word(n), hard, Arg::F32(op.cap)];
    launch_per_item("soft_cap", n, &args, out);
    Ok(())
}

pub(crate) fn plan_scale_by_position(_op: &ScaleByPosition<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn scale_by_position(
    op: &ScaleByPosition<Tensor>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let x = op.x.desc();
    let args = [
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.x)?),
        word(op.batch.shape.max_tokens),
        word(x.n_rows),
        word(x.n_cols),
        Arg::U32(op.length),
        Arg::U32(op.offset),
        Arg::F32(op.factor),
    ];
    launch_per_item("scale_by_position", n_values(&op.x), &args, out);
    Ok(())
}
