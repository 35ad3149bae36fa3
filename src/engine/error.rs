//! Errors of loading and stepping.

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device refused or failed.
    #[error(transparent)]
    Device(#[from] hal::Error),
    /// An invalid placement.
    #[error(transparent)]
    Placement(#[from] placement::Error),
    /// The model's heads are not whole blocks of a KV cache format.
    #[error(
        "heads of {d_head} values are not whole blocks of {format}, so they cannot be cached in it"
    )]
    CacheFormat {
        /// Format of the cached keys or values.
        format: hal::format::Format,
        /// Values of a head.
        d_head: usize,
    },
    /// A context beyond the learned positions of the model.
    #[error("a context of {n_ctx} tokens exceeds the model's {n_positions} learned positions")]
    Positions {
        /// The requested context.
        n_ctx: usize,
        /// Learned positions of the model.
        n_positions: usize,
    },
    /// More tokens than the context holds.
    #[error("{n_tokens} tokens do not fit into the context of {n_ctx}")]
    ContextFull {
        /// Tokens that the context would have to hold.
        n_tokens: usize,
        /// Size of the context.
        n_ctx: usize,
    },
    /// More sequences with recurrent state than there are state rows.
    #[error("all {n_seq} state rows are used by other sequences")]
    TooManySequences {
        /// State rows.
        n_seq: usize,
    },
    /// The bytes are not a saved sequence of this engine.
    #[error("cannot restore the saved sequence: {0}")]
    NotRestored(#[from] NotRestored),
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
    /// The model computed NaN or infinite values.
    #[error("the model computed values that are not numbers (token {token} of the text)")]
    NotANumber {
        /// Position of the token.
        token: usize,
    },
}

/// Why bytes are not a sequence of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRestored {
    /// Another kind of file, or another version of the format.
    #[error("not a sequence saved by this version")]
    Magic,
    /// Changed or truncated since it was saved.
    #[error("the data is damaged: its checksum differs")]
    Checksum,
    /// Another model, other cache types, or other RoPE settings.
    #[error("it was saved with another model, cache type or RoPE setting")]
    Fingerprint,
    /// Counts that contradict the length.
    #[error("{got} bytes instead of {expected}")]
    Length {
        /// Length according to the counts.
        expected: usize,
        /// Length found.
        got: usize,
    },
    /// A token outside the model's vocabulary.
    #[error("token {id} is outside the vocabulary of {n_vocab}")]
    Token {
        /// The token.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
}

/// Result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;
