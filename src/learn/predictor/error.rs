//! Errors of making or reading a predictor.

use crate::learned;

/// An error of a predictor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Weights cannot be read.
    #[error("cannot read the model's weights: {reason}")]
    Read {
        /// The cause.
        reason: hal::Error,
    },
    /// Too little text to train and evaluate a predictor.
    #[error("the text has {found} tokens, but training a predictor needs at least {needed}")]
    TooShort {
        /// Number of tokens.
        found: usize,
        /// Required number of tokens.
        needed: usize,
    },
    /// Inputs or weights that cannot be factored.
    #[error("layer {layer}: cannot factor the second moment of the inputs: {reason}")]
    Singular {
        /// Layer.
        layer: usize,
        /// The cause.
        reason: &'static str,
    },
    /// Factors that exceed the size limit in every format.
    #[error("the predictor takes at least {:.1} % of the feed-forward bytes, more than the limit of {:.1} %", 100.0 * least, 100.0 * most)]
    TooLarge {
        /// The limit, as a fraction of the block's bytes.
        most: f64,
        /// The size of the smallest candidate, as a fraction of the block's bytes.
        least: f64,
    },
    /// A side file that is not used.
    #[error(transparent)]
    Refused(#[from] learned::SideFileError),
    /// A side file that cannot be written.
    #[error(transparent)]
    Save(#[from] learned::SaveError),
    /// A side file with the predictor or the thresholds of only some layers: the run that made it
    /// was interrupted.
    #[error(
        "{file} is unfinished ({found} of {expected} layers): the run that wrote it was interrupted"
    )]
    Unfinished {
        /// Path.
        file: String,
        /// Layers in the file.
        found: usize,
        /// Layers of the model.
        expected: usize,
    },
    /// Another process has saved a result since this one read the file; that result is kept.
    #[error("{file}: another process has saved a result for this model; that result is kept")]
    NewerResult {
        /// Path.
        file: String,
    },
    /// A file made from another text or with other settings.
    #[error("{file} was made with other settings ({found}) than those of this run ({wanted})")]
    OtherRecipe {
        /// Path.
        file: String,
        /// The settings of the file.
        found: String,
        /// The requested settings.
        wanted: String,
    },
    /// A side file whose predictor is inconsistent with the model or itself.
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
}

/// Result of an operation on predictors.
pub type Result<T> = std::result::Result<T, Error>;
