//! Lowering that GPU backends share: which neighbouring ops one launch computes (a method of [`Emit`]
//! each), and which results of a launch later launches reuse ([`EarlierResults`]). A launch costs
//! about as much as reading a few megabytes of weights, and a layer of a decode step has a dozen ops
//! that do very little work.
//!
//! This crate chooses, a backend emits: it implements [`Emit`] with its kernels or shaders, and
//! knows nothing of the sequences. Fusion does not change a bit of the results: a fused launch does
//! the arithmetic of its ops in their order.
//!
//! The parts of an op's plan that do not depend on an API are here as well: how attention is split
//! ([`AttentionSplit`]), which algorithm computes a feed-forward block ([`FfnAlgorithm`]), and how
//! both divide the workspace ([`Scratch`]).

mod attention;
mod earlier;
mod ffn;
mod matmul;
mod scratch;
mod step;

pub use attention::{AttentionRules, AttentionSplit};
pub use earlier::{EarlierResults, FusedWork, WordFill};
pub use ffn::{
    DROPPED, ExpertScratch, ExpertSizes, FEW_TOKENS, FewScratch, FfnAlgorithm, FfnCodes,
    ManyScratch, N_COUNTS, chunk_tokens, quantizes_h, quantizes_x,
};
pub use matmul::{
    head_products_scratch, products_scratch, quantized_x, refuse_heads_of_x, route_scratch,
};
pub use scratch::{Scratch, ScratchRange};
pub use step::{RopePairs, RopeStore, takes_q8};

use hal::op::{Attention, MatMul, Norm, SparseFfn};
use hal::{Op, Operand, Result, Tensor};
use step::{FusedNorm, NormReader, Step};

/// A backend that lowers programs to launches.
pub trait Emit: Sized {
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

    /// The span that stands for no memory.
    fn no_span(&self) -> Self::Span;

    /// Bytes `offset..offset + size` of the workspace that the op's plan requested. The contents
    /// are undefined, since all ops use the same workspace.
    ///
    /// # Errors
    /// A workspace that is smaller than planned.
    fn workspace(&self, offset: u64, size: u64) -> Result<Self::Span>;

    /// Says which weight the ops after the next step read first, and whole: while a short step runs, a
    /// backend may bring the beginning of the weight into a cache. `None` if that is not known.
    fn will_read(&mut self, _weight: Option<&Tensor>) {}

    /// What the launch before a feed-forward block can prepare for it: where the block expects x in
    /// Q8 blocks, and words to initialise.
    ///
    /// # Errors
    /// An operand that cannot be bound.
    fn before_ffn(&self, op: &SparseFfn<Tensor>) -> Result<FusedWork<'static, Self::Span>>;

    /// Adds the launch of a norm and of the work fused with it, which [`Emit::fuses_norm`] allowed.
    ///
    /// # Errors
    /// An operand that cannot be bound, errors of the driver.
    fn norm(&mut self, norm: &Norm<Tensor>, fused: &FusedWork<'_, Self::Span>) -> Result<()>;

    /// Adds the launches of attention. With `quantize`, the next op reads the result in Q8 blocks:
    /// returns where they are if the launches write them.
    ///
    /// # Errors
    /// As [`Emit::norm`].
    fn attention(&mut self, op: &Attention<Tensor>, quantize: bool) -> Result<Option<Self::Span>>;

    /// Adds the launch of RoPE of queries and keys and of the store of keys and values.
    ///
    /// # Errors
    /// As [`Emit::norm`].
    fn rope_store(&mut self, step: &RopeStore<'_>) -> Result<()>;

    /// Adds the launch of products of one token with two or three matrices of one format.
    ///
    /// # Errors
    /// As [`Emit::norm`].
    fn products(&mut self, ops: &[&MatMul<Tensor>]) -> Result<()>;

    /// Adds the launch that quantises `x` to Q8 blocks in `q`.
    ///
    /// # Errors
    /// As [`Emit::norm`].
    fn quantize(&mut self, x: &Tensor, q: &Self::Span) -> Result<()>;

    /// Adds the launches of an op alone.
    ///
    /// # Errors
    /// As [`Emit::norm`].
    fn single(&mut self, op: &Op) -> Result<()>;

    /// The results of earlier launches.
    fn earlier(&mut self) -> &mut EarlierResults<Self::Span>;
}

/// Lowers the first of `ops`, which the backend's plan accepted, together with the following ops
/// that can be fused with it; returns the number of lowered ops.
///
/// # Errors
/// An operand that cannot be bound, errors of the driver.
pub fn lower_first(ops: &[Op], out: &mut impl Emit) -> Result<usize> {
    let Some(step) = Step::first(ops, out)? else { return Ok(0) };
    out.will_read(step::next_weight(&ops[step.n_ops()..]));
    let results = emit(&step, out)?;
    let n = step.n_ops();
    for op in &ops[..n] {
        // Norms and products leave known contents in the workspace, and a router may leave alone
        // what is there. Other ops that use the workspace overwrite it, and a merge may begin a new
        // submission.
        let known = matches!(op, Op::MatMul(_) | Op::HeadMatMul(_) | Op::Norm(_))
            || matches!(op, Op::Route(op) if step::keeps_workspace(op));
        let keeps = known || (!matches!(op, Op::Merge(_)) && !out.uses_workspace(op));
        out.earlier().drop_stale(op, keeps);
    }
    if let Some(results) = results {
        *out.earlier() = results;
    }
    Ok(n)
}

/// Adds the launches of a step. Returns what they leave for the next ops; `None` if they leave
/// nothing new.
fn emit<E: Emit>(step: &Step<'_>, out: &mut E) -> Result<Option<EarlierResults<E::Span>>> {
    match step {
        Step::Norm(fused) => return lower_norm(fused, out),
        Step::Attention { op, quantize } => {
            let q = out.attention(op, *quantize)?;
            return Ok(Some(EarlierResults::new(&op.y, q, None)));
        }
        Step::RopeStore(step) => out.rope_store(step)?,
        Step::Products(ops) => out.products(ops)?,
        Step::Single(op) => out.single(op)?,
    }
    Ok(None)
}

/// Lowers a norm and the ops fused with it; returns the results that the norm leaves for the next
/// op.
fn lower_norm<E: Emit>(
    fused: &FusedNorm<'_>,
    out: &mut E,
) -> Result<Option<EarlierResults<E::Span>>> {
    let prepared = match fused.reader {
        NormReader::MatMul(op) => {
            let quantized = matmul::destination(op.w.desc().format, &op.x, out)?;
            FusedWork { quantized, ..FusedWork::default() }
        }
        NormReader::SparseFfn(op) => out.before_ffn(op)?,
        NormReader::Experts(op) => {
            let work = out.before_ffn(op)?;
            // The router's results are behind the counters.
            FusedWork { clear: work.clear.filter(|clear| clear.n <= N_COUNTS), ..work }
        }
        NormReader::Other => FusedWork::default(),
    };
    let work = FusedWork { add: fused.add.map(|add| &add.a), ..prepared };
    out.norm(fused.norm, &work)?;
    let initialised = work.clear.map(|clear| clear.span);
    Ok((work.quantized.is_some() || initialised.is_some())
        .then(|| EarlierResults::new(&fused.norm.y, work.quantized, initialised)))
}
