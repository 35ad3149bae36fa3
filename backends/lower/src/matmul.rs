//! The activations of products, and the scratch memory of products.

use hal::format::{Format, Q8_BLOCK};
use hal::op::HeadMatMul;
use hal::{Operand, Result, Tensor, TensorDesc};

use crate::ffn::N_COUNTS;
use crate::scratch::{Scratch, ScratchRange};
use crate::{Emit, takes_q8};

/// Scratch memory of products of `n_tokens` with a weight: x in Q8 blocks, if the weight reads it
/// so. It begins at the beginning of `scratch`.
pub fn products_scratch(w: &TensorDesc, n_tokens: usize, scratch: &mut Scratch) -> ScratchRange {
    scratch.q8(if takes_q8(w.format) { n_tokens * w.n_cols } else { 0 })
}

/// Scratch memory of a router: its x in Q8 blocks, and the results of its products. They leave alone
/// what a norm before the router has prepared for the experts after it ([`crate::FewScratch`]): x in
/// Q8 blocks, and counters.
pub fn route_scratch(w: &TensorDesc, n_tokens: usize, scratch: &mut Scratch) -> [ScratchRange; 2] {
    let q8 = scratch.q8(n_tokens * w.n_cols);
    scratch.words(N_COUNTS);
    [q8, scratch.words(n_tokens * w.n_rows)]
}

/// Scratch memory of products per head: x in Q8 blocks, if the weight reads it so.
pub fn head_products_scratch(op: &HeadMatMul<TensorDesc>, scratch: &mut Scratch) -> ScratchRange {
    scratch.q8(if takes_q8(op.w.format) { op.x.n_rows * op.x.n_cols } else { 0 })
}

/// Why kernels cannot read the heads of x; `None` if they can. They read whole Q8 blocks, or four
/// aligned floats if the weight's rows have whole fours.
#[must_use]
pub fn refuse_heads_of_x(op: &HeadMatMul<TensorDesc>) -> Option<String> {
    let step = if takes_q8(op.w.format) {
        Q8_BLOCK
    } else if op.w.n_cols.is_multiple_of(4) {
        4
    } else {
        1
    };
    let n = op.x_step();
    (!n.is_multiple_of(step))
        .then(|| format!("heads of x have {n} values, not a multiple of {step}"))
}

/// Where a product expects its x in Q8 blocks; `None` if it reads F32. That is at the beginning of
/// the workspace, which `MatMul` and `HeadMatMul` use for nothing else.
///
/// # Errors
/// A workspace that is smaller than planned.
pub(crate) fn destination<E: Emit>(w: Format, x: &Tensor, out: &E) -> Result<Option<E::Span>> {
    if !takes_q8(w) {
        return Ok(None);
    }
    let n_values = x.desc().n_rows * x.desc().n_cols;
    Scratch::default().q8(n_values).span(out).map(Some)
}

/// The x of a product with a weight in this format in Q8 blocks, quantised unless an earlier launch
/// left it so; `None` if the product reads F32.
///
/// # Errors
/// An operand that cannot be bound, errors of the driver.
pub fn quantized_x<E: Emit>(w: Format, x: &Tensor, out: &mut E) -> Result<Option<E::Span>> {
    let Some(q) = destination(w, x, out)? else { return Ok(None) };
    if let Some(earlier) = out.earlier().quantized(x) {
        return Ok(Some(earlier));
    }
    out.quantize(x, &q)?;
    out.earlier().set_quantized(x, q.clone());
    Ok(Some(q))
}
