//! Fuses neighbouring ops into one launch: a launch costs about as much as reading a few megabytes
//! of weights, and a layer of a decode step has a dozen ops that do very little work.
//!
//! - `Add` and the `Norm` of its sum; a `Norm` and the quantisation of its result, if the next op
//!   reads Q8 blocks, and the initialisation of the scratch words of a following `SparseFfn`;
//! - `Attention` and the quantisation of its result;
//! - `Rope` of queries, `Rope` of keys and `StoreKv`;
//! - up to three `MatMul`s of one token.
//!
//! Values that were quantised for one op are reused by the next op that reads them. Fusion does not
//! change a bit of the results: the kernels do the same arithmetic in the same order.

use hal::op::{Add, MatMul, Norm};
use hal::{Bytes, Op, Operand, Plan, Result, Tensor};

use super::norm::{self, FusedWork};
use super::{attention, lower, plan, rope, weights};
use crate::buffer::{Span, plain};
use crate::lowering::{EarlierResults, Lowering};

/// Lowers the first of `ops`, which `plan` accepted, together with the following ops that can be
/// fused with it; returns the number of lowered ops.
///
/// # Errors
/// An operand that cannot be bound.
pub(crate) fn lower_first(ops: &[Op], out: &mut Lowering<'_>) -> Result<usize> {
    let mut results = None;
    let n = match ops {
        [Op::Add(add), Op::Norm(norm), rest @ ..] if norm_reads_sum(add, norm)? => {
            results = lower_norm(norm, Some(add), rest, out)?;
            2
        }
        [Op::Norm(norm), rest @ ..] => {
            results = lower_norm(norm, None, rest, out)?;
            1
        }
        [Op::Attention(op), rest @ ..] => {
            let y = plain(&op.y)?;
            let q = attention::lower(op, reads_quantized(rest, y)?, out)?;
            results = Some(EarlierResults { quantized: q.map(|q| (y, q)), initialised: None });
            1
        }
        [Op::Rope(q), Op::Rope(k), Op::StoreKv(store), ..] if rope::can_fuse(q, k, store)? => {
            rope::lower_with_store(q, k, store, out)?;
            3
        }
        [Op::MatMul(a), Op::MatMul(b), Op::MatMul(c), ..] if can_share_launch(&[a, b, c])? => {
            weights::lower_together(&[a, b, c], out)?;
            3
        }
        [Op::MatMul(a), Op::MatMul(b), ..] if can_share_launch(&[a, b])? => {
            weights::lower_together(&[a, b], out)?;
            2
        }
        [op, ..] => {
            lower(op, out)?;
            1
        }
        [] => 0,
    };
    ops[..n].iter().for_each(|op| drop_stale_results(op, out));
    if let Some(results) = results {
        *out.earlier() = results;
    }
    Ok(n)
}

/// Drops the results of earlier launches that `op` may have overwritten.
fn drop_stale_results(op: &Op, out: &mut Lowering<'_>) {
    // Norms and products leave known contents in the workspace. Other ops that use the workspace
    // overwrite them, and a merge may begin a new submission.
    let free = || matches!(plan(&op.to_desc(), out.facts()), Plan::Yes { workspace: Bytes(0), .. });
    let known = matches!(op, Op::MatMul(_) | Op::Norm(_));
    let keeps = known || (!matches!(op, Op::Merge(_)) && free());
    if !keeps {
        *out.earlier() = EarlierResults::default();
    }
    let Some((x, _)) = out.earlier().quantized else { return };
    let mut stale = false;
    op.visit(&mut |_, how, operand| {
        stale |= how.writes() && plain(operand).is_ok_and(|span| span.overlaps(x));
    });
    if stale {
        out.earlier().quantized = None;
    }
}

/// Whether `norm` reads the result of `add`, and the two can be fused.
fn norm_reads_sum(add: &Add<Tensor>, norm: &Norm<Tensor>) -> Result<bool> {
    Ok(plain(&add.x)? == plain(&norm.x)? && norm::is_wide(norm, Some(&add.a))?)
}

/// Lowers a norm and the ops fused with it; returns the results that the norm leaves for the next
/// op.
fn lower_norm(
    norm: &Norm<Tensor>,
    add: Option<&Add<Tensor>>,
    rest: &[Op],
    out: &mut Lowering<'_>,
) -> Result<Option<EarlierResults>> {
    let mut fused = FusedWork { add: add.map(|add| &add.a), ..FusedWork::default() };
    let y = plain(&norm.y)?;
    // A post may come first: it reads the norm's result and does not change it.
    let reader = rest.iter().find(|op| !matches!(op, Op::Post(_)));
    if norm::is_wide(norm, fused.add)? {
        match reader {
            Some(Op::MatMul(op)) if plain(&op.x)? == y => {
                fused.quantized = weights::quantized_for_matmul(op, out)?;
            }
            Some(Op::SparseFfn(op)) if plain(&op.x)? == y => {
                (fused.quantized, fused.clear) = weights::before_ffn(op, out)?;
            }
            Some(_) | None => {}
        }
    }
    norm::lower(norm, &fused, out)?;
    let quantized = fused.quantized.map(|q| (y, q));
    let initialised = fused.clear.map(|clear| clear.span);
    Ok((quantized.is_some() || initialised.is_some())
        .then_some(EarlierResults { quantized, initialised }))
}

/// Whether the next op is a product that reads `x` in Q8 blocks.
fn reads_quantized(rest: &[Op], x: Span) -> Result<bool> {
    match rest.first() {
        Some(Op::MatMul(op)) => Ok(plain(&op.x)? == x && weights::takes_q8(op.w.desc().format)),
        _ => Ok(false),
    }
}

/// Whether one kernel can compute all these products: they have one token, the same x, weights of
/// one format, and results that do not overlap.
fn can_share_launch(ops: &[&MatMul<Tensor>]) -> Result<bool> {
    let Some((first, others)) = ops.split_first() else { return Ok(false) };
    let (x, w) = (plain(&first.x)?, first.w.desc());
    let mut written = vec![plain(&first.y)?];
    for op in others {
        let y = plain(&op.y)?;
        let same = plain(&op.x)? == x && op.w.desc().format == w.format;
        let disjoint = !y.overlaps(x) && written.iter().all(|other| !other.overlaps(y));
        if !same || !disjoint {
            return Ok(false);
        }
        written.push(y);
    }
    Ok(first.x.desc().n_rows == 1)
}
