//! How attention is split into blocks of heads, tiles of tokens and spans of positions; and a
//! worker's scratch memory.

use std::ops::Range;

use hal::format::Format;
use hal::op;
use hal::{BatchShape, KV_BLOCK, Operand, Tensor};

use super::super::Context;
use crate::buffer::{ReadView, Scratch, Span};
use simd::{CacheKernels, HeadRows, PAD, RowKernels};

/// Positions per span.
pub(super) const SPAN: usize = 256;
/// Maximum number of query heads of a head block.
pub(super) const MAX_HEADS: usize = 8;
/// Maximum number of queries of a tile of several tokens.
pub(super) const MAX_QUERIES: usize = 32;
/// Programs of at most this number of tokens compute each span in a separate chunk.
pub(super) const FEW_TOKENS: usize = 4;
/// Bytes of a cache row that a chunk reads in decode (at most the whole row), because reading
/// adjacent heads together is faster.
pub(super) const CHUNK_ROW_BYTES: usize = 2048;
/// With more than one head block per KV head, spans are divided into chunks of fewer head blocks
/// until a token has this number of chunks.
const ENOUGH_CHUNKS: usize = 16;
/// From this number of queries on, keys and values are converted to F32 once, not once per group of
/// queries.
pub(super) const WIDEN_FROM: usize = 9;
/// Number of queries that share one read of the values.
pub(super) const GROUP: usize = 4;
/// Positions per pass: few enough that their keys or values stay in the L1 cache for all queries.
pub(super) const L1_ROWS: usize = 16;
/// Indices of converted rows: 0, 1, 2, ...
const IN_ORDER: [u32; L1_ROWS] = {
    let mut ids = [0; L1_ROWS];
    let mut i = 0;
    while i < L1_ROWS {
        ids[i] = i as u32;
        i += 1;
    }
    ids
};

/// How the queries of an op are split into head blocks and tiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) n_tokens: usize,
    /// Query heads per KV head.
    pub(super) n_shared: usize,
    /// Head blocks per KV head.
    pub(super) blocks_per_kv_head: usize,
    /// Head blocks per token.
    pub(super) n_blocks: usize,
    /// Tokens per tile: one if each token has positions of its own.
    pub(super) tile: usize,
    /// Maximum number of head blocks per chunk.
    pub(super) max_blocks_per_chunk: usize,
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
        let n_positions = max_blocks * KV_BLOCK;
        let n_positions = match &op.selected {
            Some(selected) => selected.desc().n_cols,
            None => n_positions,
        };
        let is_decode = n_tokens <= FEW_TOKENS;
        // Formats below a byte per value take as long to read as a byte.
        let head_bytes = op.cache.k.desc().format.row_bytes(d_head).unwrap_or(0).max(d_head).max(1);
        let n_heads =
            if is_decode { (CHUNK_ROW_BYTES / head_bytes).clamp(1, op.n_head_kv) } else { 1 };
        Cut {
            n_tokens,
            n_shared,
            blocks_per_kv_head,
            n_blocks: op.n_head_kv * blocks_per_kv_head,
            tile: if is_decode || op.selected.is_some() {
                1
            } else {
                MAX_QUERIES / n_shared.min(MAX_HEADS)
            },
            max_blocks_per_chunk: if is_decode { n_heads * blocks_per_kv_head } else { 1 },
            d_head,
            width: d_head.next_multiple_of(PAD),
            d_value,
            value_width: d_value.next_multiple_of(PAD),
            max_spans: n_positions.div_ceil(SPAN),
        }
    }

    pub(super) fn splits_spans(&self) -> bool {
        self.n_tokens <= FEW_TOKENS
    }

    /// The KV head and the query heads of a head block.
    pub(super) fn heads(&self, block: usize) -> (usize, Range<usize>) {
        let (kv_head, part) = (block / self.blocks_per_kv_head, block % self.blocks_per_kv_head);
        let first = kv_head * self.n_shared;
        let end = first + self.n_shared;
        (kv_head, first + part * MAX_HEADS..end.min(first + (part + 1) * MAX_HEADS))
    }

    /// Maximum number of queries of a tile and head block.
    pub(super) fn queries(&self) -> usize {
        self.tile * self.n_shared.min(MAX_HEADS)
    }

    /// Number of head blocks per chunk in decode, for tokens of up to `n_spans` spans. Many heads
    /// that share a KV head read its rows once, unless there are so few positions that threads would
    /// be idle.
    pub(super) fn blocks_per_chunk(&self, n_spans: usize) -> usize {
        if self.blocks_per_kv_head == 1 {
            return self.max_blocks_per_chunk;
        }
        let n_groups = ENOUGH_CHUNKS.div_ceil(n_spans.max(1));
        self.n_blocks.div_ceil(n_groups).min(self.max_blocks_per_chunk)
    }
}

pub(in super::super) struct Workspace {
    /// Partial results, one row per token, head block and span: the queries' largest scores and
    /// sums of softmax weights, then their weighted values.
    pub(super) parts: Span<f32>,
    /// Per worker: queries, scores, their maxima and sums, weighted values, and [`L1_ROWS`] keys or
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
        let n = cut.queries() * cut.max_blocks_per_chunk;
        let widened = L1_ROWS * cut.width.max(cut.value_width);
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
    kernels: CacheKernels,
    /// The kernels for rows converted to F32.
    on_f32: RowKernels,
    is_f32: bool,
}

impl KeysOrValues {
    pub(super) fn new(tensor: &Tensor, d_head: usize, context: &Context<'_>) -> KeysOrValues {
        let format = tensor.desc().format;
        KeysOrValues {
            rows: context.bind.read(tensor),
            len: format.row_bytes(d_head).expect("hal checks that heads are whole blocks"),
            d_head,
            kernels: context.simd.cache(format),
            on_f32: (context.simd.cache(Format::F32).rows).expect("F32 rows are read as they are"),
            is_f32: format == Format::F32,
        }
    }

    /// The rows `ids` of a KV head, and the kernels that read them. If the format or the number of
    /// queries requires it, the rows are converted to F32 in `widened`, which still holds them from
    /// the previous call if `again`.
    pub(super) fn rows<'a>(
        &'a self,
        kv_head: usize,
        [ids, next]: [&'a [u32]; 2],
        n_queries: usize,
        again: bool,
        widened: &'a mut [f32],
    ) -> (HeadRows<'a>, RowKernels) {
        let rows = self.head_rows(kv_head, ids, next);
        if let Some(kernels) = self.kernels.rows
            && (n_queries < WIDEN_FROM || self.is_f32)
        {
            return (rows, kernels);
        }
        let (width, n_cols) = (rows.width(), rows.n_cols);
        let widened = &mut widened[..ids.len() * width];
        if !again {
            (self.kernels.widen)(&rows, widened);
        }
        let (row_bytes, len) = (width * size_of::<f32>(), n_cols * size_of::<f32>());
        let (bytes, ids) = (bytemuck::cast_slice(widened), &IN_ORDER[..ids.len()]);
        (HeadRows { bytes, row_bytes, at: 0, len, n_cols, ids, next: &[] }, self.on_f32)
    }

    fn head_rows<'a>(&'a self, kv_head: usize, ids: &'a [u32], next: &'a [u32]) -> HeadRows<'a> {
        HeadRows {
            bytes: self.rows.as_slice(),
            row_bytes: self.rows.n_cols(),
            at: kv_head * self.len,
            len: self.len,
            n_cols: self.d_head,
            ids,
            next,
        }
    }
}

/// Some tokens of one sequence and some head blocks. The tile's queries are ordered by head block,
/// then by token.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub(super) tokens: Range<usize>,
    pub(super) blocks: Range<usize>,
}

pub(super) struct TileScratch<'a> {
    pub(super) q: &'a mut [f32],
    pub(super) scores: &'a mut [f32],
    /// Largest score and sum of softmax weights of each query.
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
    /// Number of queries of a KV head that read the positions.
    pub(super) n_queries: usize,
}

impl<'a> Positions<'a> {
    /// Splits the positions into ranges that stay in the L1 cache. An item is a range, and its cache
    /// rows and the rows after the range (to prefetch).
    pub(super) fn l1_ranges(self) -> impl Iterator<Item = (Range<usize>, [&'a [u32]; 2])> {
        let end = self.first + self.ids.len();
        (self.first / L1_ROWS..end.div_ceil(L1_ROWS)).map(move |i| {
            let at = self.first.max(i * L1_ROWS)..end.min((i + 1) * L1_ROWS);
            let (ids, next) = self.ids[at.start - self.first..].split_at(at.len());
            (at, [ids, next])
        })
    }
}
