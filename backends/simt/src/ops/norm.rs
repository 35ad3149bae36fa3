//! Norms over runs of columns.

use hal::op::{Norm, NormKind};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Columns of a run that 32 threads share; more are shared by a block.
const SHORT: usize = 256;

/// Columns of a run of which a thread of a full block keeps 8 values (`norm_short`).
const MEDIUM: usize = 2048;

pub(crate) fn plan(_op: &Norm<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn lower(op: &Norm<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let n_runs = desc.n_rows * (desc.n_cols / op.width);
    let operands = [
        ptr(plain(&op.x)?),
        ptr(out.maybe(op.weight.as_ref())?),
        ptr(out.maybe(op.bias.as_ref())?),
        ptr(plain(&op.y)?),
    ];
    let centred = Arg::U32(u32::from(op.kind == NormKind::Layer));
    let numbers = [word(op.width), centred, Arg::F32(op.eps)];
    let unit = Unit::plain("norm");
    if op.width <= SHORT {
        let args = [&operands[..], &[word(n_runs)], &numbers].concat();
        out.launch(unit, "norm_near", [n_runs.div_ceil(8), 1, 1], 256, &args);
    } else {
        let args = [&operands[..], &numbers].concat();
        let kernel = if op.width <= MEDIUM { "norm_short" } else { "norm_long" };
        let threads = (op.width / 4).next_multiple_of(64).min(256) as u32;
        out.launch(unit, kernel, [n_runs, 1, 1], threads, &args);
    }
    Ok(())
}
