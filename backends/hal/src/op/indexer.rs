//! The lightning indexer of DeepSeek's sparse attention (DSA).

use super::facts::Work;
use super::{BlockList, Check, Visit, op, op_map, op_type, op_visit};
use crate::format::Format;
use crate::{KV_BLOCK, Operand, Result};

op! {
    /// Selects the positions that sparse attention reads: the blocks of `pool` positions with the
    /// highest scores.
    ///
    /// Block `b` has the positions from `b * pool` on, and its key is the cache row of its last
    /// position: `score[t, b] = sum_h weights[t, h] * relu(q[t, h] . k[b * pool + pool - 1])`. The
    /// blocks that end at or before the token's position compete. The blocks with the highest
    /// scores are selected, as many as fit into a row that also has room for `pool - 1` positions;
    /// in a tie the lower block first; a NaN is below all numbers. All their positions are written
    /// in ascending order, then those of the incomplete block up to the token's position, which are
    /// always selected. The entries after them are [`NO_POSITION`]. With `pool = 1`, blocks are
    /// positions, and a token that sees no more positions than a row has entries selects all of
    /// them.
    ///
    /// With `list`, the cache has compressed keys ([`super::CompressKeys`]) at
    /// [`super::block_row`], and the result is a [`BlockList`] with the selected blocks, as many as
    /// fit after the window.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `q` | `[n_tokens, n_head * d_head]` | F32 |
    /// | `weights` | `[n_tokens, n_head]` | F32 |
    /// | `cache` | `[n_blocks * KV_BLOCK, d_head]`: a key per position, without values | one of [`super::KV_FORMATS`] |
    /// | `selected` | `[n_tokens, top_k * pool + pool - 1]` for `top_k` blocks; `[n_tokens, window + top_k]` with `list` | U32 |
    ///
    /// The scores have no scale, which would not change their order. Keys are dequantised from their
    /// cache format; queries stay F32. Scores are F32, so backends select different positions where
    /// their sums of products differ in the last bits. Source: DeepSeek-V3.2-Exp (2025); blocks:
    /// GLM-5.3-Flash (2026); compressed keys: DeepSeek-V4 (2026).
    LightningIndexer {
        /// Queries, after RoPE.
        read q,
        /// Weights of the heads; without them, all are 1.
        maybe weights,
        /// The cache of keys, which already holds this step's keys.
        cache cache,
        /// Positions and block tables.
        batch batch,
        /// The selected positions of each token.
        write selected,
        ;
        /// Query heads.
        n_head: usize,
        /// Positions per block.
        pool: usize,
        /// The window and the rows of blocks; `None` to list the positions of blocks.
        list: Option<BlockList>,
    }
}

/// An entry of a list of selected positions after the last position.
pub const NO_POSITION: u32 = u32::MAX;

impl<T: Operand> LightningIndexer<T> {
    /// Number of blocks that a token selects at most.
    pub fn top_k(&self) -> usize {
        let n_cols = self.selected.desc().n_cols;
        self.list.map_or(n_cols / self.pool, |list| n_cols - list.window)
    }

    /// An upper bound: every token scores all blocks of a full block table.
    pub(super) fn work(&self) -> Work {
        let blocks = (self.batch.shape.max_blocks * KV_BLOCK / self.pool.max(1)) as u64;
        let q = self.q.desc();
        Work::new(q.n_rows, blocks.saturating_mul(q.n_cols as u64))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("LightningIndexer");
        let q = self.q.desc();
        let heads = self.n_head > 0 && q.n_cols.is_multiple_of(self.n_head);
        c.require(heads, "q", format!("{} heads", self.n_head), q)?;
        let d_head = q.n_cols / self.n_head;
        c.f32("q", &self.q, q.n_rows, q.n_cols)?;
        c.maybe_f32("weights", &self.weights, q.n_rows, self.n_head)?;
        c.keys_alone(&self.cache, d_head)?;
        let block = self.cache.k.desc().format.block_values();
        let expected = format!("heads of a multiple of {block} values");
        c.require(d_head.is_multiple_of(block), "cache", expected, self.cache.k.desc())?;
        c.selected(&self.selected, q.n_rows)?;
        c.require(self.pool > 0, "pool", "at least 1", self.pool)?;
        let n_cols = self.selected.desc().n_cols;
        let (whole, expected) = match self.list {
            Some(BlockList { window, .. }) => {
                (window > 0 && n_cols > window, format!("more than a window of {window} columns"))
            }
            None => (
                n_cols >= self.pool && n_cols % self.pool == self.pool - 1,
                format!("blocks of {0} positions, and {0} - 1 positions", self.pool),
            ),
        };
        c.require(whole, "selected", expected, self.selected.desc())?;
        c.batch(&self.batch, q.n_rows)
    }
}

impl Check {
    /// Checks a list of selected positions for each token.
    pub(super) fn selected<T: Operand>(&self, selected: &T, n_tokens: usize) -> Result<()> {
        let desc = selected.desc();
        self.shape("selected", selected, n_tokens, desc.n_cols.max(1))?;
        self.format("selected", selected, &[Format::U32])
    }
}
