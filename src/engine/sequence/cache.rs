//! A sequence's data on the devices: KV blocks, a state row, checkpoints, and the number of its
//! tokens for which they are valid.

use std::sync::Arc;

use hal::KV_BLOCK;

use super::pool::Pool;

/// A copy of the recurrent state after the first `n` tokens.
#[derive(Clone, Copy, Debug)]
struct Checkpoint {
    n: usize,
    number: u32,
}

/// KV blocks, state slot and checkpoints of a sequence in one [`Pool`]. Dropping it releases them.
#[derive(Debug)]
pub(crate) struct SequenceCache {
    pool: Arc<Pool>,
    /// Number of tokens whose keys, values and state are on the devices.
    n: usize,
    /// The blocks in order of position. Forks share them until one of them writes.
    blocks: Vec<u32>,
    /// The sequence's row of the state tensors; only with recurrent layers.
    slot: Option<u32>,
    /// Checkpoints, ascending in `n` and never beyond the valid tokens.
    checkpoints: Vec<Checkpoint>,
    /// Number of the checkpoint to copy into the slot before the next step; `None` if the slot is
    /// current.
    restore: Option<u32>,
}

impl SequenceCache {
    pub(crate) fn new(pool: &Arc<Pool>) -> SequenceCache {
        SequenceCache {
            pool: Arc::clone(pool),
            n: 0,
            blocks: Vec::new(),
            slot: None,
            checkpoints: Vec::new(),
            restore: None,
        }
    }

    pub(crate) fn is_in(&self, pool: &Arc<Pool>) -> bool {
        Arc::ptr_eq(&self.pool, pool)
    }

    /// Number of tokens that are valid on the devices.
    pub(crate) fn n(&self) -> usize {
        self.n
    }

    /// Marks tokens up to `n` as valid after a complete step.
    pub(crate) fn advance(&mut self, n: usize) {
        self.n = n;
    }

    pub(crate) fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    pub(crate) fn slot(&self) -> Option<u32> {
        self.slot
    }

    /// Takes a state slot unless the sequence has one; returns whether it has one now.
    pub(crate) fn take_slot(&mut self) -> bool {
        self.slot = self.slot.or_else(|| self.pool.take_slot());
        self.slot.is_some()
    }

    /// A fork that shares all blocks and checkpoints. Its state is the state of the newest
    /// checkpoint, unless the caller copies the parent's row into the new slot and calls
    /// [`SequenceCache::advance`].
    pub(crate) fn fork(&self) -> SequenceCache {
        self.pool.retain_blocks(&self.blocks);
        self.checkpoints.iter().for_each(|c| self.pool.retain_checkpoint(c.number));
        let mut fork = SequenceCache {
            pool: Arc::clone(&self.pool),
            n: self.n,
            blocks: self.blocks.clone(),
            slot: None,
            checkpoints: self.checkpoints.clone(),
            restore: self.restore,
        };
        if self.pool.is_recurrent() {
            fork.roll_back(self.n);
        }
        fork
    }

    /// Forgets the tokens from `n` on. With recurrent layers, also forgets the tokens after the
    /// newest checkpoint at or before `n`.
    pub(crate) fn truncate(&mut self, n: usize) {
        if n >= self.n {
            return;
        }
        if self.pool.is_recurrent() {
            self.roll_back(n)
        } else {
            self.n = n
        }
        let keep = self.n.div_ceil(KV_BLOCK).min(self.blocks.len());
        self.pool.release_blocks(self.blocks.drain(keep..));
    }

    /// Call this after an incomplete step, which leaves unknown contents in the state slot. Keys
    /// and values from before the step are intact.
    pub(crate) fn invalidate_state(&mut self) {
        if self.pool.is_recurrent() {
            self.roll_back(self.n);
        }
    }

    /// Rolls the state back to the newest checkpoint at or before `n`, or to the empty state.
    fn roll_back(&mut self, n: usize) {
        while self.checkpoints.last().is_some_and(|checkpoint| checkpoint.n > n) {
            self.drop_checkpoint(self.checkpoints.len() - 1);
        }
        let last = self.checkpoints.last();
        (self.n, self.restore) = last.map_or((0, None), |last| (last.n, Some(last.number)));
    }

    fn drop_checkpoint(&mut self, index: usize) {
        let checkpoint = self.checkpoints.remove(index);
        self.pool.release_checkpoint(checkpoint.number);
    }

    /// The row with the state after the valid tokens; `None` before the first token.
    pub(crate) fn state_row(&self) -> Option<usize> {
        let restored = self.restore.map(|number| self.pool.checkpoint_row(number));
        restored.or(self.slot.map(|slot| slot as usize)).filter(|_| self.n > 0)
    }

    /// The rows `(from, to)` to copy before the slot is used; `None` if no checkpoint must be
    /// restored.
    pub(crate) fn to_restore(&self) -> Option<(usize, usize)> {
        Some((self.pool.checkpoint_row(self.restore?), self.slot? as usize))
    }

    pub(crate) fn mark_restored(&mut self) {
        self.restore = None;
    }

    /// Takes a row for a checkpoint of the state after the valid tokens: a free row, or else the
    /// row of the oldest checkpoint of this sequence. `None` if no row is available, or if this
    /// state already has a checkpoint.
    pub(crate) fn take_checkpoint(&mut self) -> Option<usize> {
        if self.checkpoints.last().is_some_and(|last| last.n == self.n) {
            return None;
        }
        let mut number = self.pool.take_checkpoint();
        if number.is_none() && !self.checkpoints.is_empty() {
            self.drop_checkpoint(0);
            // A fork may still use the row, so the pool may still have no free row.
            number = self.pool.take_checkpoint();
        }
        let number = number?;
        self.checkpoints.push(Checkpoint { n: self.n, number });
        Some(self.pool.checkpoint_row(number))
    }

    /// Drops the newest checkpoint, because its row was not written.
    pub(crate) fn drop_newest_checkpoint(&mut self) {
        if let Some(last) = self.checkpoints.len().checked_sub(1) {
            self.drop_checkpoint(last);
        }
    }

    pub(crate) fn has_checkpoint(&self) -> bool {
        self.checkpoints.last().is_some_and(|last| last.n == self.n)
    }

    /// Number of blocks that the pool must provide before a step can write positions up to `end`.
    pub(crate) fn n_missing_blocks(&self, end: usize) -> usize {
        let n_blocks = end.div_ceil(KV_BLOCK);
        let written = (self.n / KV_BLOCK).min(self.blocks.len())..n_blocks.min(self.blocks.len());
        let shared = self.blocks[written].iter().filter(|block| self.pool.is_shared(**block));
        n_blocks.saturating_sub(self.blocks.len()) + shared.count()
    }

    /// Makes block `index` writable for this sequence: takes a free block if the index is new or
    /// its block is shared. The caller may have to copy rows of the shared block (see
    /// [`BlockOwnership`]). `None` if no block is free.
    pub(crate) fn own_block(&mut self, index: usize) -> Option<BlockOwnership> {
        let held = self.blocks.get(index).copied();
        if held.is_some_and(|block| !self.pool.is_shared(block)) {
            return Some(BlockOwnership::NoCopy);
        }
        let block = self.pool.take_block()?;
        let Some(shared) = held else {
            self.blocks.push(block);
            return Some(BlockOwnership::NoCopy);
        };
        self.blocks[index] = block;
        self.pool.release_blocks([shared].into_iter());
        let rows = self.n.saturating_sub(index * KV_BLOCK);
        Some(if rows == 0 {
            BlockOwnership::NoCopy
        } else {
            BlockOwnership::Copy { from: shared, to: block, rows }
        })
    }

    /// Number of valid tokens that a fork would have after truncation to the first `n` tokens. With
    /// recurrent layers, they end at a checkpoint or at the current state.
    pub(crate) fn n_reusable(&self, n: usize) -> usize {
        if !self.pool.is_recurrent() {
            return n.min(self.n);
        }
        let current = self.state_row().map(|_| self.n);
        let ends = self.checkpoints.iter().map(|checkpoint| checkpoint.n).chain(current);
        ends.filter(|end| *end <= n).max().unwrap_or(0)
    }

    /// Releases the state slot and rolls back to the newest checkpoint.
    pub(crate) fn release_slot(&mut self) {
        if let Some(slot) = self.slot.take() {
            self.roll_back(self.n);
            self.pool.release_slot(slot);
        }
    }

    /// Reserves capacity for `n_blocks` blocks, so that steps do not allocate.
    pub(crate) fn reserve(&mut self, n_blocks: usize) {
        self.blocks.reserve_exact(n_blocks.saturating_sub(self.blocks.len()));
    }
}

/// How a block became writable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockOwnership {
    /// No copy is needed: the block was writable already, or holds no valid position yet.
    NoCopy,
    /// The first `rows` rows of `from` must be copied to `to`.
    Copy { from: u32, to: u32, rows: usize },
}

impl Drop for SequenceCache {
    fn drop(&mut self) {
        self.pool.release_blocks(self.blocks.drain(..));
        self.checkpoints.drain(..).for_each(|c| self.pool.release_checkpoint(c.number));
        if let Some(slot) = self.slot {
            self.pool.release_slot(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pool::PoolSizes;
    use super::*;

    fn pool(recurrent: bool) -> Arc<Pool> {
        let n_checkpoint = if recurrent { 2 } else { 0 };
        Pool::new(PoolSizes { n_blocks: 6, n_seq: 2, n_checkpoint, recurrent })
    }

    fn filled(pool: &Arc<Pool>, n: usize) -> SequenceCache {
        let mut cached = SequenceCache::new(pool);
        for index in 0..n.div_ceil(KV_BLOCK) {
            assert_eq!(cached.own_block(index), Some(BlockOwnership::NoCopy));
        }
        cached.advance(n);
        cached
    }

    #[test]
    fn a_fork_copies_the_partly_filled_block_when_it_writes() {
        let pool = pool(false);
        let parent = filled(&pool, KV_BLOCK + 5);
        let mut fork = parent.fork();
        assert_eq!((fork.n(), pool.n_free_blocks()), (KV_BLOCK + 5, 4));
        assert_eq!(fork.n_missing_blocks(KV_BLOCK + 6), 1);
        let copy = BlockOwnership::Copy { from: parent.blocks()[1], to: 2, rows: 5 };
        assert_eq!(fork.own_block(1), Some(copy));
        assert_eq!(fork.blocks(), [parent.blocks()[0], 2]);
        assert_eq!((parent.n_missing_blocks(KV_BLOCK + 6), fork.n_missing_blocks(64)), (0, 0));
        drop(parent);
        assert_eq!(pool.n_free_blocks(), 4);
        drop(fork);
        assert_eq!(pool.n_free_blocks(), 6);
    }

    #[test]
    fn a_block_that_is_written_whole_is_not_copied() {
        let pool = pool(false);
        let parent = filled(&pool, KV_BLOCK + 5);
        let mut fork = parent.fork();
        fork.truncate(KV_BLOCK);
        assert_eq!((fork.blocks().len(), fork.n_missing_blocks(KV_BLOCK + 1)), (1, 1));
        fork.truncate(3);
        fork.truncate(0);
        assert_eq!(fork.own_block(0), Some(BlockOwnership::NoCopy));
        assert_ne!(fork.blocks()[0], parent.blocks()[0]);
    }

    #[test]
    fn state_goes_back_to_the_newest_checkpoint() {
        let pool = pool(true);
        let mut cached = filled(&pool, 10);
        assert!(cached.take_slot());
        assert_eq!((cached.take_checkpoint(), cached.take_checkpoint()), (Some(2), None));
        cached.advance(20);
        assert_eq!(cached.take_checkpoint(), Some(3));
        cached.advance(25);
        assert_eq!(cached.state_row(), Some(0));
        cached.truncate(22);
        assert_eq!(
            (cached.n(), cached.to_restore(), cached.state_row()),
            (20, Some((3, 0)), Some(3))
        );
        cached.mark_restored();
        cached.truncate(15);
        assert_eq!((cached.n(), cached.to_restore()), (10, Some((2, 0))));
        cached.mark_restored();
        cached.advance(12);
        let fork = cached.fork();
        assert_eq!((fork.n(), fork.state_row()), (10, Some(2)));
        cached.invalidate_state();
        assert_eq!(cached.n(), 10);
        cached.truncate(9);
        assert_eq!((cached.n(), cached.to_restore(), cached.state_row()), (0, None, None));
    }

    #[test]
    fn a_sequence_without_a_slot_keeps_its_checkpoints() {
        let pool = pool(true);
        let mut cached = filled(&pool, 10);
        assert!(cached.take_slot());
        assert_eq!((cached.n_reusable(9), cached.n_reusable(12)), (0, 10));
        assert!(cached.take_checkpoint().is_some());
        cached.advance(20);
        assert_eq!((cached.n_reusable(19), cached.n_reusable(20)), (10, 20));
        cached.release_slot();
        assert_eq!((cached.n(), cached.slot(), cached.n_reusable(30)), (10, None, 10));
        assert_eq!((pool.take_slot(), pool.take_slot(), pool.take_slot()).2, None);
        assert!(!cached.take_slot());
    }
}
