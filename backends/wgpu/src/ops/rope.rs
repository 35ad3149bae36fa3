//! Rotary position embedding.

use hal::op::{Pairing, Rope};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::{each_value_u32, plan_bindings};
use crate::buffer::plain;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

pub(super) fn plan(op: &Rope<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("x", &op.x)], facts)
}

pub(super) fn lower(op: &Rope<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let (n_head, n_pairs) = (desc.n_cols / op.d_head, op.n_rot / 2);
    let (step, other) = match op.pairing {
        Pairing::Adjacent => (2, 1),
        Pairing::Halves => (1, n_pairs),
    };
    let sizes =
        [op.batch.shape.max_tokens, desc.n_rows, n_head, op.d_head, op.first, n_pairs, step, other];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| n as u32).collect();
    numbers.push(op.scale.to_bits());
    let spans = [plain(&op.freqs)?, plain(&op.batch.words)?, plain(&op.x)?];
    each_value_u32(Source::new("rope"), desc.n_rows * n_head * n_pairs, &spans, &numbers, out)
}
