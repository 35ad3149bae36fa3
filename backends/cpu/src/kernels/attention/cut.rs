//! How attention is split into blocks of heads, tiles of tokens and spans of positions; and a
//! worker's scratch memory.

use std::ops::Range;

use hal::format::Format;
use hal::op;
use hal::{BatchShape, KV_BLOCK, Operand, Tensor};

use super::super::Context;
use crate::buffer::{ReadView, Scratch, Span};
use simd::{CacheKernels, HeadRows, PAD};

/// Positions per span.
pub(super) const SPAN: usize = 256;
/// Maximum number of query heads of a block.
pub(super) const MAX_HEADS: usize = 8;
/// Maximum number of queries of a tile of several tokens.
pub(super) const MAX_QUERIES: usize = 32;
/// Programs of at most this number of tokens compute each span in a separate chunk.
pub(super) const FEW_TOKENS: usize = 4;
/// Bytes of a cache row that a chunk reads in decode (at most the whole row), because reading
/// adjacent heads together is faster.
pub(super) const CHUNK_ROW_BYTES: usize = 2048;
/// From this number of queries on, a span's keys and values are converted to F32 once, not once per
/// group of queries.
pub(super) const WIDEN_FROM: usize = 9;
/// Number of queries that share one read of the values.
pub(super) const GROUP: usize = 4;
/// Positions per pass: few enough that their keys or values stay in the L1 cache for all queries.
pub(super) const L1_ROWS: usize = 16;
/// Row indices of a converted span: 0, 1, 2, ...
pub(super) const IN_ORDER: [u32; SPAN] = {
    let mut ids = [0; SPAN];
    let mut i = 0;
    while i < SPAN {
        ids[i] = i as u32;
        i += 1;
    }
    ids
};

/// How the queries of an op are split into blocks and tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_tokens: usize,
    /// Query heads per KV head.
    pub(super) n_shared: usize,
    /// Blocks per KV head.
    pub(super) blocks_per_kv_head: usize,
    /// Blocks per token.
    pub(super) n_blocks: usize,
    /// Tokens per tile.
    pub(super) tile: usize,
    /// Blocks per chunk.
    pub(super) blocks_per_chunk: usize,
    /// Size of a query or KV head, and the same size padded to [`PAD`].
    pub(super) d_head: usize,
    pub(super) width: usize,
    /// Size of a value head, and the same size padded to [`PAD`].
    pub(super) d_value: usize,
    pub(super) value_width: usize,
    /// Maximum number of spans of a token.
    pub(super) max_spans: usize,
}

impl Cut {
    pub(super) fn new<T: Operand>(op: &op::Attention<T>) -> Cut {
        let (q, n_shared) = (op.q.desc(), op.n_head / op.n_head_kv);
        let (n_tokens, d_head) = (q.n_rows, q.n_cols / op.n_head);
        let d_value = op.y.desc().n_cols / op.n_head;
        let blocks_per_kv_head = n_shared.div_ceil(MAX_HEADS);
        let BatchShape { max_blocks, .. } = op.batch.shape;
        let is_decode = n_tokens <= FEW_TOKENS;
        let head_bytes = op.cache.k.desc().format.row_bytes(d_head).unwrap_or(0).max(1);
        let n_heads =
            if is_decode { (CHUNK_ROW_BYTES / head_bytes).clamp(1, op.n_head_kv) } else { 1 };
        Cut {
            n_tokens,
            n_shared,
            blocks_per_kv_head,
            n_blocks: op.n_head_kv * blocks_per_kv_head,
            tile: if is_decode { 1 } else { MAX_QUERIES / n_shared.min(MAX_HEADS) },
            blocks_per_chunk: if is_decode { n_heads * blocks_per_kv_head } else { 1 },
            d_head,
            width: d_head.next_multiple_of(PAD),
            d_value,
            value_width: d_value.next_multiple_of(PAD),
            max_spans: (max_blocks * KV_BLOCK).div_ceil(SPAN),
        }
    }

    pub(super) fn splits_spans(&self) -> bool {
        self.n_tokens <= FEW_TOKENS
    }

    /// The KV head of a block, and its query heads.
    pub(super) fn heads(&self, block: usize) -> (usize, Range<usize>) {
        let (group, part) = (block / self.blocks_per_kv_head, block % self.blocks_per_kv_head);
        let first = group * self.n_shared;
        let end = first + self.n_shared;
        (group, first + part * MAX_HEADS..end.min(first + (part + 1) * MAX_HEADS))
    }

    /// Maximum number of queries of a tile and block.
    pub(super) fn queries(&self) -> usize {
        self.tile * self.n_shared.min(MAX_HEADS)
    }

    /// Number of groups of `blocks_per_chunk` blocks; a chunk computes one such group.
    pub(super) fn n_block_groups(&self) -> usize {
        self.n_blocks.div_ceil(self.blocks_per_chunk)
    }
}

pub(in super::super) struct Workspace {
    /// Partial results, one row per token, block and span: the queries' largest scores and sums of
    /// weights, then their weighted values.
    pub(super) parts: Span<f32>,
    /// Per worker: queries, scores, their maxima and sums, weighted values, and a span of keys or
    /// values as F32.
    pub(super) tiles: [Span<f32>; 5],
}

impl Workspace {
    pub(in super::super) fn new<T: Operand>(
        op: &op::Attention<T>,
        n_threads: usize,
        scratch: &mut Scratch,
    ) -> Self {
        let cut = Cut::new(op);
        let parts =
            if cut.splits_spans() { cut.n_tokens * cut.n_blocks * cut.max_spans } else { 0 };
        let n = cut.queries() * cut.blocks_per_chunk;
        let widest = cut.width.max(cut.value_width);
        let widened = if cut.queries() >= WIDEN_FROM { SPAN * widest } else { 0 };
        Self {
            parts: scratch.take(parts, cut.queries() * (2 + cut.value_width)),
            tiles: [n * cut.width, n * SPAN, n * 2, n * cut.value_width, widened]
                .map(|len| scratch.take(n_threads, len)),
        }
    }
}

/// The keys or the values of the KV cache.
#[derive(Debug)]
pub(super) struct KeysOrValues {
    pub(super) rows: ReadView<u8>,
    /// Bytes of a head.
    pub(super) len: usize,
    pub(super) d_head: usize,
    pub(super) kernels: CacheKernels,
    pub(super) is_f32: bool,
}

impl KeysOrValues {
    pub(super) fn new(tensor: &Tensor, d_head: usize, context: &Context<'_>) -> KeysOrValues {
        let format = tensor.desc().format;
        KeysOrValues {
            rows: context.bind.read(tensor),
            len: format.row_bytes(d_head).expect("hal checks that heads are whole blocks"),
            d_head,
            kernels: context.simd.cache(format),
            is_f32: format == Format::F32,
        }
    }

    pub(super) fn head_rows<'a>(
        &'a self,
        group: usize,
        ids: &'a [u32],
        next: &'a [u32],
    ) -> HeadRows<'a> {
        HeadRows {
            bytes: self.rows.as_slice(),
            row_bytes: self.rows.n_cols(),
            at: group * self.len,
            len: self.len,
            n_cols: self.d_head,
            ids,
            next,
        }
    }
}

/// Some tokens of one sequence and some blocks of heads. The tile's queries are ordered by block,
/// then by token.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub(super) tokens: Range<usize>,
    pub(super) blocks: Range<usize>,
}

/// A worker's scratch memory for a tile.
pub(super) struct TileScratch<'a> {
    pub(super) q: &'a mut [f32],
    pub(super) scores: &'a mut [f32],
    /// Largest score and sum of weights of each query.
    pub(super) softmax: &'a mut [f32],
    pub(super) sums: &'a mut [f32],
    pub(super) widened: &'a mut [f32],
}

/// Consecutive positions of a span.
#[derive(Clone, Copy)]
pub(super) struct Positions<'a> {
    /// The first position, relative to the start of the span.
    pub(super) first: usize,
    /// The cache rows of the positions.
    pub(super) ids: &'a [u32],
    /// Number of queries per block that read the positions.
    pub(super) n_queries: usize,
}

impl<'a> Positions<'a> {
    /// Splits the positions into ranges that stay in the L1 cache. An item is a range, its cache
    /// rows, and the rows after the range (to prefetch).
    pub(super) fn l1_ranges(self) -> impl Iterator<Item = (Range<usize>, &'a [u32], &'a [u32])> {
        let end = self.first + self.ids.len();
        (self.first / L1_ROWS..end.div_ceil(L1_ROWS)).map(move |i| {
            let at = self.first.max(i * L1_ROWS)..end.min((i + 1) * L1_ROWS);
            let (ids, next) = self.ids[at.start - self.first..].split_at(at.len());
            (at, ids, next)
        })
    }
}
