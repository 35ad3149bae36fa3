//! Lowering that GPU backends share: which neighbouring ops one launch computes ([`Step`]), and
//! which results of a launch later launches reuse ([`EarlierResults`]). A launch costs about as much
//! as reading a few megabytes of weights, and a layer of a decode step has a dozen ops that do very
//! little work.
//!
//! This crate chooses, a backend emits: it implements [`Emit`] with its kernels or shaders, and
//! knows nothing of the sequences. Fusion does not change a bit of the results: a fused launch does
//! the arithmetic of its ops in their order.

mod earlier;
mod step;

pub use earlier::EarlierResults;
pub use step::{FusedNorm, NormReader, RopeStore, Step, takes_q8};

use hal::op::{MatMul, Norm};
use hal::{Op, Result, Tensor};

/// A backend that lowers programs to launches.
pub trait Emit {
    /// A range of the backend's device memory.
    type Span: Clone + PartialEq;

    /// Whether the launch of a norm can also add `add` to its input before, quantise its result,
    /// and initialise the words that a feed-forward block expects.
    ///
    /// # Errors
    /// An operand that cannot be bound.
    fn fuses_norm(&self, norm: &Norm<Tensor>, add: Option<&Tensor>) -> Result<bool>;

    /// Whether one launch can store these keys and values head by head after RoPE.
    fn stores_heads(&self, step: &RopeStore<'_>) -> bool;

    /// Whether the weight can be one of several in a launch.
    ///
    /// # Errors
    /// An operand that cannot be bound.
    fn fuses_product(&self, op: &MatMul<Tensor>) -> Result<bool>;

    /// Whether the op uses the workspace that all ops share.
    fn uses_workspace(&self, op: &Op) -> bool;

    /// Adds the launches of a step. Returns what they leave for the next ops; `None` if they leave
    /// nothing new.
    ///
    /// # Errors
    /// An operand that cannot be bound, errors of the driver.
    fn emit(&mut self, step: &Step<'_>) -> Result<Option<EarlierResults<Self::Span>>>;

    /// The results of earlier launches.
    fn earlier(&mut self) -> &mut EarlierResults<Self::Span>;
}

/// Lowers the first of `ops`, which the backend's plan accepted, together with the following ops
/// that can be fused with it; returns the number of lowered ops.
///
/// # Errors
/// See [`Emit::emit`].
pub fn lower_first(ops: &[Op], out: &mut impl Emit) -> Result<usize> {
    let Some(step) = Step::first(ops, out)? else { return Ok(0) };
    let results = out.emit(&step)?;
    let n = step.n_ops();
    for op in &ops[..n] {
        // Norms and products leave known contents in the workspace. Other ops that use the
        // workspace overwrite them, and a merge may begin a new submission.
        let known = matches!(op, Op::MatMul(_) | Op::Norm(_));
        let keeps = known || (!matches!(op, Op::Merge(_)) && !out.uses_workspace(op));
        out.earlier().drop_stale(op, keeps);
    }
    if let Some(results) = results {
        *out.earlier() = results;
    }
    Ok(n)
}
