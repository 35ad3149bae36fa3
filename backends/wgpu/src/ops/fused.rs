//! Emits the steps that `lower` chooses: what this backend's shaders can fuse, and the dispatches of
//! each step.

use hal::op::{MatMul, Norm};
use hal::{Bytes, Op, Plan, Result, Tensor};
use lower::{EarlierResults, Emit, FusedNorm, NormReader, RopeStore, Step};

use super::norm::{self, FusedWork};
use super::{attention, plan, rope, weights};
use crate::buffer::Span;
use crate::lowering::Lowering;

impl Emit for Lowering<'_> {
    type Span = Span;

    fn fuses_norm(&self, norm: &Norm<Tensor>, _add: Option<&Tensor>) -> Result<bool> {
        Ok(norm::is_blocks(norm))
    }

    fn stores_heads(&self, step: &RopeStore<'_>) -> bool {
        rope::stores_heads(step)
    }

    fn fuses_product(&self, op: &MatMul<Tensor>) -> Result<bool> {
        weights::is_one_binding(&op.w, self)
    }

    fn uses_workspace(&self, op: &Op) -> bool {
        !matches!(plan(&op.to_desc(), self.facts()), Plan::Yes { workspace: Bytes(0), .. })
    }

    fn emit(&mut self, step: &Step<'_>) -> Result<Option<EarlierResults<Span>>> {
        match step {
            Step::Norm(fused) => return lower_norm(fused, self),
            Step::Attention { op, quantize } => {
                let q = attention::lower(op, *quantize, self)?;
                return Ok(Some(EarlierResults::new(&op.y, q, None)));
            }
            Step::RopeStore(step) => rope::lower_with_store(step, self)?,
            Step::Products(ops) => weights::lower_together(ops, self)?,
            Step::Single(op) => super::lower(op, self)?,
        }
        Ok(None)
    }

    fn earlier(&mut self) -> &mut EarlierResults<Span> {
        Lowering::earlier(self)
    }
}

/// Lowers a norm and the ops fused with it; returns the results that the norm leaves for the next
/// op.
fn lower_norm(
    fused: &FusedNorm<'_>,
    out: &mut Lowering<'_>,
) -> Result<Option<EarlierResults<Span>>> {
    let add = fused.add.map(|add| &add.a);
    let mut work = FusedWork { add, ..FusedWork::default() };
    match fused.reader {
        NormReader::MatMul(op) => work.quantized = weights::quantized_for_matmul(op, out)?,
        NormReader::SparseFfn(op) => (work.quantized, work.clear) = weights::before_ffn(op, out)?,
        NormReader::Other => {}
    }
    norm::lower(fused.norm, &work, out)?;
    let initialised = work.clear.map(|clear| clear.span);
    Ok((work.quantized.is_some() || initialised.is_some())
        .then(|| EarlierResults::new(&fused.norm.y, work.quantized, initialised)))
}
