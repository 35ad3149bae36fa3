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
    NotRestored(#[from] super::NotRestored),
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

/// Result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;
