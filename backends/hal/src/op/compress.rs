//! Compressed keys: blocks of positions with one key each, which attention reads beside a window.

use super::facts::Work;
use super::{Check, Pairing, Visit, op, op_map, op_type, op_visit};
use crate::{KV_BLOCK, Operand, Result};

/// The list of what a token attends to: the positions of a sliding window, then the cache rows of
/// compressed keys.
///
/// The window's positions up to the token's are in ascending order. Then follow the rows of blocks in
/// ascending order, each with [`CACHE_ROW`] set: `first_row` plus [`block_row`] of the block's last
/// position. The entries after them are [`super::NO_POSITION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockList {
    /// Number of positions of the window, including the token's own.
    pub window: usize,
    /// Row of attention's cache at which the compressed keys begin.
    pub first_row: usize,
}

/// Set in an entry of a list of positions that is a row of the cache instead.
pub const CACHE_ROW: u32 = 1 << 31;

/// The row of a block's key among compressed keys, if `kv_row` is the cache row of the block's last
/// position. A KV block has a row for each block of `ratio` positions that ends in it, or one row if
/// `ratio` is larger.
#[must_use]
pub fn block_row(kv_row: usize, ratio: usize) -> usize {
    kv_row / ratio.min(KV_BLOCK)
}

/// Number of rows that a KV block has for compressed keys of `ratio` positions each.
#[must_use]
pub fn block_rows(ratio: usize) -> usize {
    KV_BLOCK / ratio.clamp(1, KV_BLOCK)
}

op! {
    /// Computes the keys of the blocks that end in this step, and writes them to a cache.
    ///
    /// A block has `ratio` positions. Its key is a mean of values with learned weights, one for each
    /// value: `k[i] = sum_j w_j(i) * values[p_j, i]` with `w(i) = softmax_j(gates[p_j, i] + ape[j, i])`
    /// over the block's positions `p_j`. The key is then normed (RMS), and RoPE rotates its last values
    /// as at the block's first position.
    ///
    /// If the rows of values have `2 * d` columns, blocks overlap: the softmax is over the first `d`
    /// columns at the positions of the block before, and the last `d` columns at the block's own
    /// positions. The first block has none before it.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `values`, `gates` | `[n_tokens, w]`, with `w` of `d` or `2 * d` | F32 |
    /// | `ape` | `[ratio, w]` | F32 |
    /// | `norm` | `[1, d]` | F32 |
    /// | `freqs` | `[1, n_rot / 2]`, as in [`super::Rope`] | F32 |
    /// | `state` | `[n_seq, n * 2 * w]` with `n = ratio * w / d`: the values and gates of position `p` at row `p % n` | F32 |
    /// | `cache` | `[n_blocks * block_rows(ratio), d]`: keys at [`block_row`], no values | one of [`super::KV_FORMATS`] |
    ///
    /// The state keeps the last `n` positions, so that a block may begin in an earlier step. Source:
    /// DeepSeek-V4 (2026).
    CompressKeys {
        /// Values of the step's positions.
        read values,
        /// Their gates.
        read gates,
        /// Added to the gates, by position in the block.
        read ape,
        /// Weight of the norm.
        read norm,
        /// Frequencies of RoPE.
        read freqs,
        /// Positions and block tables.
        batch batch,
        /// Values and gates of the last positions of every sequence.
        state state,
        /// The cache of keys.
        cache_out cache,
        ;
        /// Positions per block.
        ratio: usize,
        /// Epsilon of the norm.
        eps: f32,
        /// The pairs of values that RoPE rotates.
        pairing: Pairing,
    }
}

impl<T: Operand> CompressKeys<T> {
    /// Number of blocks that a key is made from: 2 if blocks overlap.
    #[must_use]
    pub fn n_parts(&self) -> usize {
        self.ape.desc().n_cols / self.norm.desc().n_cols.max(1)
    }

    /// Number of positions that a key is made from, which the state keeps.
    #[must_use]
    pub fn n_positions(&self) -> usize {
        self.ratio * self.n_parts()
    }

    /// An upper bound: each position belongs to at most two blocks.
    pub(super) fn work(&self) -> Work {
        Work::new(self.values.desc().n_rows, (self.values.desc().n_cols as u64).saturating_mul(4))
    }

    pub(super) fn check(&self) -> Result<()> {
        let c = Check("CompressKeys");
        let (x, d) = (self.values.desc(), self.norm.desc().n_cols);
        let whole = self.ratio > 0
            && (KV_BLOCK.is_multiple_of(self.ratio) || self.ratio.is_multiple_of(KV_BLOCK));
        let expected = format!("a divisor or a multiple of {KV_BLOCK}");
        c.require(whole, "ratio", expected, self.ratio)?;
        c.f32("norm", &self.norm, 1, d)?;
        let parts = d > 0 && (x.n_cols == d || x.n_cols == 2 * d);
        c.require(parts, "values", format!("{d} columns, or twice as many"), x)?;
        c.f32("values", &self.values, x.n_rows, x.n_cols)?;
        c.f32("gates", &self.gates, x.n_rows, x.n_cols)?;
        c.f32("ape", &self.ape, self.ratio, x.n_cols)?;
        let freqs = self.freqs.desc();
        c.f32("freqs", &self.freqs, 1, freqs.n_cols)?;
        c.require(2 * freqs.n_cols <= d, "freqs", format!("at most {d} / 2 columns"), freqs)?;
        let n_cols = self.n_positions() * 2 * x.n_cols;
        c.f32("state", &self.state, self.state.desc().n_rows, n_cols)?;
        c.at_least("state", &self.state, self.batch.shape.max_seqs, n_cols)?;
        c.keys_alone(&self.cache, d)?;
        c.batch(&self.batch, x.n_rows)
    }
}

op! {
    /// Lists the window's positions and all blocks that end at or before a token's position, as
    /// [`BlockList`] says.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `selected` | `[n_tokens, window + n]`; `n` is at least the number of such blocks | U32 |
    ListBlocks {
        /// Positions and block tables.
        batch batch,
        /// What each token attends to.
        write selected,
        ;
        /// Positions per block.
        ratio: usize,
        /// What the list contains.
        list: BlockList,
    }
}

impl<T: Operand> ListBlocks<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("ListBlocks");
        let desc = self.selected.desc();
        c.selected(&self.selected, desc.n_rows)?;
        c.require(self.ratio > 0, "ratio", "at least 1", self.ratio)?;
        let n_blocks = self.batch.shape.max_blocks * KV_BLOCK / self.ratio;
        let enough = self.list.window > 0 && desc.n_cols >= self.list.window + n_blocks;
        let expected = format!("{} or more columns", self.list.window.max(1) + n_blocks);
        c.require(enough, "selected", expected, desc)?;
        c.batch(&self.batch, desc.n_rows)
    }
}

impl Check {
    /// Checks a cache of `n_cols` values per key, without values.
    pub(super) fn keys_alone<T: Operand>(
        &self,
        cache: &crate::KvRows<T>,
        n_cols: usize,
    ) -> Result<()> {
        self.cache(cache, [n_cols, n_cols])?;
        let values = cache.v.as_ref().map(Operand::desc);
        self.require(values.is_none(), "cache", "keys without values", format!("{values:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_rows_of_their_kv_block() {
        // The last positions of blocks of 4, then of 128, in the KV blocks 0 and 5.
        let rows = |ratio| [31, 5 * 32 + 31].map(|row| block_row(row, ratio));
        assert_eq!(rows(4), [7, 47]);
        assert_eq!(block_row(5 * 32 + 3, 4), 40);
        assert_eq!(rows(128), [0, 5]);
        assert_eq!([4, 32, 128].map(block_rows), [8, 1, 1]);
    }
}
