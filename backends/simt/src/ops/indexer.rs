//! The lightning indexer of sparse attention: keys of blocks of positions, their scores, and the
//! selection of the best.

use hal::op::{BlockList, LightningIndexer, ListBlocks, PoolKeys};
use hal::{Batch, Bytes, KV_BLOCK, Operand, Plan, Result, Tensor, TensorDesc};
use lower::Scratch;

use super::attention::{is_wide, row_words};
use crate::buffer::{Span, plain};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::{Unit, cache_format};

/// Threads per block of both kernels, and keys per tile of the first (`index_scores.cu`).
const SCORE_THREADS: u32 = 128;
const SELECT_THREADS: u32 = 256;
const KEYS: usize = 64;

/// Threads per block of `pool_keys.cu`.
const POOL_THREADS: u32 = 64;

/// Maximum number of values of a head (`MOST` in `index_scores.cu`).
const MAX_D_HEAD: usize = 128;

/// Number of blocks that keeps any device busy.
const MANY_BLOCKS: usize = 1024;

/// Maximum number of scores in the workspace, unless those of a single token are more.
const MAX_SCORES: usize = 16 << 20;

pub(crate) fn plan(op: &LightningIndexer<TensorDesc>, _facts: &Facts) -> Plan {
    let d_head = op.cache.k.n_cols;
    if d_head > MAX_D_HEAD {
        let reason =
            format!("the indexer's heads have {d_head} values; at most {MAX_D_HEAD} are supported");
        return Plan::No(reason);
    }
    let mut scratch = Scratch::default();
    scratch.words(tokens_at_once(op) * n_keys(op));
    Plan::Yes { workspace: Bytes(scratch.bytes()), slow: None }
}

/// Blocks of positions of a full block table.
fn n_keys<T: Operand>(op: &LightningIndexer<T>) -> usize {
    (op.batch.shape.max_blocks * KV_BLOCK).div_ceil(op.pool)
}

/// Tokens whose scores are in the workspace together.
fn tokens_at_once<T: Operand>(op: &LightningIndexer<T>) -> usize {
    (MAX_SCORES / n_keys(op).max(1)).clamp(1, op.q.desc().n_rows.max(1))
}

pub(crate) fn lower(op: &LightningIndexer<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (n_tokens, at_once, stride) = (op.q.desc().n_rows, tokens_at_once(op), n_keys(op));
    let scores = Scratch::default().words(at_once * stride).span(out)?;
    let keys = op.cache.k.desc();
    let (d_head, shape) = (keys.n_cols, &op.batch.shape);
    let wide = is_wide(plain(&op.cache.k)?, 4 * row_words(&keys), d_head);
    for first in (0..n_tokens).step_by(at_once) {
        let n = at_once.min(n_tokens - first);
        let args = [
            ptr(plain(&op.q)?),
            ptr(out.plain_or_null(op.weights.as_ref())?),
            ptr(plain(&op.cache.k)?),
            ptr(plain(&op.batch.words)?),
            ptr(scores),
            word(shape.max_tokens),
            word(shape.max_seqs),
            word(shape.max_blocks),
            word(n_tokens),
            word(first),
            word(op.n_head),
            word(d_head),
            word(row_words(&keys)),
            word(op.top_k()),
            word(op.pool),
            Arg::U32(u32::from(op.list.is_some())),
            word(stride),
            Arg::U32(u32::from(wide)),
            Arg::U32(cache_format(keys.format)),
        ];
        let unit = Unit::cache("index_scores", keys.format, keys.format);
        let tiles = stride.div_ceil(KEYS).min(MANY_BLOCKS.div_ceil(n));
        out.launch(unit, "index_scores", [tiles, n, 1], SCORE_THREADS, &args);
        let blocks = Blocks { scores, stride, batch: &op.batch, pool: op.pool, list: op.list };
        select(&blocks, &op.selected, first, n, out)?;
    }
    Ok(())
}

/// Blocks to list.
struct Blocks<'a> {
    /// Rows of scores, one for each token from the first one on; none if all blocks are listed.
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
    let args = [
        ptr(blocks.scores),
        ptr(plain(&blocks.batch.words)?),
        ptr(plain(selected)?),
        word(shape.max_tokens),
        word(shape.max_seqs),
        word(shape.max_blocks),
        word(desc.n_rows),
        word(first),
        word(desc.n_cols),
        word(blocks.pool),
        word(window),
        word(first_row),
        word(blocks.stride),
    ];
    out.launch(Unit::plain("index_select"), "index_select", [n, 1, 1], SELECT_THREADS, &args);
    Ok(())
}

/// A list of all blocks is a selection that has room for all of them, so no score is needed.
pub(crate) fn list_blocks(op: &ListBlocks<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let blocks = Blocks {
        scores: Span::NONE,
        stride: 0,
        batch: &op.batch,
        pool: op.ratio,
        list: Some(op.list),
    };
    select(&blocks, &op.selected, 0, op.selected.desc().n_rows, out)
}

pub(crate) fn plan_pool(_op: &PoolKeys<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn lower_pool(op: &PoolKeys<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (y, keys, shape) = (op.y.desc(), op.cache.k.desc(), &op.batch.shape);
    let wide = is_wide(plain(&op.cache.k)?, 4 * row_words(&keys), y.n_cols);
    let args = [
        ptr(plain(&op.cache.k)?),
        ptr(out.plain_or_null(op.ape.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.y)?),
        word(shape.max_tokens),
        word(shape.max_seqs),
        word(shape.max_blocks),
        word(y.n_rows),
        word(y.n_cols),
        word(op.pool),
        word(row_words(&keys)),
        Arg::U32(u32::from(wide)),
        Arg::U32(cache_format(keys.format)),
    ];
    let unit = Unit::cache("pool_keys", keys.format, keys.format);
    out.launch(unit, "pool_keys", [y.n_rows, 1, 1], POOL_THREADS, &args);
    Ok(())
}
