//! Occupancy of the KV cache and of the recurrent states: for a caller that decides which
//! sequences run, which wait and which are dropped.

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

    /// KV blocks of all sequences together, each of [`hal::KV_BLOCK`] positions.
    #[must_use]
    pub fn n_blocks(&self) -> usize {
        self.options.n_blocks()
    }

    /// KV blocks that no sequence holds.
    #[must_use]
    pub fn n_free_blocks(&self) -> usize {
        self.pool.n_free_blocks()
    }

    /// Rows for checkpoints of recurrent states that no sequence holds.
    #[must_use]
    pub fn n_free_checkpoints(&self) -> usize {
        self.pool.n_free_checkpoints()
    }

    /// Tokens of `sequence` that are cached; the next step computes the others again.
    #[must_use]
    pub fn n_cached(&self, sequence: &Sequence) -> usize {
        if sequence.cached.is_of(&self.pool) { sequence.cached.n() } else { 0 }
    }

    /// Of the first `n` tokens of `sequence`, those that a fork would still have cached after
    /// [`Engine::truncate`] to them: all cached ones, but with recurrent layers only those up to a
    /// checkpoint or up to the current state.
    #[must_use]
    pub fn n_reusable(&self, sequence: &Sequence, n: usize) -> usize {
        if sequence.cached.is_of(&self.pool) { sequence.cached.n_reusable(n) } else { 0 }
    }

    /// KV blocks that a step needs to take from the free ones to extend `sequence` to `end` tokens:
    /// new ones, and copies of shared ones that it writes to. [`Engine::step`] refuses a step whose
    /// feeds together need more than are free.
    #[must_use]
    pub fn n_missing_blocks(&self, sequence: &Sequence, end: usize) -> usize {
        if sequence.cached.is_of(&self.pool) {
            sequence.cached.n_missing_blocks(end)
        } else {
            end.div_ceil(KV_BLOCK)
        }
    }

    /// KV blocks that hold the first tokens of these sequences, the given number of each. Shared
    /// blocks count once. `seen` is reused memory.
    #[must_use]
    pub fn n_distinct_blocks<'a>(
        &self,
        sequences: impl Iterator<Item = (&'a Sequence, usize)>,
        seen: &mut Vec<bool>,
    ) -> usize {
        seen.clear();
        seen.resize(self.n_blocks(), false);
        for (sequence, n) in sequences.filter(|(sequence, _)| sequence.cached.is_of(&self.pool)) {
            let blocks = sequence.cached.blocks().iter().take(n.div_ceil(KV_BLOCK));
            blocks.for_each(|&block| seen[block as usize] = true);
        }
        seen.iter().filter(|seen| **seen).count()
    }

    /// Gives the state row of a sequence back that will not be fed for a while. Its cache is then
    /// that of its newest checkpoint, and the tokens after it are forgotten. Without recurrent
    /// layers a sequence has no such row, and this changes nothing. Returns how many tokens remain.
    pub fn park(&mut self, sequence: &mut Sequence) -> usize {
        if !self.pool.is_recurrent() {
            return self.n_cached(sequence);
        }
        sequence.cached.release_slot();
        let n = self.n_cached(sequence);
        self.truncate(sequence, n)
    }
}
