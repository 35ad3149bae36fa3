//! Errors of a measurement.

/// An error of a measurement.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the engine.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Too little text for two chunks.
    #[error("the text has {n_tokens} tokens, but a context of {n_ctx} needs at least {needed}")]
    TooShort {
        /// Tokens of the text.
        n_tokens: usize,
        /// Tokens of a chunk.
        n_ctx: usize,
        /// Tokens of two chunks.
        needed: usize,
    },
    /// A chunk whose second half is empty.
    #[error("a context of {n_ctx} leaves no token to predict; it needs at least 3")]
    Context {
        /// Tokens of a chunk.
        n_ctx: usize,
    },
    /// Nothing to trace: every token uses all neurons.
    #[error("every token uses all neurons of this model, so that there is nothing to trace")]
    NoChoices,
    /// A file of probabilities cannot be read.
    #[error("{file}: cannot {action}: {reason}")]
    Open {
        /// Path.
        file: String,
        /// The operation.
        action: &'static str,
        /// The I/O error.
        reason: std::io::Error,
    },
    /// Not a file of probabilities.
    #[error("{file} is not a file of probabilities: expected the magic `_logits_`, found {found}")]
    NotLogits {
        /// Path.
        file: String,
        /// The actual magic, escaped.
        found: String,
    },
    /// A file of probabilities with inconsistent contents.
    #[error("{file}: {what} is {found}, expected {expected}")]
    Damaged {
        /// Path.
        file: String,
        /// The field.
        what: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// Probabilities for another vocabulary.
    #[error(
        "{file} has probabilities of {found} tokens, but the model's vocabulary has {expected}"
    )]
    Vocabulary {
        /// Path.
        file: String,
        /// Size of the model's vocabulary.
        expected: usize,
        /// Size of the file's vocabulary.
        found: u32,
    },
    /// An input that is infinite or NaN.
    #[error("the inputs of tensor `{tensor}` are infinite or NaN")]
    NotFinite {
        /// The tensor.
        tensor: String,
    },
    /// An importance matrix of another model.
    #[error("the importance matrix has {found} sums for tensor `{tensor}`, expected {expected}")]
    ForeignSums {
        /// The tensor.
        tensor: String,
        /// Columns of the tensor, over all of its matrices.
        expected: u64,
        /// Sums in the file.
        found: usize,
    },
    /// A file of probabilities cannot be written.
    #[error("{file}: {problem}")]
    Write {
        /// Path.
        file: String,
        /// The problem.
        problem: gguf::Problem,
    },
}

/// Result of a measurement.
pub type Result<T> = std::result::Result<T, Error>;
