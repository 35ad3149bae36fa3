//! The paged KV cache, and attention over it.
//!
//! Positions are split into chunks, and chunks are dealt to spans round robin. A block computes one
//! span, and a second kernel merges the spans in order. The number of spans depends on shapes
//! alone, not on the data of a step. Up to [`FEW`] tokens, a block processes one token and heads
//! that share a key head. With more tokens a block processes a tile of tokens, and positions are
//! split into several spans only if there are few tiles.

use hal::op::{Attention, StoreKv, Window};
use hal::{Bytes, KV_BLOCK, Operand, Plan, Result, Tensor, TensorDesc};

use crate::buffer::{Span, plain, plain_stride};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::{Unit, cache_format};

/// Up to this number of tokens, a token's result does not depend on the other tokens, bit for bit.
const FEW: usize = 16;

/// Number of blocks that keeps any device busy.
const MANY_BLOCKS: usize = 512;

/// Maximum number of spans (`attention_merge.cu`).
const MAX_SPANS: usize = 64;
/// Maximum number of spans for tiles of tokens, which do more work per span.
const MAX_SPANS_OF_TILES: usize = 16;

/// Positions per chunk (`lib/attention.cuh`).
const CHUNK: usize = 64;
/// Values that a thread loads at once (`PIECE` in `lib/attention.cuh`).
const VECTOR: usize = 8;

/// Ranges of the workspace begin at multiples of this many bytes.
const ALIGN: u64 = 256;

/// Threads per block with one token, and with a tile of tokens.
const FEW_THREADS: u32 = 128;
const TILE_THREADS: u32 = 256;
/// Rows of a tile: tokens times heads.
const TILE_ROWS: usize = 64;

/// Threads per block of the store kernel and of the merge kernel.
const STORE_THREADS: u32 = 256;
const MERGE_THREADS: u32 = 256;

/// Maximum number of heads per block, and of lanes that share a row.
const MAX_HEADS: usize = 8;
const MAX_LANES: usize = 32;

/// Maximum number of values per key head, so that the queries fit in shared memory.
const MAX_D_HEAD: usize = 1024;

pub(crate) fn plan_store(_op: &StoreKv<TensorDesc>, _facts: &Facts) -> Plan {
    Plan::yes()
}

pub(crate) fn lower_store(op: &StoreKv<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (k, v) = (op.k.desc(), op.v.desc());
    let halves = op.cache.map(&mut |half| half.desc());
    let blocks =
        |cached: &TensorDesc| (k.n_rows * store_threads(cached)).div_ceil(STORE_THREADS as usize);
    let (k_blocks, v_blocks) = (blocks(&halves.k), blocks(&halves.v));
    let args = [
        ptr(plain(&op.k)?),
        ptr(plain(&op.v)?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(&op.cache.v)?),
        word(op.batch.shape.max_tokens),
        word(k.n_rows),
        word(k.n_cols),
        word(v.n_cols),
        word(row_words(&halves.k)),
        word(row_words(&halves.v)),
        word(halves.k.n_rows),
        word(k_blocks),
        Arg::U32(cache_format(halves.k.format)),
        Arg::U32(cache_format(halves.v.format)),
    ];
    let unit = Unit::cache("store_kv", halves.k.format, halves.v.format);
    out.launch(unit, "store_kv", [k_blocks + v_blocks, 1, 1], STORE_THREADS, &args);
    Ok(())
}

/// Threads that store a row (`threads` in `cache/`): one per word, or one per value if 32 values
/// share a scale.
fn store_threads(cached: &TensorDesc) -> usize {
    match cached.format.block_values() {
        1 => row_words(cached),
        _ => cached.n_cols,
    }
}

pub(super) fn row_words(desc: &TensorDesc) -> usize {
    (plain_stride(desc).unwrap_or_default() / 4) as usize
}

/// How an op is split into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    n_tokens: usize,
    n_head: usize,
    n_head_kv: usize,
    d_head: usize,
    d_value: usize,
    /// Heads per block.
    heads: usize,
    /// Value columns per block.
    cols: usize,
    n_spans: usize,
}

impl Split {
    fn new<T: Operand>(op: &Attention<T>) -> Split {
        let (q, y) = (op.q.desc(), op.y.desc());
        let [d_head, d_value] = [q, y].map(|desc| desc.n_cols / op.n_head);
        let heads = (op.n_head / op.n_head_kv).next_power_of_two().min(MAX_HEADS);
        let cols = if q.n_rows <= FEW {
            VECTOR * lanes(d_value)
        } else {
            d_value.next_power_of_two().clamp(64, 256)
        };
        let (n_head, n_head_kv) = (op.n_head, op.n_head_kv);
        let split = Split {
            n_tokens: q.n_rows,
            n_head,
            n_head_kv,
            d_head,
            d_value,
            heads,
            cols,
            n_spans: 1,
        };
        // Up to `FEW` tokens, the number of spans must not depend on the number of tokens.
        let (n_tiles, max_spans) = if q.n_rows <= FEW {
            (1, MAX_SPANS)
        } else {
            (q.n_rows.div_ceil(TILE_ROWS / heads), MAX_SPANS_OF_TILES)
        };
        let n_chunks = (op.batch.shape.max_blocks * KV_BLOCK).div_ceil(CHUNK).max(1);
        let wanted = MANY_BLOCKS.div_ceil((n_tiles * split.n_head_blocks()).max(1));
        Split { n_spans: wanted.min(n_chunks).min(max_spans), ..split }
    }

    /// Blocks per span and tile of tokens: tiles of heads times tiles of value columns.
    fn n_head_blocks(&self) -> usize {
        let tiles = (self.n_head / self.n_head_kv).div_ceil(self.heads);
        self.n_head_kv * tiles * self.d_value.div_ceil(self.cols)
    }

    /// Whether a second kernel merges spans.
    fn is_merged(&self) -> bool {
        self.n_tokens <= FEW || self.n_spans > 1
    }

    /// Bytes of the result in Q8 blocks for the next op. 0 in prefill, where fewer launches save
    /// little, and 0 if heads are not whole blocks.
    fn quantized_size(&self) -> u64 {
        if self.n_tokens <= FEW && self.d_value.is_multiple_of(32) {
            48 * (self.n_tokens * self.n_head * self.d_value / 32) as u64
        } else {
            0
        }
    }

    /// Bytes of the partial results of all spans.
    fn partials_size(&self) -> u64 {
        let n_partials =
            if self.is_merged() { self.n_tokens * self.n_head * self.n_spans } else { 0 };
        4 * (n_partials * (self.d_value + 2)) as u64
    }
}

/// Lanes that share a head of `d` values.
fn lanes(d: usize) -> usize {
    d.div_ceil(VECTOR).next_power_of_two().min(MAX_LANES)
}

pub(crate) fn plan(op: &Attention<TensorDesc>, _facts: &Facts) -> Plan {
    let split = Split::new(op);
    if split.d_head > MAX_D_HEAD {
        return Plan::No(format!(
            "key heads have {} values; at most {MAX_D_HEAD} are supported",
            split.d_head
        ));
    }
    let size = split.partials_size().next_multiple_of(ALIGN) + split.quantized_size();
    Plan::Yes { workspace: Bytes(size), slow: None }
}

/// Whether heads of `d` values are aligned for loads of [`VECTOR`] values.
fn is_wide(span: Span, row_bytes: usize, d: usize) -> bool {
    span.at.is_multiple_of(16) && row_bytes.is_multiple_of(16) && d.is_multiple_of(VECTOR)
}

/// Bits 0 to 2: whether keys, values and queries are aligned (`wide` in `lib/attention.cuh`).
fn alignment_bits(op: &Attention<Tensor>, split: &Split) -> Result<Arg> {
    let half = |half: &Tensor, d| -> Result<bool> {
        Ok(is_wide(plain(half)?, 4 * row_words(&half.desc()), d))
    };
    let [k, v] = [half(&op.cache.k, split.d_head)?, half(&op.cache.v, split.d_value)?];
    let q = is_wide(plain(&op.q)?, 4 * op.q.desc().n_cols, split.d_head);
    Ok(Arg::U32(u32::from(k) | u32::from(v) << 1 | u32::from(q) << 2))
}

/// With `quantize`, also writes the result in Q8 blocks if the heads are whole blocks, and returns
/// the location of the blocks.
pub(crate) fn lower(
    op: &Attention<Tensor>,
    quantize: bool,
    out: &mut Lowering<'_>,
) -> Result<Option<Span>> {
    let split = Split::new(op);
    if split.n_tokens == 0 || split.d_value == 0 {
        return Ok(None);
    }
    let partials =
        if split.is_merged() { out.workspace(0, split.partials_size())? } else { Span::NONE };
    if split.n_tokens <= FEW {
        lower_few(op, &split, partials, out)?;
    } else {
        lower_many(op, &split, partials, out)?;
    }
    let quantized = match split.quantized_size() {
        size if quantize && size > 0 => {
            Some(out.workspace(split.partials_size().next_multiple_of(ALIGN), size)?)
        }
        _ => None,
    };
    if split.is_merged() {
        merge(op, &split, partials, quantized, out)?;
    }
    Ok(quantized)
}

/// The arguments that both kernels take after their pointers: sizes of the cache and the batch, and
/// how to read the cache.
fn sizes(
    op: &Attention<Tensor>,
    split: &Split,
    between: &[usize],
    last: &[usize],
) -> Result<Vec<Arg>> {
    let shape = &op.batch.shape;
    let first = [
        shape.max_tokens,
        shape.max_seqs,
        shape.max_blocks,
        split.n_tokens,
        split.n_head,
        split.n_head_kv,
    ];
    let heads =
        [split.d_head, split.d_value, row_words(&op.cache.k.desc()), row_words(&op.cache.v.desc())];
    let numbers = [&first[..], between, &heads, last, &[split.n_spans]].concat();
    let mut args: Vec<Arg> = numbers.into_iter().map(word).collect();
    args.extend([
        Arg::U32(Window::word(op.window)),
        Arg::F32(op.scale),
        Arg::F32(op.softcap),
        alignment_bits(op, split)?,
    ]);
    args.extend([&op.cache.k, &op.cache.v].map(|half| Arg::U32(cache_format(half.desc().format))));
    Ok(args)
}

fn lower_few(
    op: &Attention<Tensor>,
    split: &Split,
    partials: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (lanes_k, lanes_v) = (lanes(split.d_head), lanes(split.d_value));
    let mut args = vec![
        ptr(plain(&op.q)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(&op.cache.v)?),
        ptr(plain(&op.batch.words)?),
        ptr(out.plain_or_null(op.slopes.as_ref())?),
        ptr(partials),
    ];
    args.extend(sizes(op, split, &[], &[lanes_k, lanes_v])?);
    let kernel = match split.heads {
        1 => "attention_1",
        2 => "attention_2",
        4 => "attention_4",
        _ => "attention_8",
    };
    // Shared memory holds queries and scores, and later the partial results of each 32 threads.
    let queries = VECTOR * split.d_head.div_ceil(VECTOR);
    let waves = FEW_THREADS as usize / 32 * VECTOR * lanes_v;
    let shared = 4 * split.heads * (queries + CHUNK).max(waves);
    let grid = [split.n_spans, split.n_head_blocks(), split.n_tokens];
    out.launch_shared(unit("attention", op), kernel, grid, FEW_THREADS, shared as u32, &args);
    Ok(())
}

fn lower_many(
    op: &Attention<Tensor>,
    split: &Split,
    partials: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mut args = vec![
        ptr(plain(&op.q)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(&op.cache.v)?),
        ptr(plain(&op.batch.words)?),
        ptr(out.plain_or_null(op.slopes.as_ref())?),
        ptr(out.plain_or_null(op.sinks.as_ref())?),
        ptr(partials),
        ptr(plain(&op.y)?),
    ];
    args.extend(sizes(op, split, &[split.heads.trailing_zeros() as usize], &[])?);
    let kernel = match split.cols {
        64 => "attention_64",
        128 => "attention_128",
        _ => "attention_256",
    };
    let grid =
        [split.n_spans, split.n_head_blocks(), split.n_tokens.div_ceil(TILE_ROWS / split.heads)];
    out.launch(unit("attention_many", op), kernel, grid, TILE_THREADS, &args);
    Ok(())
}

fn unit(file: &str, op: &Attention<Tensor>) -> Unit {
    Unit::cache(file, op.cache.k.desc().format, op.cache.v.desc().format)
}

fn merge(
    op: &Attention<Tensor>,
    split: &Split,
    partials: Span,
    quantized: Option<Span>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let args = [
        ptr(partials),
        ptr(out.plain_or_null(op.sinks.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.y)?),
        ptr(quantized.unwrap_or(Span::NONE)),
        word(op.batch.shape.max_tokens),
        word(split.n_tokens),
        word(split.n_head),
        word(split.d_value),
        word(split.n_spans),
        Arg::U32(Window::word(op.window)),
        word(split.d_value.next_power_of_two().clamp(32, MERGE_THREADS as usize)),
    ];
    let grid = [split.n_head, split.n_tokens, 1];
    out.launch(Unit::plain("attention_merge"), "attention_merge", grid, MERGE_THREADS, &args);
    Ok(())
}

#[cfg(test)]
mod tests {
    use hal::format::Format;
    use hal::{Batch, BatchShape, KvCache};

    use super::*;

    fn op(n_tokens: usize, max_blocks: usize) -> Attention<TensorDesc> {
        let desc = |n_rows, n_cols| TensorDesc::new(n_rows, n_cols, Format::F32);
        let shape = BatchShape { max_tokens: 64, max_seqs: 1, max_blocks };
        Attention {
            q: desc(n_tokens, 32 * 128),
            cache: KvCache::both(desc(32 * max_blocks, 8 * 128)),
            batch: Batch { words: desc(1, shape.n_words()), shape },
            slopes: None,
            sinks: None,
            y: desc(n_tokens, 32 * 128),
            n_head: 32,
            n_head_kv: 8,
            scale: 1.0,
            window: None,
            softcap: 0.0,
        }
    }

    #[test]
    fn spans_do_not_depend_on_the_tokens_of_a_step() {
        for max_blocks in [1, 7, 100, 40_000] {
            let [one, few, many] = [1, FEW, FEW + 1].map(|n| Split::new(&op(n, max_blocks)));
            assert_eq!(Split { n_tokens: FEW, ..one }, few);
            assert!(one.n_spans <= (max_blocks * KV_BLOCK).div_ceil(CHUNK));
            assert!(many.n_spans <= MAX_SPANS_OF_TILES);
        }
        assert_eq!(Split::new(&op(1, 40_000)).n_spans, MAX_SPANS);
        let many = Split::new(&op(4096, 40_000));
        assert_eq!((many.partials_size(), many.quantized_size()), (0, 0));
    }
}
