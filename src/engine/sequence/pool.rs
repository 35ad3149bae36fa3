//! Cache blocks and state rows: which are free, and how many sequences use each of them.
//!
//! A sequence releases its blocks and rows when its
//! [`SequenceCache`](super::cache::SequenceCache) is dropped, so that nothing leaks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hal::Bytes;

use model::Model;

use crate::ops::memory::state_bytes;
use crate::options::EngineOptions;

/// Reference counts of the numbers `0..n`. The free numbers are on a stack.
#[derive(Debug)]
struct RefCounted {
    refs: Vec<u32>,
    free: Vec<u32>,
}

impl RefCounted {
    fn new(n: usize) -> RefCounted {
        RefCounted { refs: vec![0; n], free: (0..n as u32).rev().collect() }
    }

    fn take(&mut self) -> Option<u32> {
        let number = self.free.pop()?;
        self.refs[number as usize] = 1;
        Some(number)
    }

    fn retain(&mut self, number: u32) {
        self.refs[number as usize] += 1;
    }

    fn release(&mut self, number: u32) {
        let refs = &mut self.refs[number as usize];
        *refs -= 1;
        if *refs == 0 {
            self.free.push(number);
        }
    }
}

#[derive(Debug)]
struct Inner {
    blocks: RefCounted,
    slots: RefCounted,
    checkpoints: RefCounted,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSizes {
    pub(crate) n_blocks: usize,
    /// Maximum number of sequences in a step; with recurrent layers each has its own state row.
    pub(crate) n_seq: usize,
    /// Number of additional state rows, for checkpoints; 0 without recurrent layers.
    pub(crate) n_checkpoint: usize,
    pub(crate) recurrent: bool,
}

impl PoolSizes {
    pub(crate) fn new(model: &Model, options: &EngineOptions) -> PoolSizes {
        let recurrent = model.layers.iter().any(|layer| state_bytes(layer) > Bytes(0));
        PoolSizes {
            n_blocks: options.n_blocks(),
            n_seq: options.n_seq,
            n_checkpoint: if recurrent { options.n_checkpoint } else { 0 },
            recurrent,
        }
    }
}

/// The cache blocks and state rows of a loaded model, shared by all sequences. A new pool is made
/// when the model is loaded again.
#[derive(Debug)]
pub(crate) struct Pool {
    sizes: PoolSizes,
    inner: Mutex<Inner>,
}

impl Pool {
    pub(crate) fn new(sizes: PoolSizes) -> Arc<Pool> {
        let inner = Inner {
            blocks: RefCounted::new(sizes.n_blocks),
            slots: RefCounted::new(sizes.n_seq),
            checkpoints: RefCounted::new(sizes.n_checkpoint),
        };
        Arc::new(Pool { sizes, inner: Mutex::new(inner) })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No method panics between two related changes, so a poisoned lock guards consistent
        // counts.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_recurrent(&self) -> bool {
        self.sizes.recurrent
    }

    pub(crate) fn checkpoint_row(&self, number: u32) -> usize {
        self.sizes.n_seq + number as usize
    }

    pub(crate) fn n_free_blocks(&self) -> usize {
        self.lock().blocks.free.len()
    }

    pub(crate) fn n_free_checkpoints(&self) -> usize {
        self.lock().checkpoints.free.len()
    }

    pub(crate) fn take_block(&self) -> Option<u32> {
        self.lock().blocks.take()
    }

    pub(crate) fn is_shared(&self, block: u32) -> bool {
        self.lock().blocks.refs[block as usize] > 1
    }

    pub(crate) fn retain_blocks(&self, blocks: &[u32]) {
        let mut inner = self.lock();
        blocks.iter().for_each(|&block| inner.blocks.retain(block));
    }

    pub(crate) fn release_blocks(&self, blocks: impl Iterator<Item = u32>) {
        let mut inner = self.lock();
        blocks.for_each(|block| inner.blocks.release(block));
    }

    pub(crate) fn take_slot(&self) -> Option<u32> {
        self.lock().slots.take()
    }

    pub(crate) fn release_slot(&self, slot: u32) {
        self.lock().slots.release(slot);
    }

    pub(crate) fn take_checkpoint(&self) -> Option<u32> {
        self.lock().checkpoints.take()
    }

    pub(crate) fn retain_checkpoint(&self, number: u32) {
        self.lock().checkpoints.retain(number);
    }

    pub(crate) fn release_checkpoint(&self, number: u32) {
        self.lock().checkpoints.release(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_free_again_when_its_last_holder_releases_it() {
        let sizes = PoolSizes { n_blocks: 2, n_seq: 1, n_checkpoint: 0, recurrent: false };
        let pool = Pool::new(sizes);
        let (a, b) = (pool.take_block().unwrap(), pool.take_block().unwrap());
        assert_eq!((a, b, pool.take_block()), (0, 1, None));
        pool.retain_blocks(&[a]);
        assert!(pool.is_shared(a) && !pool.is_shared(b));
        pool.release_blocks([a, b].into_iter());
        assert_eq!((pool.n_free_blocks(), pool.is_shared(a)), (1, false));
        pool.release_blocks([a].into_iter());
        assert_eq!(pool.n_free_blocks(), 2);
    }
}
