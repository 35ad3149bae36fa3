//! What can end a measurement.

use crate::{engine, gguf};

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine's.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Too little text for two chunks.
    #[error("the text has {n_tokens} tokens, a context of {n_ctx} needs at least {needed}")]
    TooShort {
        /// Tokens of the text.
        n_tokens: usize,
        /// Tokens of a chunk.
        n_ctx: usize,
        /// Tokens of two chunks.
        needed: usize,
    },
    /// A chunk whose second half is empty.
    #[error("a context of {n_ctx} leaves no token to predict, expected at least 3")]
    Context {
        /// Tokens of a chunk.
        n_ctx: usize,
    },
    /// A file of probabilities that cannot be read.
    #[error("{file}: cannot {action}: {reason}")]
    Open {
        /// Path.
        file: String,
        /// What was tried.
        action: &'static str,
        /// What the system said.
        reason: std::io::Error,
    },
    /// Another kind of file.
    #[error("{file}: is no file of probabilities: expected the magic `_logits_`, found {found}")]
    NotLogits {
        /// Path.
        file: String,
        /// What stands there, escaped.
        found: String,
    },
    /// A file of probabilities that contradicts itself.
    #[error("{file}: {what} is {found}, expected {expected}")]
    Damaged {
        /// Path.
        file: String,
        /// Which part.
        what: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// Probabilities over other tokens than the model's.
    #[error("{file}: has probabilities of {found} tokens, the model has {expected}")]
    Vocabulary {
        /// Path.
        file: String,
        /// The model's.
        expected: usize,
        /// The file's.
        found: u32,
    },
    /// A file of probabilities that cannot be written.
    #[error("{file}: {problem}")]
    Write {
        /// Path.
        file: String,
        /// What the system said.
        problem: gguf::Problem,
    },
}

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;
