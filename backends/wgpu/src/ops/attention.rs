//! Attention over the paged KV cache.

use hal::op::{Attention, Window};
use hal::{Bytes, KvCache, Operand, Plan, Result, Tensor, TensorDesc};
use lower::{AttentionRules, AttentionSplit, Emit};

use super::cache::{HalfLayout, VECTOR, refusal, row_words};
use crate::buffer::{Span, plain};
use crate::error::driver;
use crate::facts::{Facts, Tuning};
use crate::lowering::Lowering;
use crate::shader::Source;

/// Minimum and maximum number of invocations that share a key (`lib/sum_two.wgsl`).
const MIN_LANES: usize = 4;
const MAX_LANES: usize = 16;

/// Groups of four positions in a chunk.
const QUADS: u32 = AttentionSplit::CHUNK as u32 / 4;

/// Includes what a token attends to: all positions or those of a window, or those of a list.
fn seen<T>(source: Source, op: &Attention<T>) -> Source {
    match op.selected {
        Some(_) => source.include("window", "lib/selection").include("rows", "lib/rows_selected"),
        None => source,
    }
}

/// The word `window` of the shaders.
fn window_word<T: Operand>(op: &Attention<T>) -> u32 {
    match &op.selected {
        Some(selected) => selected.desc().n_cols as u32,
        None => Window::word(op.window),
    }
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
        let Tuning { queries, queries_of_one, .. } = facts.tuning;
        let mut queries = if op.q.desc().n_rows == 1 { queries_of_one } else { queries } as usize;
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
        row_words(&op.cache.values().desc()),
        split.n_spans,
        window_word(op) as usize,
        usize::from(op.slopes.is_some()),
    ];
    let mut numbers: Vec<u32> = sizes.iter().map(|&n| u32::try_from(n).unwrap_or(0)).collect();
    numbers.extend([op.scale.to_bits(), op.softcap.to_bits()]);
    let bound = [
        plain(&op.q)?,
        plain(&op.cache.k)?,
        plain(op.cache.values())?,
        batch.clone(),
        // A selection excludes slopes.
        out.plain_or_dummy(op.selected.as_ref().or(op.slopes.as_ref()))?,
        partials,
    ];
    let cache = KvCache {
        k: HalfLayout::new(&op.cache.k, split.d_head)?,
        v: HalfLayout::new(op.cache.values(), split.d_value)?,
    };
    let source = seen(tiles.source(cache, out.facts()), op);
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
        window_word(op) as usize,
        usize::from(op.sinks.is_some()),
        usize::from(quantized.is_some()),
    ];
    let y = plain(&op.y)?;
    let q = quantized.unwrap_or(&y).clone();
    let [sinks, selected] =
        [out.plain_or_dummy(op.sinks.as_ref())?, out.plain_or_dummy(op.selected.as_ref())?];
    let bound = [partials, sinks, batch, selected, y, q];
    let numbers: Vec<u32> = numbers.iter().map(|&n| u32::try_from(n).unwrap_or(0)).collect();
    let grid = out.facts().grid(n_rows * op.n_head);
    let source = Source::new("attention_merge").set("ROW", out.facts().tuning.row);
    let source = match op.selected {
        Some(_) => {
            source.include("window", "lib/merge_selected").include("window", "lib/selection")
        }
        None => source,
    };
    out.dispatch(&source, &bound, &numbers, grid)
}

#[cfg(test)]
pub(super) mod tests {
    use hal::format::Format;
    use hal::op::KV_FORMATS;
    use hal::{Batch, BatchShape};

    use super::*;
    use crate::translate::translate;

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
                    for (op, aligned) in [(&op, false), (&op, true), (&selecting(op.clone()), true)]
                    {
                        let tiles = Tiles::new(op, &facts).unwrap();
                        let most = tuning.queries.max(tuning.queries_of_one) as usize;
                        assert!(tiles.split.heads * tiles.split.tokens <= most);
                        let half = |d| HalfLayout { format, d, aligned };
                        let cache = KvCache { k: half(d_head), v: half(d_value) };
                        let source = seen(tiles.source(cache, &facts), op);
                        translate(&source, false)
                            .unwrap_or_else(|error| panic!("{format} {d_head}: {error}"));
                    }
                }
            }
        }
    }

    /// The shader for one token with eight heads per key head of `d` values.
    #[cfg(target_os = "linux")]
    pub(in crate::ops) fn decode(format: Format, d: usize, facts: &Facts) -> Source {
        let op = op(1, [d, d], [8, 1]);
        let half = HalfLayout { format, d, aligned: true };
        let tiles = Tiles::new(&op, facts).expect("heads that fit");
        seen(tiles.source(KvCache { k: half, v: half }, facts), &op)
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
            cache: KvCache { k: desc(256, n_head_kv * d_head), v: desc(256, n_head_kv * d_value) }
                .into(),
            batch: Batch { words: desc(1, shape.n_words()), shape },
            slopes: None,
            sinks: None,
            selected: None,
            y: desc(n_tokens, n_head * d_value),
            n_head,
            n_head_kv,
            scale: 1.0,
            window: None,
            softcap: 0.0,
        }
    }

    fn selecting(op: Attention<TensorDesc>) -> Attention<TensorDesc> {
        let selected = Some(TensorDesc::new(op.q.n_rows, 40, Format::U32));
        Attention { selected, ..op }
    }
}
