//! Decides which sequences keep their KV blocks and state rows.

use engine::{Engine, Sequence};

use crate::options::Notice;
use crate::prefix::common_prefix_len;
use crate::spill::DiskCache;
use crate::worker::Worker;

/// Whether `new` has all reusable tokens of `old`, so that `old` can be dropped.
fn replaces(engine: &Engine, new: &Sequence, old: &Sequence) -> bool {
    let n = old.tokens().len();
    n <= new.tokens().len()
        && common_prefix_len(new.tokens(), old.tokens()) == n
        && engine.n_reusable(new, n) >= engine.n_reusable(old, n)
}

impl Worker<'_> {
    /// Keeps a finished sequence, which ran in `slot`, in the KV cache until its blocks are needed.
    pub(crate) fn keep(&mut self, mut sequence: Sequence, slot: Option<usize>) {
        let n = self.engine.n_cached(&sequence);
        self.engine.truncate(&mut sequence, n);
        self.checkpoint(&mut sequence);
        if self.engine.park(&mut sequence) == 0 {
            return;
        }
        let engine = &self.engine;
        let held = self.idle.iter().position(|entry| replaces(engine, &entry.sequence, &sequence));
        if let Some(index) = held {
            return self.idle.assign(index, slot);
        }
        self.idle.drop_if(|old| engine.n_cached(old) == 0 || replaces(engine, &sequence, old));
        while self.idle.is_full() && self.evict() {}
        self.idle.add(sequence, slot);
    }

    /// With recurrent layers: copies the state after the last token to a checkpoint, so that later
    /// prompts can continue there. Evicts idle sequences if no checkpoint row is free.
    pub(crate) fn checkpoint(&mut self, sequence: &mut Sequence) {
        if !self.engine.is_recurrent() {
            return;
        }
        while self.engine.n_free_checkpoints() == 0 && self.evict() {}
        if let Err(error) = self.engine.checkpoint(sequence) {
            // The sequence continues without a checkpoint. If the device is lost, the next step
            // reports it.
            (self.options.observer)(&Notice::StepFailed { reason: error.to_string() });
        }
    }

    /// Evicts the least recently used idle sequence, to the disk cache if there is one. Returns
    /// `false` if no sequence was idle.
    pub(crate) fn evict(&mut self) -> bool {
        let Some(sequence) = self.idle.take_oldest() else { return false };
        self.counters.n_evicted += 1;
        self.spill(&sequence);
        true
    }

    /// Writes a sequence to the disk cache, unless the cache already has its tokens.
    pub(crate) fn spill(&mut self, sequence: &Sequence) {
        let n_cached = self.engine.n_cached(sequence);
        let recurrent = self.engine.is_recurrent();
        let Some(disk) = &mut self.disk else { return };
        if n_cached == 0 || disk.has(&sequence.tokens()[..n_cached], recurrent) {
            return;
        }
        let saved = self.engine.save(sequence).map_err(|error| error.to_string());
        let stored = saved.and_then(|bytes| {
            let tokens = &sequence.tokens()[..n_cached];
            disk.store(tokens, bytes, recurrent).map_err(|error| error.to_string())
        });
        match stored {
            Ok(()) => self.counters.n_spilled += 1,
            Err(reason) => (self.options.observer)(&Notice::NotSpilled { reason }),
        }
        self.report_unwritten();
    }

    fn report_unwritten(&mut self) {
        let refused = self.disk.as_mut().map(DiskCache::take_write_errors);
        for reason in refused.unwrap_or_default() {
            (self.options.observer)(&Notice::NotSpilled { reason });
        }
    }

    /// Writes all idle sequences to the disk cache, at shutdown.
    pub(crate) fn spill_all(&mut self) {
        while let Some(sequence) = self.idle.take_oldest() {
            self.spill(&sequence);
        }
    }

    /// Evicts idle sequences until `n` blocks are free. Returns whether `n` blocks are free.
    pub(crate) fn free_blocks(&mut self, n: usize) -> bool {
        while self.engine.n_free_blocks() < n {
            if !self.evict() {
                return false;
            }
        }
        true
    }

    /// Frees the KV blocks that the planned step needs: evicts idle sequences, then restarts the
    /// embedding in progress, then pauses the youngest generations. The oldest generation always
    /// fits alone.
    pub(crate) fn make_room(&mut self) {
        loop {
            let missing = |worker: &Worker<'_>| -> usize {
                let planned = worker.running.iter().filter(|running| running.n_take() > 0);
                let counts = planned
                    .map(|running| worker.engine.n_missing_blocks(&running.sequence, running.end));
                counts.sum()
            };
            while missing(self) > self.engine.n_free_blocks() && self.evict() {}
            if missing(self) <= self.engine.n_free_blocks() {
                return;
            }
            if self.embedding.restart_later() {
                continue;
            }
            if self.running.len() <= 1 {
                return;
            }
            self.pause_youngest();
        }
    }

    /// Pauses the youngest generation: releases its blocks and returns it to the waiting list.
    fn pause_youngest(&mut self) {
        let order = |index: &usize| self.running[*index].choice.order();
        let Some(index) = (0..self.running.len()).max_by_key(order) else { return };
        let mut running = self.running.remove(index);
        self.counters.n_paused += 1;
        running.choice.n_paused += 1;
        self.slots[running.slot].1 = self.n_steps;
        if running.choice.reuses_cache {
            self.spill(&running.sequence);
        }
        running.choice.writer.restart();
        let order = running.choice.order();
        let at = self.waiting.partition_point(|choice| choice.order() < order);
        self.waiting.insert(at, running.choice);
    }
}
