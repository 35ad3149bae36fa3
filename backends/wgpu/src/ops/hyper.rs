//! Hyper-connections: the weights of residual streams, and reading and writing the streams.

use hal::op::{HyperRead, HyperWeights, HyperWrite};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::{each_value, plan_bindings};
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

pub(super) fn plan_weights(op: &HyperWeights<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("weights", &op.weights)], facts)
}

pub(super) fn plan_read(op: &HyperRead<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("streams", &op.streams)], facts)
}

pub(super) fn plan_write(op: &HyperWrite<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("streams", &op.streams)], facts)
}

pub(super) fn lower_weights(op: &HyperWeights<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let weights = op.weights.desc();
    let sizes = [weights.n_rows, op.n_streams, weights.n_cols, op.n_iterations];
    let numbers = [&sizes.map(|n| n as u32)[..], &[op.eps.to_bits()]].concat();
    let bound = [plain(&op.scale)?, plain(&op.base)?, plain(&op.weights)?];
    let source = Source::new("hyper_weights").set("ROW", out.facts().tuning.row);
    let grid = out.facts().grid(weights.n_rows);
    out.dispatch(&source, &bound, &numbers, grid)
}

pub(super) fn lower_read(op: &HyperRead<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (y, weights) = (op.y.desc(), op.weights.desc());
    let n = y.n_rows * y.n_cols;
    let stride = if weights.n_rows == 1 { 0 } else { weights.n_cols };
    let bound = [plain(&op.streams)?, plain(&op.weights)?, plain(&op.y)?];
    each_value(Source::new("hyper_read"), n, &bound, &[n, op.n_streams, y.n_cols, stride], out)
}

pub(super) fn lower_write(op: &HyperWrite<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let x = op.x.desc();
    let n = x.n_rows * x.n_cols;
    let bound = [plain(&op.x)?, plain(&op.weights)?, plain(&op.streams)?];
    each_value(Source::new("hyper_write"), n, &bound, &[n, op.n_streams, x.n_cols], out)
}
