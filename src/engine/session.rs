//! A text under way: its tokens, its cache blocks, and what to do when a device is lost.

use std::sync::atomic::AtomicBool;

use hal::{BatchFacts, BatchSeq, BatchToken, KV_BLOCK};

use super::{Engine, Error, Observed, Result, StepStats};

/// Which logits a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Those after the last token.
    Last,
    /// Those after every token, in order.
    All,
}

/// One sequence in an engine. Its blocks go back to the engine with [`Engine::close`].
#[derive(Debug)]
pub struct Session {
    tokens: Vec<u32>,
    blocks: Vec<u32>,
    /// The engine's generation whose cache holds the tokens.
    generation: u64,
}

impl Session {
    pub(super) fn new(generation: u64) -> Session {
        Session { tokens: Vec::new(), blocks: Vec::new(), generation }
    }

    /// The tokens that are in the cache.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Engine {
    /// A new, empty sequence.
    #[must_use]
    pub fn open(&self) -> Session {
        Session::new(self.generation())
    }

    /// Gives a sequence's cache blocks back.
    pub fn close(&mut self, session: Session) {
        self.free_blocks(session.generation, session.blocks);
    }

    /// Forgets the tokens from `n` on.
    pub fn truncate(&mut self, session: &mut Session, n: usize) {
        session.tokens.truncate(n);
        let keep = session.tokens.len().div_ceil(KV_BLOCK).min(session.blocks.len());
        self.free_blocks(session.generation, session.blocks.split_off(keep));
    }

    /// Appends `tokens` and calls `each` with the logits wanted, in order of position. When a device is lost, the
    /// step is discarded, what it held is placed on what is left, the cache is rebuilt from the tokens, and
    /// the step is done again; `notice` hears about it.
    ///
    /// # Errors
    /// [`Error::ContextFull`] before anything is computed; [`Error::Interrupted`], after which the sequence
    /// stands where it was after the last whole step; [`Error::NotANumber`]; errors of the devices.
    pub fn feed(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        want: Want,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepStats> {
        let n_tokens = session.tokens.len() + tokens.len();
        if n_tokens > self.n_ctx() {
            return Err(Error::ContextFull { n_tokens, n_ctx: self.n_ctx() });
        }
        self.check_room(session, n_tokens)?;
        let mut stats = StepStats::default();
        let mut rest = tokens;
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(self.piece(rest.len(), want));
            let output = match want {
                Want::All => Output::All,
                Want::Last if after.is_empty() => Output::Last,
                Want::Last => Output::None,
            };
            let step = self.piece_with_recovery(session, piece, output, interrupt, each)?;
            stats += step;
            rest = after;
        }
        Ok(stats)
    }

    /// Other sessions may hold what this one would need.
    fn check_room(&self, session: &Session, n_tokens: usize) -> Result<()> {
        let (held, free) = match session.generation == self.generation() {
            true => (session.blocks.len(), self.n_free_blocks()),
            false => (0, self.n_free_blocks()),
        };
        match n_tokens.div_ceil(KV_BLOCK) <= held + free {
            true => Ok(()),
            false => Err(Error::ContextFull { n_tokens, n_ctx: (held + free) * KV_BLOCK }),
        }
    }

    /// The largest rung of the ladder that is not larger than what is left: no step is padded.
    fn piece(&self, left: usize, want: Want) -> usize {
        let most = match want {
            Want::Last => left,
            Want::All => left.min(self.options().max_out()),
        };
        self.options().ladder().into_iter().rev().find(|&rung| rung <= most).unwrap_or(1)
    }

    fn piece_with_recovery(
        &mut self,
        session: &mut Session,
        piece: &[u32],
        output: Output,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepStats> {
        loop {
            match self.piece_on_what_is_left(session, piece, output, interrupt, each) {
                Err(Error::Device(hal::Error::DeviceLost { device, reason })) => {
                    self.lose(&device, &reason)?;
                }
                other => return other,
            }
        }
    }

    fn piece_on_what_is_left(
        &mut self,
        session: &mut Session,
        piece: &[u32],
        output: Output,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepStats> {
        self.ensure_placed()?;
        if session.generation != self.generation() {
            self.rebuild(session, interrupt)?;
        }
        self.piece_once(session, piece, output, interrupt, each)
    }

    /// Fills the cache of a new generation with the session's tokens.
    fn rebuild(&mut self, session: &mut Session, interrupt: &AtomicBool) -> Result<()> {
        let tokens = std::mem::take(&mut session.tokens);
        session.blocks.clear();
        session.generation = self.generation();
        let mut rest = &tokens[..];
        let mut result = Ok(());
        while !rest.is_empty() && result.is_ok() {
            let (piece, after) = rest.split_at(self.piece(rest.len(), Want::Last));
            let done = self.piece_once(session, piece, Output::None, interrupt, &mut |_, _| {});
            result = done.map(|_| ());
            rest = after;
        }
        if result.is_err() {
            // What is in the cache is not the text: the next try starts anew.
            let blocks = std::mem::take(&mut session.blocks);
            self.free_blocks(session.generation, blocks);
            session.tokens = tokens;
            session.generation = u64::MAX;
        }
        result
    }

    fn piece_once(
        &mut self,
        session: &mut Session,
        piece: &[u32],
        output: Output,
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<StepStats> {
        let facts = self.facts(session, piece, output)?;
        let n_vocab = self.model().n_vocab();
        let (stats, logits) = self.step(&facts, interrupt)?;
        let outputs = facts.tokens.iter().filter(|t| t.output).zip(logits.chunks_exact(n_vocab));
        for (token, logits) in outputs {
            if logits.iter().any(|v| v.is_nan()) {
                return Err(Error::NotANumber { token: token.pos as usize });
            }
            each(token.pos as usize, logits);
        }
        session.tokens.extend_from_slice(piece);
        Ok(stats)
    }

    /// The facts of a step that appends `piece`, with room for it in the cache.
    fn facts(
        &mut self,
        session: &mut Session,
        piece: &[u32],
        output: Output,
    ) -> Result<BatchFacts> {
        let first = session.tokens.len();
        let end = first + piece.len();
        while session.blocks.len() * KV_BLOCK < end {
            let block = self.take_block().ok_or(Error::ContextFull {
                n_tokens: end,
                n_ctx: session.blocks.len() * KV_BLOCK,
            })?;
            session.blocks.push(block);
        }
        let token = |(i, &id): (usize, &u32)| BatchToken {
            id,
            seq: 0,
            pos: (first + i) as u32,
            output: match output {
                Output::None => false,
                Output::Last => i + 1 == piece.len(),
                Output::All => true,
            },
        };
        Ok(BatchFacts {
            tokens: piece.iter().enumerate().map(token).collect(),
            seqs: vec![BatchSeq { blocks: session.blocks.clone(), len: end as u32 }],
        })
    }

    /// Appends `tokens` and shows each layer's feed-forward block to `each`, with the number of the layer: in pieces of
    /// up to 64 tokens, layer by layer for each piece. Slower than [`Engine::feed`] and without logits; both may take
    /// turns in a session. The first call makes programs and buffers of their own for it.
    ///
    /// # Errors
    /// As [`Engine::feed`], but for the loss of a device: the next call goes on without it, and what `each` has seen of
    /// the piece at hand comes again. Whoever adds things up does so for whole calls, and drops what a failed one gave.
    pub fn observe(
        &mut self,
        session: &mut Session,
        tokens: &[u32],
        interrupt: &AtomicBool,
        each: &mut dyn FnMut(usize, &Observed<'_>),
    ) -> Result<StepStats> {
        let n_tokens = session.tokens.len() + tokens.len();
        if n_tokens > self.n_ctx() {
            return Err(Error::ContextFull { n_tokens, n_ctx: self.n_ctx() });
        }
        self.check_room(session, n_tokens)?;
        let mut stats = StepStats::default();
        for piece in tokens.chunks(self.observed_piece()) {
            self.ensure_placed()?;
            if session.generation != self.generation() {
                self.rebuild(session, interrupt)?;
            }
            let facts = self.facts(session, piece, Output::None)?;
            match self.step_observed(&facts, interrupt, each) {
                Ok(step) => stats += step,
                Err(error) => {
                    if let Error::Device(hal::Error::DeviceLost { device, reason }) = &error {
                        self.lose(device, reason)?;
                    }
                    return Err(error);
                }
            }
            session.tokens.extend_from_slice(piece);
        }
        Ok(stats)
    }
}

#[derive(Clone, Copy)]
enum Output {
    None,
    Last,
    All,
}
