//! Sequences: their tokens, their data on the devices, and steps that advance several of them at
//! once.
//!
//! A [`Sequence`] is a list of tokens and a `Cached`: KV blocks, a row of recurrent state,
//! checkpoints. Blocks are reference-counted, so forks share them until they write. The cache may
//! cover fewer tokens than the list (after a lost device, an interrupted step, a roll back of
//! recurrent state); the next step computes the rest again from the tokens.

mod cached;
mod memory;
mod pool;
mod save;
mod schedule;

use std::sync::atomic::AtomicBool;

use hal::{BatchFacts, BatchSeq, BatchToken, KV_BLOCK};

use super::observe::Watch;
use super::{Engine, Error, Observed, Result, StepStats};
use cached::{Cached, Owned};
pub(super) use pool::{Pool, PoolSizes};
pub use save::NotRestored;
use schedule::{Limits, schedule};

/// Which logits a caller needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// None.
    None,
    /// Those after the last token.
    Last,
    /// Those after every token, in order.
    All,
}

/// One sequence in an engine. Dropping it releases its cache blocks and its state row.
#[derive(Debug)]
pub struct Sequence {
    tokens: Vec<u32>,
    cached: Cached,
}

impl Sequence {
    /// The tokens fed so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Tokens to append to a sequence in a step.
#[derive(Debug)]
pub struct Feed<'a> {
    /// The sequence.
    pub sequence: &'a mut Sequence,
    /// The tokens to append. A step removes tokens from the front as they enter the sequence.
    pub tokens: &'a [u32],
    /// Which logits are computed.
    pub want: Want,
}

/// Callback for the logits of a step: the index of the feed, the position of the token,
/// `[n_vocab]` logits.
pub type EachLogits<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// Buffers of a step, kept between steps so that a step allocates nothing.
#[derive(Debug, Default)]
pub(super) struct StepArena {
    facts: BatchFacts,
    /// Tokens of each feed that go into the next device step.
    takes: Vec<usize>,
}

impl StepArena {
    /// Starts a device step of at most `n_seq` sequences.
    fn clear(&mut self, n_seq: usize) {
        self.facts.tokens.clear();
        self.facts.seqs.resize_with(n_seq, BatchSeq::default);
        for seq in &mut self.facts.seqs {
            seq.blocks.clear();
            seq.len = 0;
        }
    }
}

/// Adds tokens of a sequence, whose blocks are allocated, to a device step; `index` is its entry
/// among the step's sequences.
fn add(facts: &mut BatchFacts, index: usize, cached: &Cached, tokens: &[u32], want: Want) {
    let first = cached.n();
    let seq = &mut facts.seqs[index];
    seq.blocks.extend_from_slice(cached.blocks());
    seq.len = (first + tokens.len()) as u32;
    let token = |(i, &id): (usize, &u32)| BatchToken {
        id,
        seq: index as u32,
        pos: (first + i) as u32,
        output: match want {
            Want::None => false,
            Want::Last => i + 1 == tokens.len(),
            Want::All => true,
        },
    };
    facts.tokens.extend(tokens.iter().enumerate().map(token));
}

impl Engine {
    /// A new, empty sequence.
    #[must_use]
    pub fn open(&self) -> Sequence {
        Sequence { tokens: Vec::new(), cached: Cached::new(&self.pool) }
    }

    /// Releases a sequence's cache blocks and state row, as dropping it does.
    pub fn close(&mut self, sequence: Sequence) {
        drop(sequence);
    }

    /// Forks a sequence: both share the cache blocks until one of them writes. Recurrent state is
    /// copied if one of the `n_seq` state rows is free; otherwise the fork recomputes it when it
    /// is fed.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        let mut cached = sequence.cached.fork();
        if cached.n() < sequence.cached.n()
            && cached.is_of(&self.pool)
            && let Some(from) = sequence.cached.state_row()
            && cached.take_slot()
            && let Some(to) = cached.slot()
            && self.copy_state(from, to as usize).is_ok()
        {
            cached.restored();
            cached.advance(sequence.cached.n());
        }
        Sequence { tokens: sequence.tokens.clone(), cached }
    }

    /// Forgets the tokens from `n` on. Returns how many of the remaining tokens are still cached:
    /// all of them, but with recurrent layers only those up to the newest checkpoint
    /// ([`Engine::checkpoint`]). The next step computes the others again.
    pub fn truncate(&mut self, sequence: &mut Sequence, n: usize) -> usize {
        sequence.tokens.truncate(n);
        sequence.cached.truncate(sequence.tokens.len());
        if sequence.cached.is_of(&self.pool) { sequence.cached.n() } else { 0 }
    }

    /// Makes the current end of the sequence a place to which [`Engine::truncate`] can return
    /// without recomputing tokens. Without recurrent layers every place is one. Otherwise the
    /// state is copied; if all checkpoint rows are taken, the oldest checkpoint of this sequence
    /// is dropped for it. Returns whether there is a checkpoint now.
    ///
    /// # Errors
    /// Those of the devices.
    pub fn checkpoint(&mut self, sequence: &mut Sequence) -> Result<bool> {
        let Sequence { tokens, cached } = sequence;
        if !self.pool.is_recurrent() {
            return Ok(true);
        }
        if !cached.is_of(&self.pool) || cached.n() < tokens.len() {
            return Ok(false);
        }
        let Some(from) = cached.state_row() else { return Ok(true) };
        if cached.has_checkpoint() {
            return Ok(true);
        }
        let Some(to) = cached.take_checkpoint() else { return Ok(false) };
        self.copy_state(from, to).inspect_err(|_| cached.give_up_checkpoint())?;
        Ok(true)
    }

    /// Appends `tokens` and calls `each` with the position and logits of the requested tokens, in
    /// order: [`Engine::step`] for one sequence. Returns the statistics of these steps, for which
    /// it reads the devices' counters; [`Engine::take_stats`] includes them too.
    ///
    /// # Errors
    /// See [`Engine::step`].
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        want: Want,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepStats> {
        self.read_counters_unless_lost()?;
        let before = self.totals;
        let mut feeds = [Feed { sequence, tokens, want }];
        self.step(&mut feeds, interrupt, &mut |_, position, logits| each(position, logits))?;
        self.read_counters_unless_lost()?;
        Ok(self.totals - before)
    }

    /// Appends the tokens of several sequences: as few device steps as the ladder of program sizes allows, each with tokens
    /// of as many sequences as fit. `each` gets the logits of each feed in order of position. Up to 16 tokens in a device
    /// step a sequence's logits have the bits that it gets alone; with more they agree within rounding.
    ///
    /// When a device is lost, the device step is discarded, the model is placed on the other devices, the sequences of the step
    /// are computed again from their tokens, and the step is repeated.
    ///
    /// # Errors
    /// [`Error::ContextFull`] and [`Error::TooManySequences`] before anything is computed; [`Error::Interrupted`], after
    /// which the sequences have the tokens of all whole device steps; [`Error::NotANumber`]; errors of the devices.
    pub fn step(
        &mut self,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        let mut arena = std::mem::take(&mut self.arena);
        let result = self.step_with(&mut arena, feeds, interrupt, each);
        self.arena = arena;
        result
    }

    fn step_with(
        &mut self,
        arena: &mut StepArena,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        if feeds.iter().all(|feed| feed.tokens.is_empty()) {
            return Ok(());
        }
        self.recovering(&mut |_| Ok(()))?;
        self.check_room(feeds)?;
        while feeds.iter().any(|feed| !feed.tokens.is_empty()) {
            let limits = Limits {
                rungs: &self.sizes.rungs,
                max_out: self.options.max_out(),
                max_seqs: self.options.n_seq,
                // Programs also count the neurons of padded tokens, and these counts decide which
                // neurons are exchanged.
                unpadded: self.loaded.as_ref().is_some_and(|loaded| loaded.adapt.is_some()),
            };
            schedule(feeds, &limits, &mut arena.takes);
            self.recovering(&mut |engine| engine.device_step(arena, feeds, interrupt, each))?;
            for (feed, &take) in feeds.iter_mut().zip(&arena.takes) {
                let (done, rest) = feed.tokens.split_at(take);
                feed.sequence.tokens.extend_from_slice(done);
                feed.tokens = rest;
            }
        }
        Ok(())
    }

    /// Runs `f` on a loaded model, again after each loss of a device.
    fn recovering<T>(&mut self, f: &mut dyn FnMut(&mut Engine) -> Result<T>) -> Result<T> {
        loop {
            match self.ensure_placed().and_then(|()| f(self)) {
                Err(Error::Device(hal::Error::DeviceLost { device, reason })) => {
                    self.lose(&device, &reason)?;
                }
                other => return other,
            }
        }
    }

    /// Checks the free blocks and state rows; other sequences may hold those that these feeds
    /// would need.
    fn check_room(&self, feeds: &[Feed<'_>]) -> Result<()> {
        let free = self.pool.n_free_blocks();
        let (mut missing, mut held, mut n_tokens) = (0, 0, 0);
        for feed in feeds {
            let end = feed.sequence.tokens.len() + feed.tokens.len();
            if end > self.most_tokens() {
                return Err(Error::ContextFull { n_tokens: end, n_ctx: self.most_tokens() });
            }
            n_tokens += end;
            let cached = &feed.sequence.cached;
            if cached.is_of(&self.pool) {
                missing += cached.n_missing_blocks(end);
                held += cached.blocks().len();
            } else {
                missing += end.div_ceil(KV_BLOCK);
            }
        }
        if missing > free {
            return Err(Error::ContextFull { n_tokens, n_ctx: (held + free) * KV_BLOCK });
        }
        Ok(())
    }

    /// One device step with the first tokens of the feeds, `arena.takes` of each.
    fn device_step(
        &mut self,
        arena: &mut StepArena,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        for (index, feed) in feeds.iter_mut().enumerate() {
            if arena.takes[index] > 0 {
                self.catch_up(arena, feed.sequence, interrupt)?;
            }
        }
        arena.clear(self.options.n_seq);
        let taken = feeds.iter_mut().zip(&arena.takes).filter(|(_, take)| **take > 0);
        for (next, (feed, &take)) in taken.enumerate() {
            let Sequence { cached, .. } = &mut *feed.sequence;
            self.own_blocks(cached, cached.n() + take)?;
            // Without recurrent state any entry works.
            let index = cached.slot().map_or(next, |slot| slot as usize);
            let last = take == feed.tokens.len();
            let want = if feed.want == Want::Last && !last { Want::None } else { feed.want };
            add(&mut arena.facts, index, cached, &feed.tokens[..take], want);
        }
        let ran = self.run(&arena.facts, interrupt);
        let ran = ran.and_then(|()| self.deliver(arena, feeds, each));
        for (feed, &take) in feeds.iter_mut().zip(&arena.takes).filter(|(_, take)| **take > 0) {
            let cached = &mut feed.sequence.cached;
            match &ran {
                Ok(_) => cached.advance(cached.n() + take),
                Err(_) => cached.spoil(),
            }
        }
        ran
    }

    /// Passes on the logits of a device step, after all of them were checked.
    fn deliver(
        &self,
        arena: &StepArena,
        feeds: &[Feed<'_>],
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        let n_vocab = self.sizes.n_vocab;
        let outputs = || {
            let tokens = arena.facts.tokens.iter().filter(|token| token.output);
            tokens.zip(self.logits.chunks_exact(n_vocab))
        };
        for (token, logits) in outputs() {
            if logits.iter().any(|v| v.is_nan()) {
                return Err(Error::NotANumber { token: token.pos as usize });
            }
        }
        // Tokens are ordered by feed.
        let mut rows = outputs();
        for (index, (feed, &take)) in feeds.iter().zip(&arena.takes).enumerate() {
            let n = match feed.want {
                Want::None => 0,
                Want::Last => usize::from(take > 0 && take == feed.tokens.len()),
                Want::All => take,
            };
            for (token, logits) in rows.by_ref().take(n) {
                each(index, token.pos as usize, logits);
            }
        }
        Ok(())
    }

    /// Computes the missing cache entries of a sequence: after a loss, an interrupted step or a
    /// roll back.
    fn catch_up(
        &mut self,
        arena: &mut StepArena,
        sequence: &mut Sequence,
        interrupt: &AtomicBool,
    ) -> Result<()> {
        let Sequence { tokens, cached } = sequence;
        if !cached.is_of(&self.pool) {
            *cached = Cached::new(&self.pool);
        }
        if cached.blocks().is_empty() {
            cached.reserve(self.sizes.n_blocks);
            tokens.reserve_exact(self.options.n_ctx.saturating_sub(tokens.len()));
        }
        if self.pool.is_recurrent() {
            if !cached.take_slot() {
                return Err(Error::TooManySequences { n_seq: self.options.n_seq });
            }
            if let Some((from, to)) = cached.to_restore() {
                self.copy_state(from, to)?;
            }
            cached.restored();
        }
        while cached.n() < tokens.len() {
            let rest = &tokens[cached.n()..];
            let rungs = self.sizes.rungs.iter().rev();
            let take = rungs.copied().find(|&rung| rung <= rest.len()).unwrap_or(1);
            self.own_blocks(cached, cached.n() + take)?;
            arena.clear(self.options.n_seq);
            let index = cached.slot().unwrap_or(0) as usize;
            add(&mut arena.facts, index, cached, &rest[..take], Want::None);
            self.run(&arena.facts, interrupt).inspect_err(|_| cached.spoil())?;
            cached.advance(cached.n() + take);
        }
        Ok(())
    }

    /// Makes the blocks of a sequence writable from its valid tokens to `end`.
    fn own_blocks(&mut self, cached: &mut Cached, end: usize) -> Result<()> {
        for index in cached.n() / KV_BLOCK..end.div_ceil(KV_BLOCK) {
            match cached.own_block(index) {
                Some(Owned::Already) => {}
                Some(Owned::Copy { from, to, rows }) => self.copy_block(from, to, rows)?,
                None => {
                    let n_ctx = cached.blocks().len() * KV_BLOCK;
                    return Err(Error::ContextFull { n_tokens: end, n_ctx });
                }
            }
        }
        Ok(())
    }

    /// Copies the first `n` positions of a cache block in all layers.
    fn copy_block(&mut self, from: u32, to: u32, n: usize) -> Result<()> {
        let rows = |block: u32| block as usize * KV_BLOCK..block as usize * KV_BLOCK + n;
        let loaded = self.loaded.as_mut().ok_or(hal::Error::Cancelled)?;
        loaded.copy_cache(&self.placement, rows(from), rows(to))
    }

    /// Copies a row of recurrent state in all recurrent layers.
    fn copy_state(&mut self, from: usize, to: usize) -> Result<()> {
        let loaded = self.loaded.as_mut().ok_or(hal::Error::Cancelled)?;
        loaded.copy_state(&self.placement, from, to)
    }

    /// Appends `tokens` and passes each layer's feed-forward block to `each`, with the number of
    /// the layer: in chunks of up to 64 tokens, layer by layer for each chunk. Slower than
    /// [`Engine::feed`] and without logits; both may be used in turn on a sequence. The first call
    /// records programs and allocates buffers for it.
    ///
    /// # Errors
    /// As [`Engine::feed`], except for the loss of a device: the next call continues without it
    /// and passes the blocks of the interrupted chunk again. A caller that accumulates values must
    /// do so per call, and discard those of a failed call.
    pub fn observe(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &Observed<'_>),
    ) -> Result<StepStats> {
        let mut arena = std::mem::take(&mut self.arena);
        let result = self.observe_with(&mut arena, sequence, tokens, interrupt, each);
        self.arena = arena;
        match result {
            Err(Error::Device(hal::Error::DeviceLost { device, reason })) => {
                self.lose(&device, &reason)?;
                Err(hal::Error::DeviceLost { device, reason }.into())
            }
            result => result,
        }
    }

    fn observe_with(
        &mut self,
        arena: &mut StepArena,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut Watch<'_>,
    ) -> Result<StepStats> {
        self.ensure_placed()?;
        self.check_room(&[Feed { sequence: &mut *sequence, tokens, want: Want::None }])?;
        let mut stats = StepStats::default();
        for piece in tokens.chunks(self.observed_piece()) {
            self.ensure_placed()?;
            self.catch_up(arena, sequence, interrupt)?;
            let Sequence { tokens, cached } = &mut *sequence;
            let end = cached.n() + piece.len();
            self.own_blocks(cached, end)?;
            arena.clear(self.options.n_seq);
            let index = cached.slot().unwrap_or(0) as usize;
            add(&mut arena.facts, index, cached, piece, Want::None);
            let step = self.step_observed(&arena.facts, interrupt, each);
            stats += step.inspect_err(|_| cached.spoil())?;
            cached.advance(end);
            tokens.extend_from_slice(piece);
        }
        Ok(stats)
    }
}
