//! What can end a load or a step.

/// An error of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device refused or failed.
    #[error(transparent)]
    Device(#[from] hal::Error),
    /// A placement that cannot be.
    #[error(transparent)]
    Placement(#[from] crate::placement::Error),
    /// A format of the KV cache whose blocks the model's heads do not fill.
    #[error(
        "heads of {d_head} values are not whole blocks of {format}, so they cannot be cached in it"
    )]
    CacheFormat {
        /// What keys or values were to be cached in.
        format: hal::format::Format,
        /// Values of a head.
        d_head: usize,
    },
    /// A context beyond the positions that the model has learned.
    #[error(
        "a context of {n_ctx} tokens is wanted, and the model has learned {n_positions} positions"
    )]
    Positions {
        /// What was wanted.
        n_ctx: usize,
        /// What there is.
        n_positions: usize,
    },
    /// More tokens than the context holds.
    #[error("{n_tokens} tokens do not fit into the context of {n_ctx}")]
    ContextFull {
        /// Tokens that would be in it.
        n_tokens: usize,
        /// Its size.
        n_ctx: usize,
    },
    /// The user stopped it.
    #[error("interrupted")]
    Interrupted,
    /// The arithmetic gave something that is not a number.
    #[error("the model computed values that are not numbers (token {token} of the text)")]
    NotANumber {
        /// Position of the token.
        token: usize,
    },
}

/// Result of the engine's calls.
pub type Result<T> = std::result::Result<T, Error>;
