//! Feeds tokens to sequences: splits the feeds into device steps, and recomputes tokens whose cache
//! entries were lost.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::KV_BLOCK;

use super::Engine;
use super::ready::loaded;
use crate::error::{Error, Result};
use crate::observe::{InputObserver, InputWatch, ObservedBlock, Watch};
use crate::replay::arena::StepArena;
use crate::sequence::cache::{BlockOwnership, SequenceCache};
use crate::sequence::schedule::{Limits, outputs_of, schedule, schedule_text};
use crate::sequence::{EachLogits, Feed, LogitsRequest, Sequence, add_to_batch};
use crate::step::StepStats;

/// The receiver of the values of an observed text.
enum Each<'a> {
    Blocks(&'a mut dyn FnMut(usize, &ObservedBlock<'_>)),
    Inputs(&'a mut dyn InputObserver),
}

/// The feeds with tokens in a device step, each with the number of these tokens.
fn batch_feeds<'a, 'b>(
    feeds: &'a mut [Feed<'b>],
    takes: &'a [usize],
) -> impl Iterator<Item = (&'a mut Feed<'b>, usize)> {
    feeds.iter_mut().zip(takes.iter().copied()).filter(|(_, take)| *take > 0)
}

impl Engine {
    /// A new, empty sequence. Dropping it releases its cache blocks, state row and checkpoints.
    #[must_use]
    pub fn new_sequence(&self) -> Sequence {
        Sequence { tokens: Vec::new(), cached: SequenceCache::new(&self.pool) }
    }

    /// Forks a sequence. Both sequences share the cache blocks until one of them writes. Recurrent
    /// state is copied if one of the `n_seq` state rows is free; otherwise the fork recomputes it
    /// when it is fed.
    pub fn fork(&mut self, sequence: &Sequence) -> Sequence {
        let mut cached = sequence.cached.fork();
        if cached.n() < sequence.cached.n()
            && cached.is_in(&self.pool)
            && let Some(from) = sequence.cached.state_row()
            && cached.take_slot()
            && let Some(to) = cached.slot()
            && self.copy_state(from, to as usize).is_ok()
        {
            cached.mark_restored();
            cached.advance(sequence.cached.n());
        }
        Sequence { tokens: sequence.tokens.clone(), cached }
    }

    /// Forgets the tokens from `n` on. Returns how many of the remaining tokens are still cached:
    /// as many as before or, with recurrent layers, those up to the newest checkpoint
    /// ([`Engine::checkpoint`]). The next step computes the other tokens again.
    pub fn truncate(&mut self, sequence: &mut Sequence, n: usize) -> usize {
        sequence.tokens.truncate(n);
        sequence.cached.truncate(sequence.tokens.len());
        if sequence.cached.is_in(&self.pool) { sequence.cached.n() } else { 0 }
    }

    /// Makes the end of the sequence a checkpoint: a position to which [`Engine::truncate`] can
    /// return without computing tokens again. Without recurrent layers, every position is a
    /// checkpoint. Otherwise the state is copied to a checkpoint row; if no row is free, it
    /// replaces the oldest checkpoint of this sequence. Returns whether the end is a checkpoint
    /// now: `false` if some of its tokens are not cached, as after the loss of a device, or if it has
    /// no checkpoint and no row is free.
    ///
    /// # Errors
    /// Device errors.
    pub fn checkpoint(&mut self, sequence: &mut Sequence) -> Result<bool> {
        self.retry_after_losses(&mut |engine| engine.checkpoint_once(sequence))
    }

    fn checkpoint_once(&mut self, sequence: &mut Sequence) -> Result<bool> {
        let Sequence { tokens, cached } = sequence;
        if !self.pool.is_recurrent() {
            return Ok(true);
        }
        if !cached.is_in(&self.pool) || cached.n() < tokens.len() {
            return Ok(false);
        }
        let Some(from) = cached.state_row() else { return Ok(true) };
        if cached.has_checkpoint() {
            return Ok(true);
        }
        let Some(to) = cached.take_checkpoint() else { return Ok(false) };
        self.copy_state(from, to).inspect_err(|_| cached.drop_newest_checkpoint())?;
        Ok(true)
    }

    /// Appends `tokens` and calls `each` with the position and logits of the requested tokens, in
    /// order: [`Engine::step`] for one sequence. Reads the counters of the devices and returns the
    /// statistics of these steps, which [`Engine::take_stats`] includes too.
    ///
    /// # Errors
    /// See [`Engine::step`].
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        want: LogitsRequest,
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

    /// Appends the tokens of several sequences. Runs device steps of the token counts that programs
    /// exist for, each with tokens of as many sequences as fit. `each` gets the logits of each feed
    /// in order of position. In device steps of up to 16 tokens, the logits of a sequence are the
    /// same bits as without other sequences; in larger steps they agree within rounding.
    ///
    /// When a device is lost, the device step is discarded, the model is placed on the other
    /// devices, the sequences of the step are computed again from their tokens, and the step is
    /// repeated.
    ///
    /// # Errors
    /// [`Error::ContextFull`] before anything is computed; [`Error::Encoder`] if the model is one;
    /// [`Error::TooManySequences`],
    /// [`Error::Interrupted`], [`Error::NotANumber`] or an error of a device, after which the
    /// sequences have the tokens of all complete device steps.
    pub fn step(
        &mut self,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        if feeds.iter().all(|feed| feed.tokens.is_empty()) {
            return Ok(());
        }
        if self.options.whole_texts && !self.arena.reads_hidden {
            return Err(Error::Encoder);
        }
        self.retry_after_losses(&mut |_| Ok(()))?;
        self.check_free_blocks(feeds)?;
        while feeds.iter().any(|feed| !feed.tokens.is_empty()) {
            let limits = Limits {
                buckets: &self.arena.sizes.buckets,
                max_out: self.options.max_out(),
                max_seqs: self.options.n_seq,
                // Programs count the neurons of padded tokens too, which would distort the exchange
                // of neurons and what a watched step shows.
                unpadded: self.watching
                    || self.ready.as_ref().is_some_and(|ready| ready.adapt.is_some()),
            };
            if self.options.whole_texts {
                schedule_text(feeds, &mut self.arena.takes);
            } else {
                schedule(feeds, &limits, &mut self.arena.takes);
            }
            self.retry_after_losses(&mut |engine| engine.device_step(feeds, interrupt, each))?;
            for (feed, &take) in feeds.iter_mut().zip(&self.arena.takes) {
                let (done, rest) = feed.tokens.split_at(take);
                feed.sequence.tokens.extend_from_slice(done);
                feed.tokens = rest;
            }
        }
        Ok(())
    }

    /// Checks that `feeds` fit into the free blocks, and each sequence into the context. Other
    /// sequences may hold the missing blocks.
    pub(super) fn check_free_blocks(&self, feeds: &[Feed<'_>]) -> Result<()> {
        let free = self.pool.n_free_blocks();
        let (mut missing, mut held, mut n_tokens) = (0, 0, 0);
        for feed in feeds {
            let end = feed.sequence.tokens.len() + feed.tokens.len();
            if end > self.max_tokens() {
                return Err(Error::ContextFull { n_tokens: end, n_ctx: self.max_tokens() });
            }
            n_tokens += end;
            let cached = &feed.sequence.cached;
            if cached.is_in(&self.pool) {
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

    /// Runs one device step with the first tokens of the feeds, [`StepArena::takes`] of each.
    fn device_step(
        &mut self,
        feeds: &mut [Feed<'_>],
        interrupt: &AtomicBool,
        each: &mut EachLogits<'_>,
    ) -> Result<()> {
        for (index, feed) in feeds.iter_mut().enumerate() {
            if self.arena.takes[index] > 0 {
                // Tokens that are computed again are not watched.
                let watching = std::mem::take(&mut self.watching);
                let caught_up = self.catch_up(feed.sequence, interrupt);
                self.watching = watching;
                caught_up?;
            }
        }
        self.arena.clear_facts(self.options.n_seq);
        let mut next = 0;
        for (index, feed) in feeds.iter_mut().enumerate() {
            let take = self.arena.takes[index];
            if take == 0 {
                continue;
            }
            let Sequence { tokens, cached } = &mut *feed.sequence;
            self.own_blocks(cached, cached.n() + take)?;
            self.select_ngrams(tokens, &feed.tokens[..take]);
            // Without recurrent state, a sequence may have any entry of the batch.
            let entry = cached.slot().map_or(next, |slot| slot as usize);
            next += 1;
            let last = take == feed.tokens.len();
            let want = if feed.want == LogitsRequest::Last && !last {
                LogitsRequest::None
            } else {
                feed.want
            };
            add_to_batch(&mut self.arena.facts, entry, cached, &feed.tokens[..take], want);
        }
        let ran = self.run(interrupt).and_then(|()| self.deliver(feeds, each));
        for (feed, take) in batch_feeds(feeds, &self.arena.takes) {
            let cached = &mut feed.sequence.cached;
            match &ran {
                Ok(_) => cached.advance(cached.n() + take),
                Err(_) => cached.invalidate_state(),
            }
        }
        ran
    }

    /// Appends `tokens` and calls `each` with the position and the final hidden state of every
    /// token, in order: `[n_embd]` values after the output norm, as needed for embeddings. An
    /// encoder needs an empty sequence and all tokens of the text.
    ///
    /// # Errors
    /// See [`Engine::step`]; [`Error::TextInParts`].
    pub fn hidden_states(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<()> {
        let n_tokens = sequence.tokens.len();
        if self.options.whole_texts && n_tokens > 0 {
            return Err(Error::TextInParts { n_tokens });
        }
        self.arena.reads_hidden = true;
        let mut feeds = [Feed { sequence, tokens, want: LogitsRequest::All }];
        let step =
            self.step(&mut feeds, interrupt, &mut |_, position, state| each(position, state));
        self.arena.reads_hidden = false;
        step
    }

    /// Passes the logits or hidden states of a device step to `each`, after checking them for NaN.
    fn deliver(&self, feeds: &[Feed<'_>], each: &mut EachLogits<'_>) -> Result<()> {
        let StepArena { sizes, facts, takes, logits, hidden, reads_hidden, .. } = &self.arena;
        let (values, width) =
            if *reads_hidden { (hidden, sizes.n_embd) } else { (logits, sizes.n_vocab) };
        let outputs = || {
            let tokens = facts.tokens.iter().filter(|token| token.output);
            tokens.zip(values.chunks_exact(width))
        };
        for (token, logits) in outputs() {
            if logits.iter().any(|v| v.is_nan()) {
                return Err(Error::NotANumber { token: token.pos as usize });
            }
        }
        // Tokens are ordered by feed.
        let mut rows = outputs();
        for (index, (feed, &take)) in feeds.iter().zip(takes).enumerate() {
            let n = outputs_of(feed.want, take, feed.tokens.len());
            for (token, logits) in rows.by_ref().take(n) {
                each(index, token.pos as usize, logits);
            }
        }
        Ok(())
    }

    /// Computes the missing cache entries of a sequence, after a device loss, an interrupted step
    /// or [`Engine::truncate`].
    fn catch_up(&mut self, sequence: &mut Sequence, interrupt: &AtomicBool) -> Result<()> {
        let Sequence { tokens, cached } = sequence;
        if !cached.is_in(&self.pool) {
            *cached = SequenceCache::new(&self.pool);
        }
        if cached.blocks().is_empty() {
            cached.reserve(self.arena.sizes.n_blocks);
            tokens.reserve_exact(self.options.n_ctx.saturating_sub(tokens.len()));
        }
        if self.pool.is_recurrent() {
            if !cached.take_slot() {
                return Err(Error::TooManySequences { n_seq: self.options.n_seq });
            }
            if let Some((from, to)) = cached.to_restore() {
                self.copy_state(from, to)?;
            }
            cached.mark_restored();
        }
        while cached.n() < tokens.len() {
            let rest = &tokens[cached.n()..];
            let buckets = self.arena.sizes.buckets.iter().rev();
            let take = buckets.copied().find(|&size| size <= rest.len()).unwrap_or(1);
            self.own_blocks(cached, cached.n() + take)?;
            self.arena.clear_facts(self.options.n_seq);
            self.select_ngrams(&tokens[..cached.n()], &rest[..take]);
            let index = cached.slot().unwrap_or(0) as usize;
            add_to_batch(&mut self.arena.facts, index, cached, &rest[..take], LogitsRequest::None);
            self.run(interrupt).inspect_err(|_| cached.invalidate_state())?;
            cached.advance(cached.n() + take);
        }
        Ok(())
    }

    /// Adds the n-grams of `tokens`, which follow the tokens `before` in their sequence, to the step.
    fn select_ngrams(&mut self, before: &[u32], tokens: &[u32]) {
        if let Some(by) = &self.model.ngrams {
            by.select(before, tokens, &mut self.arena.ngrams.rows);
        }
    }

    /// Makes the blocks of a sequence writable from the end of its valid tokens to position `end`.
    pub(super) fn own_blocks(&mut self, cached: &mut SequenceCache, end: usize) -> Result<()> {
        for index in cached.n() / KV_BLOCK..end.div_ceil(KV_BLOCK) {
            match cached.own_block(index) {
                Some(BlockOwnership::NoCopy) => {}
                Some(BlockOwnership::Copy { from, to, rows }) => self.copy_block(from, to, rows)?,
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
        let loaded = loaded(&mut self.ready)?;
        loaded.copy_cache(&self.placement, rows(from), rows(to))
    }

    fn copy_state(&mut self, from: usize, to: usize) -> Result<()> {
        let loaded = loaded(&mut self.ready)?;
        loaded.copy_state(&self.placement, from, to)
    }

    /// Appends `tokens` and passes the values of each layer's feed-forward block to `each`, with
    /// the index of the layer. Works in chunks of up to 64 tokens, layer by layer. It is slower
    /// than [`Engine::feed`] and computes no logits; a sequence may use both methods in turn. The
    /// first call records programs and allocates buffers for observation.
    ///
    /// # Errors
    /// As [`Engine::feed`], and [`hal::Error::DeviceLost`]: the next call continues without the
    /// device and passes the blocks of the interrupted chunk again, as after
    /// [`hal::Error::TimedOut`]. A caller that accumulates
    /// values must do so per call, and discard the values of a failed call.
    pub fn observe(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &ObservedBlock<'_>),
    ) -> Result<StepStats> {
        let mut each: Each<'_> = Each::Blocks(each);
        self.observe_any(sequence, tokens, interrupt, &mut each)
    }

    /// Appends `tokens` and passes the inputs of all weight matrices to `observer`, and the logits
    /// that it wants. Works as [`Engine::observe`]. Neurons are observed even if they are inactive.
    ///
    /// # Errors
    /// As [`Engine::observe`].
    pub fn observe_inputs(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        observer: &mut dyn InputObserver,
    ) -> Result<StepStats> {
        let mut each: Each<'_> = Each::Inputs(observer);
        self.observe_any(sequence, tokens, interrupt, &mut each)
    }

    fn observe_any(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut Each<'_>,
    ) -> Result<StepStats> {
        if self.options.whole_texts {
            return Err(Error::Encoder);
        }
        match self.observe_once(sequence, tokens, interrupt, each) {
            Err(Error::Device(hal::Error::DeviceLost { device, reason })) => {
                self.unload_after_loss(&device, &reason)?;
                Err(hal::Error::DeviceLost { device, reason }.into())
            }
            Err(Error::Device(error @ hal::Error::TimedOut { .. })) => {
                self.unload_after_timeout(&error);
                Err(error.into())
            }
            result => result,
        }
    }

    fn observe_once(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut Each<'_>,
    ) -> Result<StepStats> {
        self.ensure_placed()?;
        self.check_free_blocks(&[Feed {
            sequence: &mut *sequence,
            tokens,
            want: LogitsRequest::None,
        }])?;
        let mut stats = StepStats::default();
        for chunk in tokens.chunks(self.observed_tokens()) {
            self.ensure_placed()?;
            self.catch_up(sequence, interrupt)?;
            let Sequence { tokens, cached } = &mut *sequence;
            let end = cached.n() + chunk.len();
            self.own_blocks(cached, end)?;
            self.arena.clear_facts(self.options.n_seq);
            self.select_ngrams(tokens, chunk);
            let index = cached.slot().unwrap_or(0) as usize;
            add_to_batch(&mut self.arena.facts, index, cached, chunk, LogitsRequest::None);
            let model = Arc::clone(&self.model);
            let mut watch = match each {
                Each::Blocks(each) => Watch::Blocks(&mut **each),
                Each::Inputs(observer) => {
                    let position = end - chunk.len();
                    Watch::Inputs(InputWatch { model: &model, observer: &mut **observer, position })
                }
            };
            let step = self.step_observed(interrupt, &mut watch);
            stats += step.inspect_err(|_| cached.invalidate_state())?;
            cached.advance(end);
            tokens.extend_from_slice(chunk);
        }
        Ok(stats)
    }
}
