//! The lightning indexer of sparse attention: keys of blocks of positions, their scores, and the
//! selection of the best.

use hal::op::{BlockList, LightningIndexer, ListBlocks, PoolKeys};
use hal::{Batch, Bytes, KV_BLOCK, Operand, Plan, Result, Tensor, TensorDesc};
use lower::Scratch;

use super::cache::{HalfLayout, VECTOR, refusal, row_words};
use super::elementwise::{each_value, plan_bindings};
use crate::buffer::{Span, plain};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Heads whose products an invocation computes at once.
const HEADS: usize = 8;

/// Maximum number of values of a head (`MAX_PIECES` in `index_scores.wgsl`).
const MAX_D_HEAD: usize = 128;

/// Number of workgroups that keeps any device busy.
const MANY_GROUPS: usize = 1024;

/// Maximum number of scores in the workspace, unless those of a single token are more.
const MAX_SCORES: usize = 16 << 20;

pub(super) fn plan(op: &LightningIndexer<TensorDesc>, facts: &Facts) -> Plan {
    let d_head = op.cache.k.n_cols;
    if d_head > MAX_D_HEAD {
        let reason =
            format!("the indexer's heads have {d_head} values; at most {MAX_D_HEAD} are supported");
        return Plan::No(reason);
    }
    let operands = [("q", &op.q), ("selected", &op.selected)];
    if let Some(reason) = refusal(&operands, &op.cache, facts) {
        return Plan::No(reason);
    }
    let mut scratch = Scratch::default();
    scratch.words(tokens_at_once(op, facts) * n_keys(op));
    if scratch.bytes() > facts.max_binding() {
        let [size, limit] = [scratch.bytes(), facts.max_binding()].map(Bytes);
        return Plan::No(format!(
            "the scores of a token take {size}; a binding covers at most {limit}"
        ));
    }
    Plan::Yes { workspace: Bytes(scratch.bytes()), slow: None }
}

/// Blocks of positions of a full block table.
fn n_keys<T: Operand>(op: &LightningIndexer<T>) -> usize {
    (op.batch.shape.max_blocks * KV_BLOCK).div_ceil(op.pool)
}

/// Tokens whose scores are in the workspace together.
fn tokens_at_once<T: Operand>(op: &LightningIndexer<T>, facts: &Facts) -> usize {
    let most = usize::try_from(facts.max_binding() / 4).unwrap_or(usize::MAX).min(MAX_SCORES);
    (most / n_keys(op).max(1)).clamp(1, op.q.desc().n_rows.max(1))
}

pub(super) fn lower(op: &LightningIndexer<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (n_tokens, stride, row) = (op.q.desc().n_rows, n_keys(op), out.facts().tuning.row);
    let at_once = tokens_at_once(op, out.facts());
    let scores = Scratch::default().words(at_once * stride).span(out)?;
    let (keys, shape, batch) = (op.cache.k.desc(), &op.batch.shape, plain(&op.batch.words)?);
    let per_row = op.list.map_or(1, |_| op.pool.min(KV_BLOCK));
    let layout = HalfLayout::new(&op.cache.k, keys.n_cols)?;
    let scoring = score_source(layout).set("ROW", row);
    for first in (0..n_tokens).step_by(at_once) {
        let n = at_once.min(n_tokens - first);
        let n_shares = stride.div_ceil(row as usize).min(MANY_GROUPS.div_ceil(n));
        let numbers = [
            shape.max_tokens,
            shape.max_seqs,
            shape.max_blocks,
            n_tokens,
            first,
            op.n_head,
            keys.n_cols,
            row_words(&keys),
            op.top_k(),
            op.pool,
            per_row,
            stride,
            n_shares,
            usize::from(op.weights.is_some()),
        ];
        let [q, weights, k] =
            [plain(&op.q)?, out.plain_or_dummy(op.weights.as_ref())?, plain(&op.cache.k)?];
        let bound = [q, weights, k, batch.clone(), scores.clone()];
        let grid = out.facts().grid(n_shares * n);
        out.dispatch(&scoring, &bound, &numbers.map(|number| number as u32), grid)?;
        let blocks = Blocks {
            scores: scores.clone(),
            stride,
            batch: &op.batch,
            pool: op.pool,
            list: op.list,
        };
        select(&blocks, &op.selected, first, n, out)?;
    }
    Ok(())
}

/// Blocks to list.
struct Blocks<'a> {
    /// Rows of scores, one for each token from the first one on; unused if all blocks are listed.
    scores: Span,
    /// Scores per row.
    stride: usize,
    batch: &'a Batch<Tensor>,
    pool: usize,
    list: Option<BlockList>,
}

/// Lists the best blocks of `n` tokens from `first` on.
fn select(
    blocks: &Blocks<'_>,
    selected: &Tensor,
    first: usize,
    n: usize,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (desc, shape) = (selected.desc(), &blocks.batch.shape);
    let [window, first_row] = blocks.list.map_or([0, 0], |list| [list.window, list.first_row]);
    let numbers = [
        shape.max_tokens,
        shape.max_seqs,
        shape.max_blocks,
        desc.n_rows,
        first,
        desc.n_cols,
        blocks.pool,
        window,
        first_row,
        blocks.pool.min(KV_BLOCK),
        blocks.stride,
    ];
    let bound = [blocks.scores.clone(), plain(&blocks.batch.words)?, plain(selected)?];
    let source = Source::new("index_select").set("ROW", out.facts().tuning.row);
    let grid = out.facts().grid(n);
    out.dispatch(&source, &bound, &numbers.map(|number| number as u32), grid)
}

pub(super) fn plan_list(op: &ListBlocks<TensorDesc>, facts: &Facts) -> Plan {
    plan_bindings(&[("selected", &op.selected)], facts)
}

/// A list of all blocks is a selection that has room for all of them, so no score is needed.
pub(super) fn list_blocks(op: &ListBlocks<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let scores = out.plain_or_dummy(None)?;
    let blocks =
        Blocks { scores, stride: 0, batch: &op.batch, pool: op.ratio, list: Some(op.list) };
    select(&blocks, &op.selected, 0, op.selected.desc().n_rows, out)
}

fn score_source(layout: HalfLayout) -> Source {
    layout.include(Source::new("index_scores"), "k", "k_type").set("HEADS", HEADS)
}

pub(super) fn plan_pool(op: &PoolKeys<TensorDesc>, facts: &Facts) -> Plan {
    refusal(&[("y", &op.y)], &op.cache, facts).map_or_else(Plan::yes, Plan::No)
}

pub(super) fn lower_pool(op: &PoolKeys<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (y, keys, shape) = (op.y.desc(), op.cache.k.desc(), &op.batch.shape);
    let numbers = [
        shape.max_tokens,
        shape.max_seqs,
        shape.max_blocks,
        y.n_rows,
        y.n_cols,
        op.pool,
        row_words(&keys),
        usize::from(op.ape.is_some()),
    ];
    let ape = out.plain_or_dummy(op.ape.as_ref())?;
    let bound = [plain(&op.cache.k)?, ape, plain(&op.batch.words)?, plain(&op.y)?];
    let source = pool_source(HalfLayout::new(&op.cache.k, y.n_cols)?);
    each_value(source, y.n_rows * y.n_cols.div_ceil(VECTOR), &bound, &numbers, out)
}

fn pool_source(layout: HalfLayout) -> Source {
    layout.include(Source::new("pool_keys"), "k", "k_type")
}

#[cfg(test)]
mod tests {
    use hal::op::KV_FORMATS;

    use super::*;
    use crate::translate::{sizes, translate};

    #[test]
    fn shaders_of_every_cache_translate() {
        for [flat, row] in sizes() {
            for &format in KV_FORMATS {
                for (d, aligned) in [(128, true), (128, false), (30, false)] {
                    let layout = HalfLayout { format, d, aligned };
                    for source in [score_source(layout), pool_source(layout)] {
                        let source = source.set("ROW", row).set("FLAT", flat);
                        translate(&source, false)
                            .unwrap_or_else(|error| panic!("{format}: {error}"));
                    }
                }
            }
        }
    }
}
