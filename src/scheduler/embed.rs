//! Embeddings: texts as vectors, computed between the steps of generations.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;

use engine::Sequence;

use crate::request::Error;
use crate::worker::Worker;

/// How the hidden states of a text's tokens become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The state of the first token.
    First,
    /// The state of the last token.
    Last,
}

/// Receives an embedding on the scheduler's thread; it must not block.
pub type EmbeddingSink = Box<dyn FnOnce(Result<Vec<f32>, Error>) + Send>;

/// A text to embed.
pub(crate) struct EmbedJob {
    pub(crate) tokens: Vec<u32>,
    pub(crate) pooling: Pooling,
    pub(crate) sink: EmbeddingSink,
}

impl std::fmt::Debug for EmbedJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("EmbedJob");
        out.field("n_tokens", &self.tokens.len()).field("pooling", &self.pooling);
        out.finish_non_exhaustive()
    }
}

/// The texts that wait, and the one in progress.
#[derive(Debug, Default)]
pub(crate) struct Embedding {
    pub(crate) jobs: VecDeque<EmbedJob>,
    /// Of the first job.
    sequence: Option<Sequence>,
    /// Sums over its tokens so far, or the one state that counts.
    pooled: Vec<f64>,
}

impl Embedding {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Drops the sequence of the text in progress, which begins again later. Returns whether there
    /// was one.
    pub(crate) fn give_way(&mut self) -> bool {
        self.sequence.take().is_some()
    }

    /// Passes an error to all that wait.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.sequence = None;
        for job in self.jobs.drain(..) {
            (job.sink)(Err(error.clone()));
        }
    }
}

impl Worker<'_> {
    /// Computes a piece of the first text. Returns whether it could.
    pub(crate) fn embed(&mut self) -> bool {
        let Some(EmbedJob { tokens, pooling, .. }) = self.embedding.jobs.front() else {
            return false;
        };
        let (pooling, n) = (*pooling, tokens.len());
        let sequence = self.embedding.sequence.take();
        let mut sequence = sequence.unwrap_or_else(|| self.engine.open());
        // A lost device takes the cache of the sequence with it: begin again.
        if self.engine.n_cached(&sequence) < sequence.tokens().len() {
            sequence = self.engine.open();
        }
        let start = sequence.tokens().len();
        let end = n.min(start + self.piece);
        if !self.has_room_for(&sequence, end) {
            self.embedding.sequence = Some(sequence).filter(|_| start > 0);
            return false;
        }
        let Embedding { jobs, pooled, .. } = &mut self.embedding;
        let Some(EmbedJob { tokens, .. }) = jobs.front() else { return false };
        if start == 0 {
            pooled.clear();
        }
        let each = &mut |position: usize, state: &[f32]| {
            pooled.resize(state.len(), 0.0);
            let counts = match pooling {
                Pooling::Mean => true,
                Pooling::First => position == 0,
                Pooling::Last => position + 1 == n,
            };
            if counts {
                pooled.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        };
        let go_on = AtomicBool::new(false);
        let computed = self.engine.hidden_states(&mut sequence, &tokens[start..end], &go_on, each);
        self.counters.prompt_tokens += (end - start) as u64;
        if computed.is_ok() && end < n {
            self.embedding.sequence = Some(sequence);
            return true;
        }
        let divisor = if pooling == Pooling::Mean { n as f64 } else { 1.0 };
        let vector = pooled.iter().map(|sum| (sum / divisor) as f32).collect();
        let result = computed.map(|()| vector).map_err(|error| Error::Engine(error.into()));
        if let Some(job) = self.embedding.jobs.pop_front() {
            (job.sink)(result);
        }
        true
    }

    /// Whether the blocks for `end` tokens are free, or become free by evictions, and with
    /// recurrent layers a state row too.
    fn has_room_for(&mut self, sequence: &Sequence, end: usize) -> bool {
        let n_seq = self.engine.options().n_seq;
        if self.engine.is_recurrent() && self.running.len() >= n_seq {
            return false;
        }
        let missing = self.engine.n_missing_blocks(sequence, end);
        self.free_blocks(missing)
    }

    /// Slots for generations: with recurrent layers a waiting text needs the last state row.
    pub(crate) fn n_admissible(&self) -> usize {
        let full = self.n_parallel == self.engine.options().n_seq;
        let reserved = self.engine.is_recurrent() && full && !self.embedding.is_empty();
        self.n_parallel - usize::from(reserved)
    }
}
