//! Keys of blocks of positions, for the lightning indexer.

use super::{Check, Visit, op, op_map, op_type, op_visit};
use crate::{Operand, Result};

op! {
    /// The keys of the blocks that end in this step: the weighted mean of the keys of their positions.
    ///
    /// A token at the last position of a block, `pos = b * pool + pool - 1`, gets
    /// `y[t, i] = sum_j w_j(i) * key[b * pool + j, i]` with `j < pool`. The weights are
    /// `w(i) = softmax_j(gate[b * pool + j, i] + ape[j, i])`, or `1 / pool` without `ape`. The other
    /// tokens get 0.
    ///
    /// | operand | shape | format |
    /// |---|---|---|
    /// | `cache` | `[n_blocks * KV_BLOCK, 2 * d]`: the key of a position, then its gate; without `ape` `[.., d]` | one of [`super::KV_FORMATS`] |
    /// | `ape` | `[pool, d]` | F32 |
    /// | `y` | `[n_tokens, d]` | F32 |
    ///
    /// [`super::LightningIndexer`] reads `y` from another cache, in which it is stored at the token's
    /// position. Source: GLM-5.3-Flash (2026).
    PoolKeys {
        /// Keys and gates of positions, which already holds this step's.
        cache cache,
        /// Positions and block tables.
        batch batch,
        /// Added to the gates, by position in the block; `None` for the mean.
        maybe ape,
        /// Keys of blocks.
        write y,
        ;
        /// Positions per block.
        pool: usize,
    }
}

impl<T: Operand> PoolKeys<T> {
    pub(super) fn check(&self) -> Result<()> {
        let c = Check("PoolKeys");
        let y = self.y.desc();
        c.f32("y", &self.y, y.n_rows, y.n_cols)?;
        c.require(self.pool > 0, "pool", "at least 1", self.pool)?;
        c.maybe_f32("ape", &self.ape, self.pool, y.n_cols)?;
        let width = if self.ape.is_some() { 2 * y.n_cols } else { y.n_cols };
        c.keys_alone(&self.cache, width)?;
        c.batch(&self.batch, y.n_rows)
    }
}
