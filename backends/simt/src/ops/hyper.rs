//! Hyper-connections: the weights of residual streams, and reading and writing the streams.

use hal::op::{HyperRead, HyperWeights, HyperWrite, MAX_STREAMS};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::Unit;

/// Threads per block: one per weight of the largest matrix, and one per column of a stream.
const WEIGHT_THREADS: u32 = (MAX_STREAMS * MAX_STREAMS) as u32;
const COLUMN_THREADS: u32 = 256;

pub(super) fn plan_weights(_op: &HyperWeights<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(super) fn plan_read(_op: &HyperRead<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(super) fn plan_write(_op: &HyperWrite<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(super) fn lower_weights(op: &HyperWeights<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let weights = op.weights.desc();
    let args = [
        ptr(plain(&op.scale)?),
        ptr(plain(&op.base)?),
        ptr(plain(&op.weights)?),
        word(op.n_streams),
        word(weights.n_cols),
        Arg::F32(op.eps),
        word(op.n_iterations),
    ];
    let grid = [weights.n_rows, 1, 1];
    out.launch(Unit::plain("hyper"), "hyper_weights", grid, WEIGHT_THREADS, &args);
    Ok(())
}

pub(super) fn lower_read(op: &HyperRead<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (y, weights) = (op.y.desc(), op.weights.desc());
    let args = [
        ptr(plain(&op.streams)?),
        ptr(plain(&op.weights)?),
        ptr(plain(&op.y)?),
        word(op.n_streams),
        word(y.n_cols),
        word(if weights.n_rows == 1 { 0 } else { weights.n_cols }),
    ];
    let grid = [y.n_cols.div_ceil(COLUMN_THREADS as usize), y.n_rows, 1];
    out.launch(Unit::plain("hyper"), "hyper_read", grid, COLUMN_THREADS, &args);
    Ok(())
}

pub(super) fn lower_write(op: &HyperWrite<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let x = op.x.desc();
    let args = [
        ptr(plain(&op.x)?),
        ptr(plain(&op.weights)?),
        ptr(plain(&op.streams)?),
        word(op.n_streams),
        word(x.n_cols),
    ];
    let grid = [x.n_cols.div_ceil(COLUMN_THREADS as usize), x.n_rows, 1];
    out.launch(Unit::plain("hyper"), "hyper_write", grid, COLUMN_THREADS, &args);
    Ok(())
}
