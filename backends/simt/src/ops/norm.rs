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

/// Columns to a thread where a block has a run, until blocks are full.
const TO_A_THREAD: usize = 4;

/// Most threads of a block.
const MOST_THREADS: usize = 1024;

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
        let threads = op.width.div_ceil(TO_A_THREAD).next_multiple_of(64).min(MOST_THREADS);
        out.launch(unit, "norm_block", [n_runs, 1, 1], threads as u32, &args);
    }
    Ok(())
}
