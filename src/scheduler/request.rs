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
    /// Sampling parameters. Choice `i` uses the seed plus `i`.
    pub sampler: SamplerConfig,
    /// Stop conditions and output settings.
    pub settings: Settings,
    /// Number of independent continuations of the prompt, which is computed only once.
    pub n_choices: usize,
    /// Report the log-probability of each token, and of this number of most likely tokens.
    pub n_logprobs: Option<usize>,
    /// Report log-probabilities of the distribution after all samplers instead of the model's.
    pub post_sampling: bool,
    /// Report the log-probabilities of the prompt's tokens ([`Event::PromptLogprobs`]). All of the
    /// prompt is then computed.
    pub prompt_logprobs: bool,
    /// Constraints on the output: none, or one per choice.
    pub constraints: Vec<Box<dyn Constraint>>,
    /// Reuse cached tokens for the prompt, and keep the sequence in the cache for later prompts.
    pub cache_prompt: bool,
    /// The slot to run in; `None` for any slot.
    pub slot: Option<usize>,
    /// Time at which the request ends, even if it is still waiting ([`EndReason::Deadline`]).
    pub deadline: Option<Instant>,
    /// Time from the first token after which the next line break ends the generation
    /// ([`EndReason::TimeLimit`]).
    pub max_time: Option<Duration>,
}

impl Default for Request {
    fn default() -> Request {
        Request {
            prompt: Vec::new(),
            sampler: SamplerConfig::default(),
            settings: Settings::default(),
            n_choices: 1,
            n_logprobs: None,
            post_sampling: false,
            prompt_logprobs: false,
            constraints: Vec::new(),
            cache_prompt: true,
            slot: None,
            deadline: None,
            max_time: None,
        }
    }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The model is an encoder.
    #[error(
        "this model is an encoder: it computes embeddings (/v1/embeddings) and generates no text"
    )]
    Encoder,
    /// The queue is full.
    #[error("the queue is full ({n_queued} waiting)")]
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
    /// No choices, more than [`MAX_CHOICES`], or constraints for another number of choices.
    #[error(
        "{n_choices} choices with {n_constraints} constraints; use 1 to 128 choices, with no constraint or one for each"
    )]
    BadChoices {
        /// Requested choices.
        n_choices: usize,
        /// Constraints given.
        n_constraints: usize,
    },
    /// The slot does not exist.
    #[error("slot {slot} does not exist; the number of slots is {n_slots}")]
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
pub const MAX_CHOICES: usize = 128;

/// An event of one choice of a request.
#[derive(Debug)]
pub struct Update {
    /// The choice, from 0.
    pub choice: usize,
    /// The event.
    pub event: Event,
}

/// An event of a generation. The last event is [`Event::Finished`] or [`Event::Failed`].
#[derive(Debug)]
pub enum Event {
    /// The generation has left the queue and started.
    Started {
        /// The slot of the generation.
        slot: usize,
        /// Tokens of the prompt that are not computed, because they are cached.
        n_cached: usize,
    },
    /// Progress of prefill.
    Prefill {
        /// Tokens computed or cached so far.
        done: usize,
        /// Tokens of the prompt.
        total: usize,
        /// Number of tokens that were cached.
        cached: usize,
    },
    /// Log-probabilities of the prompt's tokens, if requested. The first token has none.
    PromptLogprobs(Vec<Option<TokenLogprobs>>),
    /// A generated token, or text that was held back until the end.
    Token(TokenEvent),
    /// The generation ended.
    Finished(Report),
    /// An error ended the generation.
    Failed(Error),
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// Id of the token; `None` for text that was held back until the end, because it could have
    /// begun a stop string.
    pub id: Option<u32>,
    /// The text that became final with this token. May be empty, or the text of several tokens.
    pub text: String,
    /// The token's own bytes, which may be incomplete characters; for a control token, its name.
    pub bytes: Vec<u8>,
    /// Log-probabilities, if requested.
    pub logprobs: Option<TokenLogprobs>,
}

/// Natural logarithms of probabilities: the log-softmax of the raw logits over the vocabulary,
/// before penalties, temperature and constraints; or, for [`Request::post_sampling`], those of the
/// distribution that the token was drawn from.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// Log-probability of the sampled token.
    pub chosen: f32,
    /// The most likely tokens, best first; after sampling only those that could be drawn.
    pub top: Vec<(u32, f32)>,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The model ended its text.
    EndOfText,
    /// A stop string was generated.
    Stop,
    /// The constraint is complete.
    Complete,
    /// `n_predict` tokens were generated.
    Length,
    /// A line ended after [`Request::max_time`] had passed.
    TimeLimit,
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
    /// Why the generation ended.
    pub ended: EndReason,
    /// The stop string, for [`EndReason::Stop`].
    pub stopped_by: Option<String>,
    /// The end-of-generation token, which is not part of the text, for [`EndReason::EndOfText`].
    pub end: Option<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Number of prompt tokens that were cached and therefore not computed.
    pub n_cached: usize,
    /// Tokens generated, including the token that ended the text.
    pub n_generated: usize,
    /// Number of context shifts.
    pub n_shifts: usize,
    /// Number of times the generation was paused because other generations needed its KV blocks.
    pub n_paused: usize,
    /// Seed of the sampler.
    pub seed: u32,
    /// Durations.
    pub times: Times,
}

/// Durations of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// From the submission of the request to the start of the generation.
    pub queued: Duration,
    /// From the start to the first token.
    pub prompt: Duration,
    /// From the first token to the end.
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
    /// An error of the constraint on the output.
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

/// Callback for the events of a request. It runs on the scheduler's thread and must not block.
/// Returning `Break` cancels the request.
pub type Sink = Box<dyn FnMut(Update) -> ControlFlow<()> + Send>;
