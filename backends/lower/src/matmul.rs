//! The activations of products, and the scratch memory of products.

use hal::op::MatMul;
use hal::{Operand, Result, Tensor, TensorDesc};

use crate::scratch::{Scratch, ScratchRange};
use crate::{Emit, takes_q8};

/// Scratch memory of products of `n_tokens` with a weight: x in Q8 blocks, if the weight reads it
/// so. It begins at the beginning of `scratch`.
pub fn products_scratch(w: &TensorDesc, n_tokens: usize, scratch: &mut Scratch) -> ScratchRange {
    scratch.q8(if takes_q8(w.format) { n_tokens * w.n_cols } else { 0 })
}

/// Scratch memory of a router: that of its products, then their results.
pub fn route_scratch(w: &TensorDesc, n_tokens: usize, scratch: &mut Scratch) -> [ScratchRange; 2] {
    [products_scratch(w, n_tokens, scratch), scratch.words(n_tokens * w.n_rows)]
}

/// Where a product expects its x in Q8 blocks; `None` if it reads F32. That is at the beginning of
/// the workspace, which `MatMul` uses for nothing else.
///
/// # Errors
/// A workspace that is smaller than planned.
pub(crate) fn destination<E: Emit>(op: &MatMul<Tensor>, out: &E) -> Result<Option<E::Span>> {
    if !takes_q8(op.w.desc().format) {
        return Ok(None);
    }
    products_scratch(&op.w.desc(), op.x.desc().n_rows, &mut Scratch::default()).span(out).map(Some)
}

/// The x of a product in Q8 blocks, quantised unless an earlier launch left it so; `None` if the
/// product reads F32.
///
/// # Errors
/// An operand that cannot be bound, errors of the driver.
pub fn quantized_x<E: Emit>(op: &MatMul<Tensor>, out: &mut E) -> Result<Option<E::Span>> {
    let Some(q) = destination(op, out)? else { return Ok(None) };
    if let Some(earlier) = out.earlier().quantized(&op.x) {
        return Ok(Some(earlier));
    }
    out.quantize(&op.x, &q)?;
    out.earlier().set_quantized(&op.x, q.clone());
    Ok(Some(q))
}
