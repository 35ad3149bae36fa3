//! The paged KV cache, and attention over it.

use hal::format::Format;
use hal::op::{Attention, StoreKv, Window};
use hal::{Bytes, KvCache, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{AttentionRules, AttentionSplit, Emit};

use super::elementwise::each_value;
use crate::buffer::{Span, plain, plain_stride};
use crate::error::driver;
use crate::facts::Facts;
use crate::lowering::Lowering;
use crate::shader::Source;

/// Values of a head that an invocation loads at once.
const VECTOR: usize = 8;

/// Minimum and maximum number of invocations that share a key (`lib/sum_two.wgsl`).
const MIN_LANES: usize = 4;
const MAX_LANES: usize = 16;

/// Groups of four positions in a chunk.
const QUADS: u32 = AttentionSplit::CHUNK as u32 / 4;

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
    /// The file that reads eight values of a head of whole eights, beside those of `read`.
    eight: &'static str,
    /// The file that reads eight aligned values in wide loads, instead of the others.
    wide: Option<&'static str>,
    values_per_store: usize,
}

/// The entry of a format with codes of four or five bits, from the files with its constants and with
/// the choice of its codes.
macro_rules! nibbles {
    ($format:ident, $constants:literal, $codes:literal) => {
        CacheFormat {
            format: Format::$format,
            store: &[$constants, $codes, "cache/store_nibbles"],
            read: &[$constants, "cache/read_nibbles"],
            eight: "cache/eight_fours",
            wide: None,
            values_per_store: 64,
        }
    };
}

/// The entry of a float format.
macro_rules! floats {
    ($format:ident, $store:literal, $read:literal, $wide:literal, $values_per_store:literal) => {
        CacheFormat {
            format: Format::$format,
            store: &[$store],
            read: &[$read],
            eight: "cache/eight_fours",
            wide: Some($wide),
            values_per_store: $values_per_store,
        }
    };
}

/// An entry for each of [`hal::op::KV_FORMATS`].
const CACHE_FORMATS: [CacheFormat; 9] = [
    floats!(F32, "cache/store_f32", "cache/read_f32", "cache/wide_f32", 1),
    floats!(F16, "cache/store_f16", "cache/read_f16", "cache/wide_f16", 2),
    floats!(BF16, "cache/store_bf16", "cache/read_bf16", "cache/wide_bf16", 2),
    CacheFormat {
        format: Format::Q8_0,
        store: &["cache/store_q8_0"],
        read: &["cache/read_q8_0"],
        eight: "cache/eight_q8_0",
        wide: None,
        // Two blocks are whole words.
        values_per_store: 64,
    },
    nibbles!(Q4_0, "cache/q4_0", "cache/codes_from_farthest"),
    nibbles!(Q4_1, "cache/q4_1", "cache/codes_from_min"),
    nibbles!(Q5_0, "cache/q5_0", "cache/codes_from_farthest"),
    nibbles!(Q5_1, "cache/q5_1", "cache/codes_from_min"),
    nibbles!(IQ4_NL, "cache/iq4_nl", "cache/codes_iq4"),
];

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
    let source = include(source, "v", cache_format(formats.v).store);
    source.include("k", "lib/store_token").include("v", "lib/store_token")
}

/// The number of values that an invocation stores.
pub(super) fn values_per_store(format: Format) -> usize {
    cache_format(format).values_per_store
}

pub(super) fn row_words(desc: &TensorDesc) -> usize {
    (plain_stride(desc).unwrap_or_default() / 4) as usize
}

/// Groups of eight values of a key head for which a shader has workgroup memory: a multiple of eight, so
/// that heads of similar sizes have one pipeline.
fn max_pieces(d_head: usize) -> usize {
    d_head.div_ceil(VECTOR).next_multiple_of(8)
}

/// How an op is split, and how many invocations share its keys and values.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    split: AttentionSplit,
    /// Invocations that share a key, and a value.
    lanes: usize,
    value_lanes: usize,
}

impl Tiles {
    /// Heads share a workgroup as far as its memory allows; `None` if it is too small for one head.
    fn new<T: Operand>(op: &Attention<T>, facts: &Facts) -> Option<Tiles> {
        let [d_head, d_value] = [&op.q, &op.y].map(|x| x.desc().n_cols / op.n_head);
        let lanes_of = |d: usize, most: usize| d.div_ceil(VECTOR).next_power_of_two().min(most);
        // More lanes read longer runs of bytes. Fewer exchange less, down to those that take a chunk's
        // groups of four positions at once: better where exchanges are slow or memory is a cache.
        let limit = match facts.subgroup_size {
            Some(size) if facts.tuning.loads_ahead => size,
            Some(_) | None => facts.tuning.row / QUADS,
        };
        let lanes = lanes_of(d_head, (limit as usize).clamp(MIN_LANES, MAX_LANES)).max(MIN_LANES);
        let value_lanes = lanes_of(d_value, facts.tuning.row as usize);
        let mut queries = facts.tuning.queries as usize;
        while queries > 0 {
            let rules = AttentionRules {
                max_heads: queries,
                tile_rows: queries,
                cols: VECTOR * value_lanes,
            };
            let tiles = Tiles { split: AttentionSplit::new(op, rules), lanes, value_lanes };
            if tiles.shared_bytes(facts) <= facts.limits.max_compute_workgroup_storage_size as usize
            {
                return Some(tiles);
            }
            queries /= 2;
        }
        None
    }

    /// Bytes of workgroup memory of the shader.
    fn shared_bytes(&self, facts: &Facts) -> usize {
        let AttentionSplit { heads, tokens, d_head, .. } = self.split;
        let of_query = VECTOR * max_pieces(d_head) + AttentionSplit::CHUNK * 3 / 2 + 4;
        4 * heads * tokens * of_query + 32 * facts.tuning.row as usize + 16 * (tokens + 1)
    }

    fn source(&self, cache: KvCache<HalfLayout>, facts: &Facts) -> Source {
        let [add_keys, add_values] = if facts.tuning.loads_ahead {
            ["lib/add_keys_ahead", "lib/add_values_ahead"]
        } else {
            ["lib/add_keys", "lib/add_values"]
        };
        let source = cache.k.include(Source::new("attention"), "k", "k_type");
        cache
            .v
            .include(source, "v", "v_type")
            .set("HEADS", self.split.heads)
            .set("TOKENS", self.split.tokens)
            .set("QUERIES", self.split.heads * self.split.tokens)
            .set("PAIRS", (self.split.heads * self.split.tokens).div_ceil(2))
            .set("MAX_PIECES", max_pieces(self.split.d_head))
            .set("ROW", facts.tuning.row)
            .include("add_keys", add_keys)
            .include("add_values", add_values)
    }
}

/// How a shader reads keys or values.
#[derive(Clone, Copy, Debug)]
struct HalfLayout {
    format: Format,
    /// Values per head.
    d: usize,
    /// Whether every row, and every eight values of a head, begin at a multiple of 16 bytes.
    aligned: bool,
}

impl HalfLayout {
    fn new(half: &Tensor, d: usize) -> Result<HalfLayout> {
        let desc = half.desc();
        let aligned = plain(half)?.offset.is_multiple_of(16) && row_words(&desc).is_multiple_of(4);
        Ok(HalfLayout { format: desc.format, d, aligned })
    }

    fn include(self, source: Source, name: &'static str, binding: &'static str) -> Source {
        let whole = self.d.is_multiple_of(VECTOR);
        let cache = cache_format(self.format);
        match cache.wide {
            Some(file) if self.aligned && whole => {
                source.include(name, file).set(binding, "array<vec4<u32>>")
            }
            Some(_) | None => {
                let eight = if whole { cache.eight } else { "cache/eight_values" };
                let source = include(source, name, cache.read).include(name, eight);
                source.set(binding, "array<u32>")
            }
        }
    }
}

pub(super) fn plan(op: &Attention<TensorDesc>, facts: &Facts) -> Plan {
    let Some(Tiles { split, .. }) = Tiles::new(op, facts) else {
        let (d_head, limit) =
            (op.q.n_cols / op.n_head, facts.limits.max_compute_workgroup_storage_size);
        return Plan::No(format!(
            "key heads have {d_head} values, too many for {limit} bytes of workgroup memory"
        ));
    };
    if let Some(reason) = refusal(&[("q", &op.q), ("y", &op.y)], &op.cache, facts) {
        return Plan::No(reason);
    }
    let partials = Bytes(split.partials_size());
    if partials.0 > facts.max_binding() {
        let limit = Bytes(facts.max_binding());
        return Plan::No(format!(
            "it needs a scratch buffer of {partials}; a binding covers at most {limit}"
        ));
    }
    let workspace = AttentionSplit::quantized_at(partials.0) + split.quantized_size();
    Plan::Yes { workspace: Bytes(workspace), slow: None }
}

/// With `quantize`, also writes the result in Q8 blocks if the heads are whole blocks, and returns
/// the location of the blocks.
pub(super) fn lower(
    op: &Attention<Tensor>,
    quantize: bool,
    out: &mut Lowering<'_>,
) -> Result<Option<Span>> {
    let Some(tiles) = Tiles::new(op, out.facts()) else {
        return Err(driver("compile", "the heads do not fit workgroup memory"));
    };
    let split = tiles.split;
    if split.n_tokens == 0 || split.d_value == 0 {
        return Ok(None);
    }
    let partials = out.workspace(0, split.partials_size())?;
    let quantized = match split.quantized_size() {
        size if quantize && size > 0 => {
            Some(out.workspace(AttentionSplit::quantized_at(split.partials_size()), size)?)
        }
        _ => None,
    };
    let batch = plain(&op.batch.words)?;
    let shape = &op.batch.shape;
    let n_col_tiles = split.d_value.div_ceil(split.cols);
    let sizes = [
        shape.max_tokens,
        shape.max_seqs,
        shape.max_blocks,
        split.n_tokens,
        split.n_head,
        split.n_head_kv,
        split.n_head_tiles(),
        n_col_tiles,
        tiles.lanes,
        tiles.value_lanes,
        split.d_head,
        split.d_value,
        row_words(&op.cache.k.desc()),
        row_words(&op.cache.v.desc()),
        split.n_spans,
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
    let cache = KvCache {
        k: HalfLayout::new(&op.cache.k, split.d_head)?,
        v: HalfLayout::new(&op.cache.v, split.d_value)?,
    };
    let source = tiles.source(cache, out.facts());
    let grid = out.facts().grid(split.n_token_tiles() * split.n_head_blocks() * split.n_spans);
    out.dispatch(&source, &bound, &numbers, grid)?;
    let [_, _, _, _, _, partials] = bound;
    merge(op, [partials, batch], quantized.as_ref(), &split, out)?;
    Ok(quantized)
}

fn merge(
    op: &Attention<Tensor>,
    [partials, batch]: [Span; 2],
    quantized: Option<&Span>,
    split: &AttentionSplit,
    out: &mut Lowering<'_>,
) -> Result<()> {
    let n_rows = op.q.desc().n_rows;
    let numbers = [
        op.batch.shape.max_tokens,
        n_rows,
        op.n_head,
        split.d_value,
        split.n_spans,
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
    use hal::{Batch, BatchShape};

    use super::super::rope::rope_store;
    use super::*;
    use crate::facts::Tuning;
    use crate::translate::{sizes, translate};

    #[test]
    fn shaders_of_every_cache_translate() {
        for [flat, row] in sizes() {
            for (i, &k) in KV_FORMATS.iter().enumerate() {
                for v in [k, KV_FORMATS[(i + 1) % KV_FORMATS.len()]] {
                    let formats = KvCache { k, v };
                    for store in [store_sources("store_kv", formats), rope_store(formats)] {
                        let store = store.set("FLAT", flat).set("ROW", row);
                        translate(&store, false).unwrap_or_else(|error| panic!("{k} {v}: {error}"));
                    }
                }
            }
        }
    }

    /// Heads of all kinds, in rows that are aligned for wide loads and in others.
    #[test]
    fn attention_translates_for_every_cache() {
        for tuning in Tuning::classes() {
            let facts = Facts {
                limits: wgpu::Limits::default(),
                tuning,
                subgroup_size: None,
                max_work: u64::MAX,
            };
            for &format in KV_FORMATS {
                for (n_tokens, d_head, d_value, shared) in
                    [(1, 64, 64, 1), (3, 6, 5, 2), (1, 576, 512, 9), (20, 192, 128, 2)]
                {
                    let op = op(n_tokens, [d_head, d_value], [shared, 1]);
                    let tiles = Tiles::new(&op, &facts).unwrap();
                    assert!(tiles.split.heads * tiles.split.tokens <= tuning.queries as usize);
                    for aligned in [false, true] {
                        let half = |d| HalfLayout { format, d, aligned };
                        let cache = KvCache { k: half(d_head), v: half(d_value) };
                        let source = tiles.source(cache, &facts);
                        translate(&source, false)
                            .unwrap_or_else(|error| panic!("{format} {d_head}: {error}"));
                    }
                }
            }
        }
    }

    /// Heads that do not fit share no workgroup; one that does not fit alone is refused.
    #[test]
    fn the_workgroup_memory_limits_the_queries() {
        let facts = Facts {
            limits: wgpu::Limits::default(),
            tuning: Tuning::of(0, false),
            subgroup_size: None,
            max_work: u64::MAX,
        };
        let heads = |d_head| {
            let tiles = Tiles::new(&op(1, [d_head, 64], [8, 1]), &facts);
            tiles.map(|tiles| tiles.split.heads)
        };
        assert_eq!(
            [64, 256, 576, 1024, 8192].map(heads),
            [Some(8), Some(8), Some(4), Some(2), None]
        );
        let refused = plan(&op(1, [8192, 64], [8, 1]), &facts);
        assert!(
            matches!(&refused, Plan::No(reason) if reason.contains("16384 bytes")),
            "{refused:?}"
        );
    }

    fn op(
        n_tokens: usize,
        [d_head, d_value]: [usize; 2],
        [n_head, n_head_kv]: [usize; 2],
    ) -> Attention<TensorDesc> {
        let desc = |n_rows, n_cols| TensorDesc::new(n_rows, n_cols, Format::F32);
        let shape = BatchShape { max_tokens: 64, max_seqs: 1, max_blocks: 8 };
        Attention {
            q: desc(n_tokens, n_head * d_head),
            cache: KvCache { k: desc(256, n_head_kv * d_head), v: desc(256, n_head_kv * d_value) },
            batch: Batch { words: desc(1, shape.n_words()), shape },
            slopes: None,
            sinks: None,
            y: desc(n_tokens, n_head * d_value),
            n_head,
            n_head_kv,
            scale: 1.0,
            window: None,
            softcap: 0.0,
        }
    }
}
