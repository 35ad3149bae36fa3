//! Errors of loading and stepping.

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device rejected a call or failed.
    #[error(transparent)]
    Device(#[from] hal::Error),
    /// An invalid placement.
    #[error(transparent)]
    Placement(#[from] placement::Error),
    /// A layer is split between devices, and its experts are wider than what hand-offs carry.
    #[error(
        "layer {layer} cannot be split between devices, because its experts read {width} values and hand-offs carry {n_embd}: place the layer on one device"
    )]
    WideExperts {
        /// Index of the layer.
        layer: usize,
        /// Width of the experts.
        width: usize,
        /// Width of the residual.
        n_embd: usize,
    },
    /// The size of the model's heads is not a multiple of the block size of a KV cache format.
    #[error("heads of {d_head} values are not whole blocks of the KV cache type {format}")]
    CacheFormat {
        /// Format of the cached keys or values.
        format: hal::format::Format,
        /// Number of values of a head.
        d_head: usize,
    },
    /// The context is longer than the learned positions of the model.
    #[error("a context of {n_ctx} tokens exceeds the model's {n_positions} learned positions")]
    Positions {
        /// The requested context.
        n_ctx: usize,
        /// Learned positions of the model.
        n_positions: usize,
    },
    /// The tokens do not fit into the context.
    #[error("{n_tokens} tokens do not fit into the context of {n_ctx} tokens")]
    ContextFull {
        /// Tokens that the context would have to hold.
        n_tokens: usize,
        /// Size of the context.
        n_ctx: usize,
    },
    /// More sequences with recurrent state than the engine has state rows.
    #[error("all {n_seq} slots for recurrent state are used by other sequences")]
    TooManySequences {
        /// Number of state rows.
        n_seq: usize,
    },
    /// The bytes are not a saved sequence of this engine.
    #[error("cannot restore the saved sequence: {0}")]
    NotRestored(#[from] NotRestored),
    /// Weights on disk cannot be read, or do not fit into the budget in memory.
    #[error(transparent)]
    Store(store::Error),
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
    /// Logits or activity of an encoder.
    #[error(
        "this model is an encoder: it computes embeddings of whole texts, and generates no text"
    )]
    Encoder,
    /// A text for an encoder came in parts.
    #[error("an encoder needs a text as a whole, but the sequence has {n_tokens} tokens already")]
    TextInParts {
        /// Tokens of the sequence.
        n_tokens: usize,
    },
    /// The model computed NaN logits.
    #[error("the model computed NaN logits at token {token} of the text")]
    NotANumber {
        /// Position of the token.
        token: usize,
    },
}

/// Why bytes cannot be restored as a sequence of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    /// The data is not a saved sequence, or has another format version.
    #[error("it is not a saved sequence, or another version saved it")]
    Magic,
    /// The data was changed or truncated since it was saved.
    #[error("the data is damaged: its checksum differs")]
    Checksum,
    /// The sequence was saved with another model, other cache types, or other RoPE settings.
    #[error("it was saved with another model, cache type or RoPE setting")]
    Fingerprint,
    /// The counts in the header contradict the length.
    #[error("it has {got} bytes, but its header says {expected}")]
    Length {
        /// Length according to the counts.
        expected: usize,
        /// Length found.
        got: usize,
    },
    /// A token is outside the vocabulary of the model.
    #[error("token {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// Id of the token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}

/// Result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Error {
        if error == store::Error::Interrupted { Error::Interrupted } else { Error::Store(error) }
    }
}
