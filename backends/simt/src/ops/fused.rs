//! Fuses neighbouring ops into one launch: a launch costs about as much as reading a few megabytes
//! of weights, and a layer of a decode step has a dozen ops that do very little work.
//!
//! - `Add` and the `Norm` of its sum; a `Norm` and the quantisation of its result, if the next op
//!   takes it quantised, and the initialisation of the words of a following `SparseFfn`;
//! - `Attention` and the quantisation of its result;
//! - `Rope` of queries, `Rope` of keys and `StoreKv`;
//! - products of one token with up to three matrices.
//!
//! Values that were quantised for one op are reused by the next op that takes them. Fusion changes
//! no bit: the kernels do the same arithmetic in the same order.

use hal::op::{Add, MatMul, Norm};
use hal::{Bytes, Op, Operand, Plan, Result, Tensor};

use super::norm::{self, FusedWork};
use super::{attention, lower, plan, rope, weights};
use crate::buffer::{Span, plain};
use crate::lowering::{Ahead, Lowering};

/// Adds the launches of the first of `ops`, which `plan` accepted, and of the following ops that
/// are fused with it; returns their number, at least one.
///
/// # Errors
/// An operand that cannot be bound.
pub(crate) fn lower_first(ops: &[Op], out: &mut Lowering<'_>) -> Result<usize> {
    let mut ahead = None;
    let n = match ops {
        [Op::Add(add), Op::Norm(norm), rest @ ..] if sums_up(add, norm)? => {
            ahead = normed(norm, Some(add), rest, out)?;
            2
        }
        [Op::Norm(norm), rest @ ..] => {
            ahead = normed(norm, None, rest, out)?;
            1
        }
        [Op::Attention(op), rest @ ..] => {
            let y = plain(&op.y)?;
            let q = attention::lower(op, reads_rounded(rest, y)?, out)?;
            ahead = Some(Ahead { rounded: q.map(|q| (y, q)), cleared: None });
            1
        }
        [Op::Rope(q), Op::Rope(k), Op::StoreKv(store), ..] if rope::stores(q, k, store)? => {
            rope::lower_with_store(q, k, store, out)?;
            3
        }
        [Op::MatMul(a), Op::MatMul(b), Op::MatMul(c), ..] if beside(&[a, b, c])? => {
            weights::lower_beside(&[a, b, c], out)?;
            3
        }
        [Op::MatMul(a), Op::MatMul(b), ..] if beside(&[a, b])? => {
            weights::lower_beside(&[a, b], out)?;
            2
        }
        [op, ..] => {
            lower(op, out)?;
            1
        }
        [] => 0,
    };
    ops[..n].iter().for_each(|op| forget(op, out));
    if let Some(ahead) = ahead {
        *out.ahead() = ahead;
    }
    Ok(n)
}

/// Drops the results of earlier launches that `op` may have overwritten.
fn forget(op: &Op, out: &mut Lowering<'_>) {
    // Norms and products leave known contents in the workspace. Other ops that use workspace
    // overwrite it, and the answer to a merge may arrive in another submission.
    let free = || matches!(plan(&op.to_desc(), out.facts()), Plan::Yes { workspace: Bytes(0), .. });
    let known = matches!(op, Op::MatMul(_) | Op::Norm(_));
    let keeps = known || (!matches!(op, Op::Merge(_)) && free());
    if !keeps {
        *out.ahead() = Ahead::default();
    }
    let Some((x, _)) = out.ahead().rounded else { return };
    let mut stale = false;
    op.visit(&mut |_, how, operand| {
        stale |= how.writes() && plain(operand).is_ok_and(|span| span.overlaps(x));
    });
    if stale {
        out.ahead().rounded = None;
    }
}

/// Whether `norm` reads the result of `add`.
fn sums_up(add: &Add<Tensor>, norm: &Norm<Tensor>) -> Result<bool> {
    Ok(plain(&add.x)? == plain(&norm.x)? && norm::is_wide(norm, Some(&add.a))?)
}

/// A norm with the ops fused with it; returns the results that it leaves for the next op.
fn normed(
    norm: &Norm<Tensor>,
    add: Option<&Add<Tensor>>,
    rest: &[Op],
    out: &mut Lowering<'_>,
) -> Result<Option<Ahead>> {
    let mut fused = FusedWork { add: add.map(|add| &add.a), ..FusedWork::default() };
    let y = plain(&norm.y)?;
    // Posts read the result too, and change nothing here.
    let reader = rest.iter().find(|op| !matches!(op, Op::Post(_)));
    if norm::is_wide(norm, fused.add)? {
        match reader {
            Some(Op::MatMul(op)) if plain(&op.x)? == y => {
                fused.rounded = weights::rounded_for_matmul(op, out)?;
            }
            Some(Op::SparseFfn(op)) if plain(&op.x)? == y => {
                (fused.rounded, fused.clear) = weights::before_ffn(op, out)?;
            }
            Some(_) | None => {}
        }
    }
    norm::lower(norm, &fused, out)?;
    let rounded = fused.rounded.map(|q| (y, q));
    let cleared = fused.clear.map(|clear| clear.span);
    Ok((rounded.is_some() || cleared.is_some()).then_some(Ahead { rounded, cleared }))
}

/// Whether the next op takes `x` in Q8 blocks.
fn reads_rounded(rest: &[Op], x: Span) -> Result<bool> {
    match rest.first() {
        Some(Op::MatMul(op)) => Ok(plain(&op.x)? == x && weights::takes_q8(op.w.desc().format)),
        _ => Ok(false),
    }
}

/// Whether these products of one token can be computed by one kernel.
fn beside(all: &[&MatMul<Tensor>]) -> Result<bool> {
    let Some((first, others)) = all.split_first() else { return Ok(false) };
    let (x, w) = (plain(&first.x)?, first.w.desc());
    let mut written = vec![plain(&first.y)?];
    for op in others {
        let y = plain(&op.y)?;
        let same = plain(&op.x)? == x && op.w.desc().format == w.format;
        let free = !y.overlaps(x) && written.iter().all(|other| !other.overlaps(y));
        if !same || !free {
            return Ok(false);
        }
        written.push(y);
    }
    Ok(first.x.desc().n_rows == 1)
}
