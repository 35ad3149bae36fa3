//! Occupancy of the KV cache and of the recurrent states, for a scheduler that decides which
//! sequences run, wait or are dropped.

use hal::KV_BLOCK;

use super::Engine;
use crate::sequence::Sequence;

impl Engine {
    /// Whether the model has recurrent layers. A sequence then occupies one of the `n_seq` state
    /// rows from its first step until it is dropped or parked ([`Engine::park`]), and tokens can be
    /// reused only up to checkpoints.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.pool.is_recurrent()
    }

    /// Number of KV blocks, used and free, each of [`hal::KV_BLOCK`] positions.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.options.n_blocks()
    }

    /// Number of KV blocks that no sequence holds.
    #[must_use]
    pub fn n_free_blocks(&self) -> usize {
        self.pool.n_free_blocks()
    }

    /// Number of free rows for checkpoints of recurrent states.
    #[must_use]
    pub fn n_free_checkpoints(&self) -> usize {
        self.pool.n_free_checkpoints()
    }

    /// Number of cached tokens of `sequence`; the next step computes the others again.
    #[must_use]
    pub fn n_cached(&self, sequence: &Sequence) -> usize {
        if sequence.cached.is_in(&self.pool) { sequence.cached.n() } else { 0 }
    }

    /// Number of cached tokens that a fork would have after [`Engine::truncate`] to the first `n`
    /// tokens of `sequence`. With recurrent layers, they end at a checkpoint or at the current
    /// state.
    #[must_use]
    pub fn n_reusable(&self, sequence: &Sequence, n: usize) -> usize {
        if sequence.cached.is_in(&self.pool) { sequence.cached.n_reusable(n) } else { 0 }
    }

    /// Number of free KV blocks that a step needs to extend `sequence` to `end` tokens: new blocks,
    /// and copies of shared blocks that it writes to. [`Engine::step`] fails if its feeds together
    /// need more blocks than are free.
    #[must_use]
    pub fn n_missing_blocks(&self, sequence: &Sequence, end: usize) -> usize {
        if sequence.cached.is_in(&self.pool) {
            sequence.cached.n_missing_blocks(end)
        } else {
            end.div_ceil(KV_BLOCK)
        }
    }

    /// Number of KV blocks that hold the first `n` tokens of each `(sequence, n)`. Shared blocks
    /// count once. `seen` is scratch memory.
    #[must_use]
    pub fn n_distinct_blocks<'a>(
        &self,
        sequences: impl Iterator<Item = (&'a Sequence, usize)>,
        seen: &mut Vec<bool>,
    ) -> usize {
        seen.clear();
        seen.resize(self.n_blocks(), false);
        for (sequence, n) in sequences.filter(|(sequence, _)| sequence.cached.is_in(&self.pool)) {
            let blocks = sequence.cached.blocks().iter().take(n.div_ceil(KV_BLOCK));
            blocks.for_each(|&block| seen[block as usize] = true);
        }
        seen.iter().filter(|seen| **seen).count()
    }

    /// Releases the state row of a sequence that will not be fed for a while. The sequence is
    /// rolled back to its newest checkpoint, and later tokens are forgotten. Does nothing without
    /// recurrent layers. Returns the number of tokens that are still cached.
    pub fn park(&mut self, sequence: &mut Sequence) -> usize {
        if !self.pool.is_recurrent() {
            return self.n_cached(sequence);
        }
        sequence.cached.release_slot();
        let n = self.n_cached(sequence);
        self.truncate(sequence, n)
    }
}
