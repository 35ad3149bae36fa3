//! Admission: chooses the waiting generations that start, their slots, and the cached tokens that
//! they reuse.

use std::time::Instant;

use engine::Sequence;
use hal::KV_BLOCK;

use crate::choice::Choice;
use crate::options::Notice;
use crate::prefix::common_prefix_len;
use crate::request::Event;
use crate::worker::{Running, Worker};

/// Expected number of generated tokens of a generation without a limit.
const EXPECTED_TOKENS: usize = 64;
/// Minimum number of tokens that a file of the disk cache must save to be read.
const MIN_DISK_TOKENS: usize = KV_BLOCK;

/// The sequence whose cached tokens a new sequence reuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// Nothing is cached.
    None,
    /// An idle sequence, by index.
    Idle(usize),
    /// A running sequence, by index.
    Running(usize),
}

/// Why a waiting choice cannot start now.
enum Refusal {
    /// This choice must wait, but later choices may start before it.
    Skip,
    /// The KV cache is full, so later choices must wait too.
    Full,
}

impl<'t> Worker<'t> {
    /// Starts waiting choices in order of arrival, while slots and KV blocks are free.
    pub(crate) fn admit(&mut self) {
        let mut index = 0;
        while self.running.len() < self.n_admissible() && index < self.waiting.len() {
            match self.check(&self.waiting[index]) {
                Ok((source, n)) => {
                    let choice = self.waiting.remove(index);
                    self.start(choice, source, n);
                }
                Err(Refusal::Skip) => index += 1,
                Err(Refusal::Full) => return,
            }
        }
    }

    /// The source for a choice that may start now, and the number of tokens that it can reuse.
    fn check(&self, choice: &Choice<'_>) -> Result<(Source, usize), Refusal> {
        let is_taken = |slot: usize| self.running.iter().any(|running| running.slot == slot);
        if choice.slot.is_some_and(is_taken) {
            return Err(Refusal::Skip);
        }
        let (source, n) = self.source(choice);
        if self.running.is_empty() {
            return Ok((source, n));
        }
        // Wait for a running prefill that will soon have cached a longer common prefix, of at least
        // one block.
        let soon = self.running.iter().filter(|running| running.n_fed() < running.choice.n_prefill);
        let every =
            if self.engine.is_recurrent() { self.options.checkpoint_every.max(1) } else { 1 };
        let soon = soon.map(|running| {
            let prompt = &running.choice.tokens[..running.choice.n_prefill];
            let n = common_prefix_len(prompt, &choice.tokens[..choice.tokens.len() - 1]);
            if n == prompt.len() { n } else { n / every * every }
        });
        let longer = |soon: usize| soon > n && soon >= KV_BLOCK;
        if choice.reuses_cache && soon.max().is_some_and(longer) {
            return Err(Refusal::Skip);
        }
        if self.fits(choice, source, n) { Ok((source, n)) } else { Err(Refusal::Full) }
    }

    /// The sequence with the most tokens that `choice` can reuse, and their number. The last token
    /// is never reused, because its logits are needed to sample the next token.
    fn source(&self, choice: &Choice<'_>) -> (Source, usize) {
        let mut best = (Source::None, 0);
        if choice.writer.wants_prompt_logprobs() {
            return best;
        }
        let tokens = &choice.tokens[..choice.tokens.len() - 1];
        let reusable = |sequence: &Sequence| {
            let n = common_prefix_len(sequence.tokens(), tokens);
            self.engine.n_reusable(sequence, n)
        };
        let idle = self.idle.iter().enumerate().filter(|_| choice.reuses_cache);
        let idle = idle.map(|(i, entry)| (Source::Idle(i), reusable(&entry.sequence)));
        // Choices of one request always share its prompt.
        let may = |number: u64| choice.reuses_cache || number == choice.number;
        let running = self.running.iter().enumerate().filter(|(_, r)| may(r.choice.number));
        let running = running.map(|(i, r)| (Source::Running(i), reusable(&r.sequence)));
        for (source, n) in idle.chain(running) {
            if n > best.1 {
                best = (source, n);
            }
        }
        best
    }

    fn sequence_of(&self, source: Source) -> Option<&Sequence> {
        match source {
            Source::None => None,
            Source::Idle(index) => Some(&self.idle.get(index).sequence),
            Source::Running(index) => Some(&self.running[index].sequence),
        }
    }

    /// Whether the KV blocks suffice for all running generations and this one at their expected
    /// lengths, if all idle sequences are evicted.
    fn fits(&self, choice: &Choice<'_>, source: Source, n: usize) -> bool {
        let running = self.running.iter();
        let held = running.map(|running| (&running.sequence, running.n_fed()));
        let held = held.chain(self.sequence_of(source).map(|sequence| (sequence, n)));
        let mut seen = Vec::new();
        let n_held = self.engine.n_distinct_blocks(held, &mut seen);
        let growth = self.running.iter().map(|running| {
            let end = self.expected(&running.choice);
            self.engine.n_missing_blocks(&running.sequence, end)
        });
        let own = self.expected(choice).div_ceil(KV_BLOCK) - n / KV_BLOCK;
        n_held + growth.sum::<usize>() + own <= self.engine.n_blocks()
    }

    /// The length for which blocks are reserved for a generation: its tokens so far, plus
    /// [`EXPECTED_TOKENS`] or, if it has a limit, the tokens left, up to its share of the context.
    fn expected(&self, choice: &Choice<'_>) -> usize {
        let share = (self.engine.n_ctx() / self.n_parallel).max(EXPECTED_TOKENS);
        let more = choice.n_left().map_or(EXPECTED_TOKENS, |left| left.min(share));
        (choice.tokens.len() + more).min(self.engine.max_tokens())
    }

    fn start(&mut self, mut choice: Choice<'t>, source: Source, n: usize) {
        let slot = self.slot_for(&choice, source);
        let (sequence, from_disk) = self.sequence_for(&choice, source, n);
        let n_fed = sequence.tokens().len();
        self.idle.release_slot(Some(slot));
        self.leaves_queue(&choice, true);
        if choice.n_computed == 0 {
            choice.n_cached = n_fed;
            choice.n_computed = n_fed;
            self.counters.cached_tokens += n_fed as u64;
            choice.started.get_or_insert_with(Instant::now);
            choice.send(Event::Started { slot, n_cached: n_fed });
        }
        if from_disk {
            self.counters.disk_tokens += n_fed as u64;
        }
        self.slots[slot] = (choice.number, self.n_steps);
        self.running.push(Running {
            slot,
            sequence,
            choice,
            latest_piece: 0,
            start: n_fed,
            end: n_fed,
        });
    }

    /// The requested slot, else the slot of the reused sequence, else the slot that has been free
    /// longest.
    fn slot_for(&self, choice: &Choice<'_>, source: Source) -> usize {
        let is_free = |slot: &usize| self.running.iter().all(|running| running.slot != *slot);
        let of_source = match source {
            Source::Idle(index) => self.idle.get(index).slot,
            Source::None | Source::Running(_) => None,
        };
        let free = (0..self.n_parallel).filter(is_free);
        let oldest = free.min_by_key(|slot| (self.slots[*slot].1, *slot)).unwrap_or(0);
        choice.slot.or(of_source.filter(is_free)).unwrap_or(oldest)
    }

    /// A sequence with the reused tokens, and whether it came from the disk cache.
    fn sequence_for(&mut self, choice: &Choice<'_>, source: Source, n: usize) -> (Sequence, bool) {
        if let Some(sequence) = self.restored(choice, n) {
            return (sequence, true);
        }
        let sequence = match source {
            Source::None => return (self.engine.new_sequence(), false),
            Source::Idle(index) if self.idle.get(index).sequence.tokens().len() == n => {
                return (self.idle.take(index).sequence, false);
            }
            Source::Idle(index) => {
                self.idle.touch(index);
                self.engine.fork(&self.idle.get(index).sequence)
            }
            Source::Running(index) => self.engine.fork(&self.running[index].sequence),
        };
        let mut sequence = sequence;
        // A fork may hold more than `n` tokens, or fewer if its state could not be copied.
        let n = self.engine.truncate(&mut sequence, n);
        self.engine.truncate(&mut sequence, n);
        (sequence, false)
    }

    /// A sequence from the disk cache, if it saves [`MIN_DISK_TOKENS`] more tokens than the `n` in
    /// memory.
    fn restored(&mut self, choice: &Choice<'_>, n: usize) -> Option<Sequence> {
        if !choice.reuses_cache || choice.writer.wants_prompt_logprobs() {
            return None;
        }
        let tokens = &choice.tokens[..choice.tokens.len() - 1];
        let recurrent = self.engine.is_recurrent();
        loop {
            let (file, n_file) = self.disk.as_ref()?.best(tokens, recurrent)?;
            if n_file < n + MIN_DISK_TOKENS {
                return None;
            }
            let n_blocks = self.disk.as_ref()?.n_tokens(file).div_ceil(KV_BLOCK);
            if !self.evict_for_blocks(n_blocks) {
                return None;
            }
            // Evictions may have changed the indices of the files, so search again.
            let disk = self.disk.as_mut()?;
            let (file, _) = disk.best(tokens, recurrent)?;
            let path = disk.path(file).to_owned();
            let restored = disk.read(file).map_err(|error| error.to_string());
            let restored = restored
                .and_then(|bytes| self.engine.restore(&bytes).map_err(|error| error.to_string()));
            match restored {
                Ok(mut sequence) => {
                    let n = common_prefix_len(sequence.tokens(), tokens);
                    let n = self.engine.truncate(&mut sequence, n);
                    self.engine.truncate(&mut sequence, n);
                    self.counters.n_restored += 1;
                    return Some(sequence);
                }
                Err(reason) => {
                    // Use the path, because the index may have changed if another file could not be
                    // written.
                    disk.delete(&path);
                    (self.options.observer)(&Notice::FileDeleted { file: path, reason });
                }
            }
        }
    }

    /// Evicts idle sequences until `n` blocks are free, or none if the running sequences leave
    /// fewer than `n` blocks. Returns whether `n` blocks are free.
    fn evict_for_blocks(&mut self, n: usize) -> bool {
        let running = self.running.iter().map(|running| (&running.sequence, running.n_fed()));
        let held = self.engine.n_distinct_blocks(running, &mut self.seen);
        n + held <= self.engine.n_blocks() && self.free_blocks(n)
    }
}
