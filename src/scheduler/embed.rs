//! Embeddings and ranking scores of texts, computed between the steps of generations.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use engine::Sequence;
use model::{Model, RankHead, RankState};

use crate::request::Error;
use crate::worker::Worker;

/// How the hidden states of a text's tokens become an embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean over all tokens.
    Mean,
    /// The state of the first token.
    First,
    /// The state of the last token.
    Last,
    /// The outputs of the model's ranking head instead of a hidden state; the first is the score.
    Rank,
    /// No pooling: the states of all tokens, one after the other.
    None,
}

impl Pooling {
    /// The pooling that the file of `model` names (`pooling_type`), else the mean.
    #[must_use]
    pub fn of_model(model: &Model) -> Pooling {
        let kind = model.file.metadata().u32(&format!("{}.pooling_type", model.spec.name));
        match kind.ok().flatten() {
            // llama.cpp's numbers of the pooling types.
            Some(2) => Pooling::First,
            Some(3) => Pooling::Last,
            Some(4) if model.rank.is_some() => Pooling::Rank,
            _ => Pooling::Mean,
        }
    }
}

/// Receives an embedding on the scheduler's thread; it must not block.
pub type EmbeddingSink = Box<dyn FnOnce(Result<Vec<f32>, Error>) + Send>;

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

/// The queue of texts to embed. The first one may be in progress.
#[derive(Debug, Default)]
pub(crate) struct Embedding {
    pub(crate) jobs: VecDeque<EmbedJob>,
    /// The sequence of the first job; `None` if it has not begun.
    sequence: Option<Sequence>,
    /// The hidden states of the first job so far, by its pooling: their sum, the selected state, or
    /// all states.
    pooled: Vec<f64>,
}

impl Embedding {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Drops the sequence of the text in progress, which starts again later. Returns `false` if no
    /// text was in progress.
    pub(crate) fn restart_later(&mut self) -> bool {
        self.sequence.take().is_some()
    }

    pub(crate) fn fail(&mut self, error: &Error) {
        self.sequence = None;
        for job in self.jobs.drain(..) {
            (job.sink)(Err(error.clone()));
        }
    }
}

impl Worker<'_> {
    /// Computes a chunk of the first text. Returns `false` if no text is queued or memory is short.
    pub(crate) fn embed(&mut self) -> bool {
        let Some(EmbedJob { tokens, pooling, .. }) = self.embedding.jobs.front() else {
            return false;
        };
        let (wanted, n) = (*pooling, tokens.len());
        let model = self.engine.model();
        let head = model.rank.as_ref().filter(|_| wanted == Pooling::Rank);
        let takes = match (wanted, head.map(RankHead::state)) {
            (Pooling::Mean, _) | (_, Some(RankState::Mean)) => Pooling::Mean,
            (Pooling::First, _) | (_, Some(RankState::First)) => Pooling::First,
            (Pooling::Last | Pooling::Rank, _) | (_, Some(RankState::Last)) => Pooling::Last,
            (Pooling::None, None) => Pooling::None,
        };
        // Encoders need a text as a whole.
        let piece = if model.hyper.causal { self.piece } else { n };
        let sequence = self.embedding.sequence.take();
        let mut sequence = sequence.unwrap_or_else(|| self.engine.new_sequence());
        // If the cache of the sequence was lost with a device, start again.
        if self.engine.n_cached(&sequence) < sequence.tokens().len() {
            sequence = self.engine.new_sequence();
        }
        let start = sequence.tokens().len();
        let end = n.min(start + piece);
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
            if takes == Pooling::None {
                return pooled.extend(state.iter().map(|value| f64::from(*value)));
            }
            pooled.resize(state.len(), 0.0);
            let selected = if takes == Pooling::First { 0 } else { n - 1 };
            if takes == Pooling::Mean || position == selected {
                pooled.iter_mut().zip(state).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        };
        let interrupt = AtomicBool::new(false);
        let since = Instant::now();
        let computed =
            self.engine.hidden_states(&mut sequence, &tokens[start..end], &interrupt, each);
        let counters = &mut self.counters;
        counters.prompt_tokens += (end - start) as u64;
        counters.prompt_time += since.elapsed();
        (counters.n_steps, counters.n_busy_slots) =
            (counters.n_steps + 1, counters.n_busy_slots + 1);
        counters.n_tokens_max = counters.n_tokens_max.max(end as u64);
        if computed.is_ok() && end < n {
            self.embedding.sequence = Some(sequence);
            return true;
        }
        let divisor = if takes == Pooling::Mean { n as f64 } else { 1.0 };
        let mut vector: Vec<f32> = pooled.iter().map(|sum| (sum / divisor) as f32).collect();
        let model = self.engine.model();
        let head = model.rank.as_ref().filter(|_| wanted == Pooling::Rank);
        if wanted == Pooling::None {
            // The states of all tokens take much memory; free them.
            *pooled = Vec::new();
        }
        let result = computed.and_then(|()| {
            vector = match head {
                Some(head) => head.outputs(&vector),
                None if model.projections.is_empty() => vector,
                None => vector
                    .chunks(model.hyper.n_embd)
                    .flat_map(|state| model.project(state.to_vec()))
                    .collect(),
            };
            let is_finite = vector.iter().all(|value| value.is_finite());
            is_finite.then_some(vector).ok_or(engine::Error::NotANumber { token: n - 1 })
        });
        let result = result.map_err(|error| Error::Engine(error.into()));
        // Publish first, so that a caller that has the result reads an updated status.
        self.publish();
        if let Some(job) = self.embedding.jobs.pop_front() {
            (job.sink)(result);
        }
        true
    }

    /// Whether the KV blocks for `end` tokens are free, after evictions if necessary, and with
    /// recurrent layers also a state row.
    fn has_room_for(&mut self, sequence: &Sequence, end: usize) -> bool {
        let n_seq = self.engine.options().n_seq;
        if self.engine.is_recurrent() && self.running.len() >= n_seq {
            return false;
        }
        let missing = self.engine.n_missing_blocks(sequence, end);
        self.free_blocks(missing)
    }

    /// Number of slots for generations. With recurrent layers, the last state row may be reserved
    /// for a text to embed.
    pub(crate) fn n_admissible(&self) -> usize {
        let full = self.n_parallel == self.engine.options().n_seq;
        let reserved = self.engine.is_recurrent() && full && !self.embedding.is_empty();
        self.n_parallel - usize::from(reserved)
    }
}
