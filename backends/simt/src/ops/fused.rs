//! Emits the steps that `lower` chooses: what this backend's kernels can fuse, and the launches of
//! each step.

use hal::op::{Attention, MatMul, Norm, SparseFfn};
use hal::{Bytes, Op, Operand, Plan, Result, Tensor};
use lower::{EarlierResults, Emit, FusedWork, RopeStore};

use super::{attention, norm, plan, rope, weights};
use crate::buffer::{Span, plain};
use crate::error::failure;
use crate::lowering::Lowering;

impl Emit for Lowering<'_> {
    type Span = Span;

    fn fuses_norm(&self, norm: &Norm<Tensor>, add: Option<&Tensor>) -> Result<bool> {
        norm::is_wide(norm, add)
    }

    fn stores_heads(&self, step: &RopeStore<'_>) -> bool {
        rope::stores_heads(step)
    }

    fn fuses_product(&self, _op: &MatMul<Tensor>) -> Result<bool> {
        Ok(true)
    }

    fn uses_workspace(&self, op: &Op) -> bool {
        !matches!(plan(&op.to_desc(), self.facts()), Plan::Yes { workspace: Bytes(0), .. })
    }

    fn no_span(&self) -> Span {
        Span::NONE
    }

    fn workspace(&self, offset: u64, size: u64) -> Result<Span> {
        match self.whole_workspace()? {
            Some(whole) if offset + size <= whole.size => Ok(whole.part(offset, size)),
            _ => Err(failure("compile", "the workspace is smaller than planned")),
        }
    }

    fn will_read(&mut self, weight: Option<&Tensor>) {
        self.set_next_weight(weight.and_then(weights::memory));
    }

    fn before_ffn(&self, op: &SparseFfn<Tensor>) -> Result<FusedWork<'static, Span>> {
        weights::before_ffn(op, self)
    }

    fn norm(&mut self, norm: &Norm<Tensor>, fused: &FusedWork<'_, Span>) -> Result<()> {
        norm::lower(norm, fused, self)
    }

    fn attention(&mut self, op: &Attention<Tensor>, quantize: bool) -> Result<Option<Span>> {
        attention::lower(op, quantize, self)
    }

    fn rope_store(&mut self, step: &RopeStore<'_>) -> Result<()> {
        rope::lower_with_store(step, self)
    }

    fn products(&mut self, ops: &[&MatMul<Tensor>]) -> Result<()> {
        weights::lower_together(ops, self)
    }

    fn quantize(&mut self, x: &Tensor, q: &Span) -> Result<()> {
        let desc = x.desc();
        weights::quantize(plain(x)?, desc.n_rows * desc.n_cols, *q, None, self);
        Ok(())
    }

    fn single(&mut self, op: &Op) -> Result<()> {
        super::lower(op, self)
    }

    fn earlier(&mut self) -> &mut EarlierResults<Span> {
        Lowering::earlier(self)
    }
}
