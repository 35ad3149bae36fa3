//! How attention is split into blocks (workgroups) and spans of positions.
//!
//! Positions are cut into chunks of [`AttentionSplit::CHUNK`], and chunks are dealt to spans round
//! robin, so that spans do equal work for every length of a sequence. A block computes one span for
//! heads that share keys, and a second launch merges the spans in order. The number of spans depends
//! on shapes alone, not on the data of a step. Up to [`FEW_TOKENS`] tokens, a block processes one
//! token. With more tokens it processes a tile of tokens, and positions are split into several spans
//! only if there are few tiles.

use hal::op::Attention;
use hal::{KV_BLOCK, Operand};

use crate::ffn::FEW_TOKENS;
use crate::scratch::ALIGN;

/// Number of blocks that keeps any device busy.
const MANY_BLOCKS: usize = 512;
/// Maximum number of spans.
const MAX_SPANS: usize = 64;
/// Maximum number of spans for tiles of tokens, which do more work per span.
const MAX_SPANS_OF_TILES: usize = 16;

/// What a backend's attention kernels can do.
#[derive(Clone, Copy, Debug)]
pub struct AttentionRules {
    /// Maximum number of heads per block, a power of two.
    pub max_heads: usize,
    /// Rows of a tile: tokens times heads.
    pub tile_rows: usize,
    /// Value columns per block.
    pub cols: usize,
}

/// How an op is split into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionSplit {
    /// Tokens of the op.
    pub n_tokens: usize,
    /// Query heads.
    pub n_head: usize,
    /// Key heads.
    pub n_head_kv: usize,
    /// Values per query head and key head.
    pub d_head: usize,
    /// Values per value head.
    pub d_value: usize,
    /// Heads per block, a power of two.
    pub heads: usize,
    /// Tokens per block.
    pub tokens: usize,
    /// Value columns per block.
    pub cols: usize,
    /// Spans of positions.
    pub n_spans: usize,
}

impl AttentionSplit {
    /// Positions per chunk.
    pub const CHUNK: usize = 64;

    /// The split of an op.
    #[must_use]
    pub fn new<T: Operand>(op: &Attention<T>, rules: AttentionRules) -> AttentionSplit {
        let (q, y) = (op.q.desc(), op.y.desc());
        let [d_head, d_value] = [q, y].map(|desc| desc.n_cols / op.n_head);
        let heads = (op.n_head / op.n_head_kv).next_power_of_two().min(rules.max_heads);
        // Up to `FEW_TOKENS` tokens, the number of spans must not depend on the number of tokens.
        let few = q.n_rows <= FEW_TOKENS;
        // Tokens with lists of positions of their own share no keys.
        let (tokens, max_spans) = if few || op.selected.is_some() {
            (1, MAX_SPANS)
        } else {
            ((rules.tile_rows / heads).max(1), MAX_SPANS_OF_TILES)
        };
        let split = AttentionSplit {
            n_tokens: q.n_rows,
            n_head: op.n_head,
            n_head_kv: op.n_head_kv,
            d_head,
            d_value,
            heads,
            tokens,
            cols: rules.cols,
            n_spans: 1,
        };
        let n_tiles = if few { 1 } else { split.n_token_tiles() };
        let n_positions = match &op.selected {
            Some(selected) => selected.desc().n_cols,
            None => op.batch.shape.max_blocks * KV_BLOCK,
        };
        let n_chunks = n_positions.div_ceil(AttentionSplit::CHUNK).max(1);
        let wanted = MANY_BLOCKS.div_ceil((n_tiles * split.n_head_blocks()).max(1));
        AttentionSplit { n_spans: wanted.min(n_chunks).min(max_spans), ..split }
    }

    /// Tiles of tokens.
    #[must_use]
    pub fn n_token_tiles(&self) -> usize {
        self.n_tokens.div_ceil(self.tokens)
    }

    /// Tiles of the heads that share a key head.
    #[must_use]
    pub fn n_head_tiles(&self) -> usize {
        (self.n_head / self.n_head_kv).div_ceil(self.heads)
    }

    /// Blocks per span and tile of tokens: tiles of heads times tiles of value columns.
    #[must_use]
    pub fn n_head_blocks(&self) -> usize {
        self.n_head_kv * self.n_head_tiles() * self.d_value.div_ceil(self.cols)
    }

    /// Bytes of the result in Q8 blocks for the next op. 0 in prefill, where fewer launches save
    /// little, and 0 if heads are not whole blocks.
    #[must_use]
    pub fn quantized_size(&self) -> u64 {
        if self.n_tokens <= FEW_TOKENS && self.d_value.is_multiple_of(32) {
            48 * (self.n_tokens * self.n_head * self.d_value / 32) as u64
        } else {
            0
        }
    }

    /// Bytes of the partial results of all spans: the weighted values, the largest score and the sum
    /// of weights.
    #[must_use]
    pub fn partials_size(&self) -> u64 {
        4 * (self.n_tokens * self.n_head * self.n_spans * (self.d_value + 2)) as u64
    }

    /// Where the quantised result begins in the workspace, after `partials` bytes of partial results.
    #[must_use]
    pub fn quantized_at(partials: u64) -> u64 {
        partials.next_multiple_of(ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use hal::format::Format;
    use hal::{Batch, BatchShape, KvCache, TensorDesc};

    use super::*;

    const RULES: AttentionRules = AttentionRules { max_heads: 8, tile_rows: 64, cols: 128 };

    fn op(n_tokens: usize, max_blocks: usize) -> Attention<TensorDesc> {
        let desc = |n_rows, n_cols| TensorDesc::new(n_rows, n_cols, Format::F32);
        let shape = BatchShape { max_tokens: 64, max_seqs: 1, max_blocks };
        Attention {
            q: desc(n_tokens, 32 * 128),
            cache: KvCache::both(desc(32 * max_blocks, 8 * 128)).into(),
            batch: Batch { words: desc(1, shape.n_words()), shape },
            slopes: None,
            sinks: None,
            selected: None,
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
            let [one, few, many] = [1, FEW_TOKENS, FEW_TOKENS + 1]
                .map(|n| AttentionSplit::new(&op(n, max_blocks), RULES));
            assert_eq!(AttentionSplit { n_tokens: FEW_TOKENS, ..one }, few);
            assert!(one.n_spans <= (max_blocks * KV_BLOCK).div_ceil(AttentionSplit::CHUNK));
            assert!(many.n_spans <= MAX_SPANS_OF_TILES);
        }
        assert_eq!(AttentionSplit::new(&op(1, 40_000), RULES).n_spans, MAX_SPANS);
        let many = AttentionSplit::new(&op(4096, 40_000), RULES);
        assert_eq!((many.n_spans, many.quantized_size()), (1, 0));
        assert_eq!((many.tokens, many.n_token_tiles()), (16, 256));
    }
}
