//! The paged KV cache, and attention over it.
//!
//! In decode, positions are split into spans. A workgroup computes one span of one token for up to
//! [`MAX_HEADS`] heads that share a key head, and a second dispatch merges the spans in order.
//! Prefill has enough workgroups with one span for all positions, which avoids large intermediate
//! results.

use hal::format::Format;
use hal::op::{Attention, StoreKv, Window};
use hal::{BatchShape, Bytes, KV_BLOCK, KvCache, Operand, Plan, Result, Tensor, TensorDesc};

use super::elementwise::each_value;
use crate::buffer::{Span, plain, plain_stride};
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Maximum number of heads per workgroup.
const MAX_HEADS: usize = 4;

/// Maximum number of value columns that an invocation adds up.
const MAX_COLS: usize = 16;

/// Maximum number of tokens of a program whose positions are split. Up to this number, a token's
/// result does not depend on the other tokens, bit for bit.
const SPLIT_TOKENS: usize = 16;

/// Minimum number of positions per span; spans are larger if a sequence would otherwise have more
/// than [`MAX_SPANS`].
const MIN_SPAN: usize = 256;

const MAX_SPANS: usize = 64;

/// Ranges of the workspace begin at multiples of this many bytes.
const ALIGN: u64 = 256;

fn refusal(
    operands: &[(&'static str, &TensorDesc)],
    cache: &KvCache<TensorDesc>,
    facts: &Facts,
) -> Option<String> {
    let halves = [("cache", &cache.k), ("cache", &cache.v)];
    let mut operands = operands.iter().chain(&halves);
    operands.find_map(|(name, desc)| facts.binding_refusal(name, desc))
}

pub(super) fn plan_store(op: &StoreKv<TensorDesc>, facts: &Facts) -> Plan {
    let refusal = refusal(&[("k", &op.k), ("v", &op.v)], &op.cache, facts);
    refusal.map_or_else(Plan::yes, Plan::No)
}

pub(super) fn lower_store(op: &StoreKv<Tensor>, out: &mut Lowering<'_>) -> Result<()> {
    let (k, v) = (op.k.desc(), op.v.desc());
    let halves = op.cache.map(&mut |half| half.desc());
    let n_stores =
        |x: &TensorDesc, half: &TensorDesc| x.n_cols.div_ceil(values_per_store(half.format));
    let (k_stores, v_stores) = (n_stores(&k, &halves.k), n_stores(&v, &halves.v));
    let numbers = [
        op.batch.shape.max_tokens,
        k.n_rows,
        k.n_cols,
        v.n_cols,
        k_stores,
        v_stores,
        row_words(&halves.k),
        row_words(&halves.v),
        halves.k.n_rows,
    ];
    let spans = [
        plain(&op.k)?,
        plain(&op.v)?,
        plain(&op.batch.words)?,
        plain(&op.cache.k)?,
        plain(&op.cache.v)?,
    ];
    let source = store_sources("store_kv", halves.map(&mut |half| half.format));
    each_value(source, k.n_rows * (k_stores + v_stores), &spans, &numbers, out)
}

/// A format of the KV cache: the shader files that store and read it, and the number of values that
/// an invocation stores.
struct CacheFormat {
    format: Format,
    store: &'static [&'static str],
    read: &'static [&'static str],
    values_per_store: usize,
}

/// The entry of a format with codes of four or five bits, from the files with its constants and with
/// the choice of its codes.
macro_rules! nibbles {
    ($format:ident, $constants:literal, $codes:literal) => {
        entry(
            Format::$format,
            &[$constants, $codes, "cache/store_nibbles"],
            &[$constants, "cache/read_nibbles"],
            64,
        )
    };
}

/// An entry for each of [`hal::op::KV_FORMATS`].
const CACHE_FORMATS: [CacheFormat; 9] = [
    entry(Format::F32, &["cache/store_f32"], &["cache/read_f32"], 1),
    entry(Format::F16, &["cache/store_f16"], &["cache/read_f16"], 2),
    entry(Format::BF16, &["cache/store_bf16"], &["cache/read_bf16"], 2),
    // Two blocks are whole words.
    entry(Format::Q8_0, &["cache/store_q8_0"], &["cache/read_q8_0"], 64),
    nibbles!(Q4_0, "cache/q4_0", "cache/codes_from_farthest"),
    nibbles!(Q4_1, "cache/q4_1", "cache/codes_from_min"),
    nibbles!(Q5_0, "cache/q5_0", "cache/codes_from_farthest"),
    nibbles!(Q5_1, "cache/q5_1", "cache/codes_from_min"),
    nibbles!(IQ4_NL, "cache/iq4_nl", "cache/codes_iq4"),
];

const fn entry(
    format: Format,
    store: &'static [&'static str],
    read: &'static [&'static str],
    values_per_store: usize,
) -> CacheFormat {
    CacheFormat { format, store, read, values_per_store }
}

/// The entry of a format; `hal` rejects all other formats.
fn cache_format(format: Format) -> &'static CacheFormat {
    let found = CACHE_FORMATS.iter().find(|cache| cache.format == format);
    found.unwrap_or(&CACHE_FORMATS[0])
}

/// Includes files for `{{include name}}`.
fn include(source: Source, name: &'static str, files: &[&'static str]) -> Source {
    files.iter().fold(source, |source, file| source.include(name, file))
}

/// A shader that stores keys and values of these formats.
pub(super) fn store_sources(name: &'static str, formats: KvCache<Format>) -> Source {
    let source = include(Source::new(name), "k", cache_format(formats.k).store);
    include(source, "v", cache_format(formats.v).store)
}

/// The number of values that an invocation stores.
pub(super) fn values_per_store(format: Format) -> usize {
    cache_format(format).values_per_store
}

pub(super) fn row_words(desc: &TensorDesc) -> usize {
    (plain_stride(desc).unwrap_or_default() / 4) as usize
}

/// Number of spans of a sequence, and positions per span.
fn spans(batch: &BatchShape, n_tokens: usize) -> (usize, usize) {
    let n_positions = (batch.max_blocks * KV_BLOCK).max(1);
    if n_tokens > SPLIT_TOKENS {
        return (1, n_positions.next_multiple_of(MIN_SPAN));
    }
    let span = n_positions.div_ceil(MAX_SPANS).next_multiple_of(MIN_SPAN);
    (n_positions.div_ceil(span), span)
}

/// Bytes of the partial results of all spans of all tokens.
fn partials_size(n_tokens: usize, n_head: usize, d_value: usize, batch: &BatchShape) -> u64 {
    (4 * n_tokens * n_head * spans(batch, n_tokens).0 * (d_value + 2)) as u64
}

/// Bytes of the result in Q8 blocks for the next op. 0 in prefill, where fewer dispatches save
/// little, and 0 if heads are not whole blocks.
fn quantized_size(n_tokens: usize, n_head: usize, d_value: usize) -> u64 {
    if n_tokens <= SPLIT_TOKENS && d_value.is_multiple_of(32) {
        48 * (n_tokens * n_head * d_value / 32) as u64
    } else {
        0
    }
}

pub(super) fn plan(op: &Attention<TensorDesc>, facts: &Facts) -> Plan {
    let d_value = op.y.n_cols / op.n_head;
    let limit = MAX_COLS * facts.tuning.row as usize;
    if d_value > limit {
        return Plan::No(format!(
            "value heads have {d_value} values; at most {limit} are supported"
        ));
    }
    if let Some(reason) = refusal(&[("q", &op.q), ("y", &op.y)], &op.cache, facts) {
        return Plan::No(reason);
    }
    let partials = Bytes(partials_size(op.q.n_rows, op.n_head, d_value, &op.batch.shape));
    if partials.0 > facts.max_binding() {
        let limit = Bytes(facts.max_binding());
        return Plan::No(format!(
            "it needs a scratch buffer of {partials}; a binding covers at most {limit}"
        ));
    }
    let quantized = quantized_size(op.q.n_rows, op.n_head, d_value);
    Plan::Yes { workspace: Bytes(partials.0.next_multiple_of(ALIGN) + quantized), slow: None }
}

/// The shader for heads of these sizes over a cache in these formats.
fn source(
    formats: KvCache<Format>,
    d_head: usize,
    d_value: usize,
    shared: usize,
    row: usize,
) -> Source {
    let dot = if d_head.is_multiple_of(4) { "cache/dot_four" } else { "cache/dot_one" };
    let source = include(Source::new("attention"), "k", cache_format(formats.k).read);
    include(source, "v", cache_format(formats.v).read)
        .include("dot", dot)
        .set("HEADS", heads(shared))
        .set("COLS", d_value.div_ceil(row).next_power_of_two())
        .set("ROW", row)
}

/// Heads per workgroup if `shared` heads share a key head; only powers of two, since each number
/// needs a pipeline.
fn heads(shared: usize) -> usize {
    if shared >= MAX_HEADS { MAX_HEADS } else { shared.next_power_of_two().min(MAX_HEADS) }
}

/// With `quantize`, also writes the result in Q8 blocks if the heads are whole blocks, and returns
/// the location of the blocks.
pub(super) fn lower(
    op: &Attention<Tensor>,
    quantize: bool,
    out: &mut Lowering<'_>,
) -> Result<Option<Span>> {
    let (q, y) = (op.q.desc(), op.y.desc());
    let [d_head, d_value] = [q, y].map(|desc| desc.n_cols / op.n_head);
    if q.n_rows == 0 || d_value == 0 {
        return Ok(None);
    }
    let shape = &op.batch.shape;
    let (n_spans, span) = spans(shape, q.n_rows);
    let shared = op.n_head / op.n_head_kv;
    let n_tiles = shared.div_ceil(heads(shared));
    let partials_size = partials_size(q.n_rows, op.n_head, d_value, shape);
    let partials = out.workspace(0, partials_size)?;
    let quantized = match quantized_size(q.n_rows, op.n_head, d_value) {
        size if quantize && size > 0 => {
            Some(out.workspace(partials_size.next_multiple_of(ALIGN), size)?)
        }
        _ => None,
    };
    let batch = plain(&op.batch.words)?;
    let row = out.facts().tuning.row as usize;
    let formats = op.cache.map(&mut |half| half.desc().format);
    let sizes = [
        shape.max_tokens,
        shape.max_seqs,
        shape.max_blocks,
        q.n_rows,
        op.n_head,
        op.n_head_kv,
        n_tiles,
        d_head,
        d_value,
        row_words(&op.cache.k.desc()),
        row_words(&op.cache.v.desc()),
        n_spans,
        span,
        Window::word(op.window) as usize,
        usize::from(op.slopes.is_some()),
    ];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| u32::try_from(n).unwrap_or(0)).collect();
    numbers.extend([op.scale.to_bits(), op.softcap.to_bits()]);
    let bound = [
        plain(&op.q)?,
        plain(&op.cache.k)?,
        plain(&op.cache.v)?,
        batch.clone(),
        out.plain_or_dummy(op.slopes.as_ref())?,
        partials,
    ];
    let grid = out.facts().grid(q.n_rows * op.n_head_kv * n_tiles * n_spans);
    let source = source(formats, d_head, d_value, shared, row);
    out.dispatch(&source, &bound, &numbers, grid)?;
    let [_, _, _, _, _, partials] = bound;
    merge(op, [partials, batch], quantized.as_ref(), [n_spans, span, d_value], out)?;
    Ok(quantized)
}

fn merge(
    op: &Attention<Tensor>,
    [partials, batch]: [Span; 2],
    quantized: Option<&Span>,
    [n_spans, span, d_value]: [usize; 3],
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_rows = op.q.desc().n_rows;
    let numbers = [
        op.batch.shape.max_tokens,
        n_rows,
        op.n_head,
        d_value,
        n_spans,
        span,
        Window::word(op.window) as usize,
        usize::from(op.sinks.is_some()),
        usize::from(quantized.is_some()),
    ];
    let y = plain(&op.y)?;
    let q = quantized.unwrap_or(&y).clone();
    let bound = [partials, out.plain_or_dummy(op.sinks.as_ref())?, batch, y, q];
    let numbers: Vec<u32> = numbers.iter().map(|&n| u32::try_from(n).unwrap_or(0)).collect();
    let grid = out.facts().grid(n_rows * op.n_head);
    let source = Source::new("attention_merge").set("ROW", out.facts().tuning.row);
    out.dispatch(&source, &bound, &numbers, grid)
}

#[cfg(test)]
mod tests {
    use hal::op::KV_FORMATS;

    use super::*;
    use crate::translate::{sizes, translate};

    #[test]
    fn shaders_of_every_cache_translate() {
        for [flat, row] in sizes() {
            for (i, &k) in KV_FORMATS.iter().enumerate() {
                for v in [k, KV_FORMATS[(i + 1) % KV_FORMATS.len()]] {
                    for name in ["store_kv", "rope_store"] {
                        let store = store_sources(name, KvCache { k, v }).set("FLAT", flat);
                        let store = store.set("ROW", row);
                        translate(&store, false).unwrap_or_else(|error| panic!("{k} {v}: {error}"));
                    }
                    for (d_head, d_value, shared) in [(64, 64, 1), (6, 5, 2), (192, 128, 7)] {
                        let formats = KvCache { k, v };
                        let text = source(formats, d_head, d_value, shared, row as usize);
                        translate(&text, false).unwrap_or_else(|error| panic!("{k} {v}: {error}"));
                    }
                }
            }
        }
    }

    #[test]
    fn spans_cover_every_position_and_do_not_depend_on_the_tokens() {
        for max_blocks in [1, 7, 8, 9, 1000, 40_000] {
            let shape = BatchShape { max_tokens: 32, max_seqs: 1, max_blocks };
            let (n, span) = spans(&shape, 1);
            assert!(n * span >= max_blocks * KV_BLOCK && n <= MAX_SPANS);
            assert_eq!(spans(&shape, SPLIT_TOKENS), (n, span));
            assert_eq!(spans(&shape, SPLIT_TOKENS + 1).0, 1);
        }
    }
}
