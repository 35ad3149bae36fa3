//! The paged KV cache, and attention over it.

use hal::op::{Attention, StoreKv, Window};
use hal::{Bytes, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{AttentionRules, AttentionSplit, Emit, FEW_TOKENS};

use crate::buffer::{Span, plain, plain_stride};
use crate::driver::Arg;
use crate::facts::Facts;
use crate::lowering::{Lowering, ptr, word};
use crate::units::{Unit, cache_format};

/// Values that a thread loads at once (`PIECE` in `lib/attention.cuh`).
const VECTOR: usize = 8;

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
    let k = op.k.desc();
    let halves = op.cache.map(&mut |half| half.desc());
    let blocks =
        |cached: &TensorDesc| (k.n_rows * store_threads(cached)).div_ceil(STORE_THREADS as usize);
    let (k_blocks, v_blocks) = (blocks(&halves.k), halves.v.as_ref().map_or(0, blocks));
    let args = [
        ptr(plain(&op.k)?),
        ptr(out.plain_or_null(op.v.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(op.cache.values())?),
        word(op.batch.shape.max_tokens),
        word(k.n_rows),
        word(k.n_cols),
        word(op.v.as_ref().map_or(0, |v| v.desc().n_cols)),
        word(row_words(&halves.k)),
        word(row_words(halves.values())),
        word(halves.k.n_rows),
        word(k_blocks),
        Arg::U32(cache_format(halves.k.format)),
        Arg::U32(cache_format(halves.values().format)),
    ];
    let unit = Unit::cache("store_kv", halves.k.format, halves.values().format);
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

fn split<T: Operand>(op: &Attention<T>) -> AttentionSplit {
    let d_value = op.y.desc().n_cols / op.n_head;
    let cols = if op.q.desc().n_rows <= FEW_TOKENS || op.selected.is_some() {
        VECTOR * lanes(d_value)
    } else {
        d_value.next_power_of_two().clamp(64, 256)
    };
    let rules = AttentionRules { max_heads: MAX_HEADS, tile_rows: TILE_ROWS, cols };
    AttentionSplit::new(op, rules)
}

/// Whether a second kernel merges spans: always, unless a block processes a tile of tokens.
fn is_merged(split: &AttentionSplit) -> bool {
    split.tokens == 1 || split.n_spans > 1
}

/// Bytes of the partial results of all spans.
fn partials_size(split: &AttentionSplit) -> u64 {
    if is_merged(split) { split.partials_size() } else { 0 }
}

/// Lanes that share a head of `d` values.
fn lanes(d: usize) -> usize {
    d.div_ceil(VECTOR).next_power_of_two().min(MAX_LANES)
}

pub(crate) fn plan(op: &Attention<TensorDesc>, _facts: &Facts) -> Plan {
    let split = split(op);
    if split.d_head > MAX_D_HEAD {
        return Plan::No(format!(
            "key heads have {} values; at most {MAX_D_HEAD} are supported",
            split.d_head
        ));
    }
    let size = AttentionSplit::quantized_at(partials_size(&split)) + split.quantized_size();
    Plan::Yes { workspace: Bytes(size), slow: None }
}

/// Whether heads of `d` values are aligned for loads of [`VECTOR`] values.
pub(super) fn is_wide(span: Span, row_bytes: usize, d: usize) -> bool {
    span.at.is_multiple_of(16) && row_bytes.is_multiple_of(16) && d.is_multiple_of(VECTOR)
}

/// Bits 0 to 2: whether keys, values and queries are aligned (`wide` in `lib/attention.cuh`).
fn alignment_bits(op: &Attention<Tensor>, split: &AttentionSplit) -> Result<Arg> {
    let half = |half: &Tensor, d| -> Result<bool> {
        Ok(is_wide(plain(half)?, 4 * row_words(&half.desc()), d))
    };
    let [k, v] = [half(&op.cache.k, split.d_head)?, half(op.cache.values(), split.d_value)?];
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
    let split = split(op);
    if split.n_tokens == 0 || split.d_value == 0 {
        return Ok(None);
    }
    let partials =
        if is_merged(&split) { out.workspace(0, partials_size(&split))? } else { Span::NONE };
    if split.tokens == 1 {
        lower_few(op, &split, partials, out)?;
    } else {
        lower_many(op, &split, partials, out)?;
    }
    let quantized = match split.quantized_size() {
        size if quantize && size > 0 => {
            Some(out.workspace(AttentionSplit::quantized_at(partials_size(&split)), size)?)
        }
        _ => None,
    };
    if is_merged(&split) {
        merge(op, &split, partials, quantized, out)?;
    }
    Ok(quantized)
}

/// The entries of the list of positions that a token attends to; 0 without a list.
fn n_listed<T: Operand>(op: &Attention<T>) -> usize {
    op.selected.as_ref().map_or(0, |selected| selected.desc().n_cols)
}

/// The arguments that all kernels take after their pointers: sizes of the cache and the batch, and
/// how to read the cache.
fn sizes(
    op: &Attention<Tensor>,
    split: &AttentionSplit,
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
    let heads = [&op.cache.k, op.cache.values()].map(|half| row_words(&half.desc()));
    let heads = [split.d_head, split.d_value, heads[0], heads[1]];
    let numbers = [&first[..], between, &heads, last, &[split.n_spans]].concat();
    let mut args: Vec<Arg> = numbers.into_iter().map(word).collect();
    args.extend([
        if op.selected.is_some() { word(n_listed(op)) } else { Arg::U32(Window::word(op.window)) },
        Arg::F32(op.scale),
        Arg::F32(op.softcap),
        alignment_bits(op, split)?,
    ]);
    args.extend(
        [&op.cache.k, op.cache.values()].map(|half| Arg::U32(cache_format(half.desc().format))),
    );
    Ok(args)
}

fn lower_few(
    op: &Attention<Tensor>,
    split: &AttentionSplit,
    partials: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let (lanes_k, lanes_v) = (lanes(split.d_head), lanes(split.d_value));
    let mut args = vec![
        ptr(plain(&op.q)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(op.cache.values())?),
        ptr(plain(&op.batch.words)?),
        // A selection excludes slopes.
        ptr(out.plain_or_null(op.selected.as_ref().or(op.slopes.as_ref()))?),
        ptr(partials),
    ];
    args.extend(sizes(op, split, &[], &[lanes_k, lanes_v])?);
    let (file, kernel, heads) = match (&op.selected, split.heads) {
        (Some(_), _) => ("attention_selected", "attention_selected", MAX_HEADS),
        (None, 1) => ("attention", "attention_1", 1),
        (None, 2) => ("attention", "attention_2", 2),
        (None, 4) => ("attention", "attention_4", 4),
        (None, _) => ("attention", "attention_8", MAX_HEADS),
    };
    // Shared memory holds queries and scores, and later the partial results of each 32 threads.
    let queries = VECTOR * split.d_head.div_ceil(VECTOR);
    let waves = FEW_THREADS as usize / 32 * VECTOR * lanes_v;
    let shared = 4 * heads * (queries + AttentionSplit::CHUNK).max(waves);
    let grid = [split.n_spans, split.n_head_blocks(), split.n_tokens];
    out.launch_shared(unit(file, op), kernel, grid, FEW_THREADS, shared as u32, &args);
    Ok(())
}

fn lower_many(
    op: &Attention<Tensor>,
    split: &AttentionSplit,
    partials: Span,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let mut args = vec![
        ptr(plain(&op.q)?),
        ptr(plain(&op.cache.k)?),
        ptr(plain(op.cache.values())?),
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
    let grid = [split.n_spans, split.n_head_blocks(), split.n_tokens.div_ceil(split.tokens)];
    out.launch(unit("attention_many", op), kernel, grid, TILE_THREADS, &args);
    Ok(())
}

fn unit(file: &str, op: &Attention<Tensor>) -> Unit {
    Unit::cache(file, op.cache.k.desc().format, op.cache.values().desc().format)
}

fn merge(
    op: &Attention<Tensor>,
    split: &AttentionSplit,
    partials: Span,
    quantized: Option<Span>,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let prefetch = out.prefetch(split.n_tokens, MERGE_THREADS);
    let args = [
        ptr(partials),
        ptr(out.plain_or_null(op.sinks.as_ref())?),
        ptr(plain(&op.batch.words)?),
        ptr(out.plain_or_null(op.selected.as_ref())?),
        ptr(plain(&op.y)?),
        ptr(quantized.unwrap_or(Span::NONE)),
        word(op.batch.shape.max_tokens),
        word(split.n_tokens),
        word(split.n_head),
        word(split.d_value),
        word(split.n_spans),
        Arg::U32(Window::word(op.window)),
        word(n_listed(op)),
        word(split.d_value.next_power_of_two().clamp(32, MERGE_THREADS as usize)),
    ];
    let args = [&args[..], &prefetch.args].concat();
    let grid = [split.n_head + prefetch.n_blocks, split.n_tokens, 1];
    out.launch(Unit::plain("attention_merge"), "attention_merge", grid, MERGE_THREADS, &args);
    Ok(())
}
