//! Requests, and the events that answer them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use runtime::{SamplerConfig, Settings};
use text::sample::Constraint;

/// A generation to run.
#[derive(Debug)]
pub struct Request {
    /// Tokens to continue.
    pub prompt: Vec<u32>,
    /// How tokens are sampled. Choice `i` has the seed plus `i`.
    pub sampler: SamplerConfig,
    /// Stop conditions and output settings.
    pub settings: Settings,
    /// Independent continuations of the prompt; the prompt is computed once.
    pub n_choices: usize,
    /// Report the log-probability of each token, and of this number of most likely ones.
    pub n_logprobs: Option<usize>,
    /// Report the log-probabilities of the prompt's tokens ([`Event::PromptLogprobs`]). All of the
    /// prompt is then computed.
    pub prompt_logprobs: bool,
    /// Restrict the output: empty, or one constraint per choice.
    pub constraints: Vec<Box<dyn Constraint>>,
    /// Reuse cached tokens for the prompt, and keep the result for later prompts.
    pub cache_prompt: bool,
    /// Run in this slot; `None` for any.
    pub slot: Option<usize>,
    /// End then, also while waiting ([`Ended::Deadline`]).
    pub deadline: Option<Instant>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            prompt: Vec::new(),
            sampler: SamplerConfig::default(),
            settings: Settings::default(),
            n_choices: 1,
            n_logprobs: None,
            prompt_logprobs: false,
            constraints: Vec::new(),
            cache_prompt: true,
            slot: None,
            deadline: None,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests wait already.
    #[error("{n_queued} requests are waiting, which is the maximum")]
    QueueFull {
        /// Waiting requests.
        n_queued: usize,
    },
    /// The prompt leaves no room for a generated token.
    #[error("the prompt has {n_prompt} tokens, but the context holds {n_ctx}")]
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Maximum number of tokens of a sequence.
        n_ctx: usize,
    },
    /// A prompt without tokens.
    #[error("the prompt has no tokens")]
    Empty,
    /// A token outside the vocabulary.
    #[error("token {id} is outside the vocabulary of {n_vocab}")]
    BadToken {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// Invalid sampling options.
    #[error(transparent)]
    BadSampler(#[from] text::sample::Error),
    /// No choices, more than [`MOST_CHOICES`], or constraints for another number of choices.
    #[error("{n_choices} choices with {n_constraints} constraints")]
    BadChoices {
        /// Requested choices.
        n_choices: usize,
        /// Constraints given.
        n_constraints: usize,
    },
    /// The slot does not exist.
    #[error("no slot {slot}: there are {n_slots}")]
    NoSuchSlot {
        /// The requested slot, from 0.
        slot: usize,
        /// Number of slots.
        n_slots: usize,
    },
    /// The scheduler is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The scheduler failed ([`crate::Notice::Panicked`]).
    #[error("the scheduler has failed and must be restarted")]
    Unhealthy,
}

/// Maximum number of choices of a request.
pub const MOST_CHOICES: usize = 128;

/// An event of one choice of a request.
#[derive(Debug)]
pub struct Update {
    /// The choice, from 0.
    pub choice: usize,
    /// The event.
    pub event: Event,
}

/// An event of a generation. [`Event::Finished`] or [`Event::Failed`] is the last.
#[derive(Debug)]
pub enum Event {
    /// It runs; before, it waited.
    Started {
        /// The slot it runs in.
        slot: usize,
        /// Tokens of the prompt that are not computed, because they are cached.
        n_cached: usize,
    },
    /// Progress of the prompt.
    Prefill {
        /// Tokens computed or cached so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// The number that was cached.
        cached: usize,
    },
    /// Log-probabilities of the prompt's tokens, the first of which has none. Only on request.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// A generated token, or text that was held back until the end.
    Token(TokenEvent),
    /// The end.
    Finished(Report),
    /// An error ended it.
    Failed(Error),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Its id; `None` for text that was held back until the end, because a stop string could have
    /// begun in it.
    pub id: Option<u32>,
    /// Text that is final: may be empty, or of several tokens.
    pub text: String,
    /// The token's own bytes, which may be incomplete characters; its name for a control token.
    pub bytes: Vec<u8>,
    /// Log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Natural logarithms of probabilities: the log-softmax of the raw logits over the vocabulary,
/// before penalties, temperature and constraints.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The model ended its text.
    EndOfText,
    /// A stop string was generated.
    Stop,
    /// The constraint is complete.
    Complete,
    /// `n_predict` tokens were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The deadline passed.
    Deadline,
    /// The receiver was dropped or refused an event.
    Cancelled,
    /// The scheduler shut down.
    Shutdown,
}

/// Statistics of a generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Why it ended.
    pub ended: Ended,
    /// The stop string, for [`Ended::Stop`].
    pub stopped_by: Option<String>,
    /// The token that ended the text and is not part of it, for [`Ended::EndOfText`].
    pub end: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of these that were cached, so that they were not computed.
    pub n_cached: usize,
    /// Tokens generated, including one that ended the text.
    pub n_generated: usize,
    /// Number of context shifts.
    pub n_shifts: usize,
    /// Number of times it was paused, because other generations needed its KV blocks.
    pub n_paused: usize,
    /// Seed of the sampler.
    pub seed: u32,
    /// Durations.
    pub times: Times,
}

/// Durations of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From its submission to its start.
    pub queued: Duration,
    /// From its start to its first token.
    pub prompt: Duration,
    /// From its first token to its end.
    pub generated: Duration,
}

/// An error that ends a generation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine.
    #[error("{0}")]
    Engine(Arc<engine::Error>),
    /// An error of the sampler.
    #[error(transparent)]
    Sample(#[from] text::sample::Error),
    /// A constraint on the output.
    #[error(transparent)]
    Constraint(#[from] text::sample::ConstraintError),
    /// An error of the tokenizer.
    #[error("{0}")]
    Tokenizer(Arc<text::tokenizer::Error>),
    /// The scheduler shut down before the generation started.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The scheduler's thread panicked.
    #[error("the scheduler has failed")]
    Panicked,
}

impl From<text::tokenizer::Error> for Error {
    fn from(error: text::tokenizer::Error) -> Error {
        Error::Tokenizer(Arc::new(error))
    }
}

/// Receives the events of a request, on the scheduler's thread; it must not block. `Break` cancels
/// the request.
pub type Sink = Box<dyn FnMut(Update) -> ControlFlow<()> + Send>;
