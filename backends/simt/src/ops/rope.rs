//! Rotary positions.

use hal::op::{Pairing, Rope};
use hal::{Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::each;
use crate::buffer::plain;
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};

pub(crate) fn plan(_op: &Rope<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn lower(op: &Rope<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let desc = op.x.desc();
    let (n_head, n_pairs) = (desc.n_cols / op.d_head, op.n_rot / 2);
    let (step, other) = match op.pairing {
        Pairing::Adjacent => (2, 1),
        Pairing::Halves => (1, n_pairs),
    };
    let spans = [ptr(plain(&op.freqs)?), ptr(plain(&op.batch.words)?), ptr(plain(&op.x)?)];
    let sizes =
        [op.batch.shape.max_tokens, desc.n_rows, n_head, op.d_head, op.first, n_pairs, step, other];
    let mut args: Vec<Arg> = spans.into_iter().chain(sizes.map(word)).collect();
    args.push(Arg::F32(op.scale));
    each("rope", desc.n_rows * n_head * n_pairs, &args, out);
    Ok(())
}
