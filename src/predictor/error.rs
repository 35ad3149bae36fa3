//! What can end the making or the reading of a predictor.

use crate::learned;

/// An error of a predictor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Weights that cannot be read.
    #[error("cannot read the model's weights: {reason}")]
    Read {
        /// What the contract says.
        reason: hal::Error,
    },
    /// Text that leaves too little to judge by.
    #[error("the text has {found} tokens, a predictor needs at least {needed}")]
    TooShort {
        /// Tokens there are.
        found: usize,
        /// Tokens needed.
        needed: usize,
    },
    /// Inputs of which no factors can be made.
    #[error("layer {layer}: the second moment of the inputs has no factors: {reason}")]
    Singular {
        /// Layer.
        layer: usize,
        /// What was tried.
        reason: &'static str,
    },
    /// Factors that are larger than they may be, whatever their format.
    #[error("factors of the block take {:.1} % of its bytes at least, more than {:.1} %", 100.0 * least, 100.0 * most)]
    TooLarge {
        /// What they may take, as a share.
        most: f64,
        /// What the smallest that were tried take.
        least: f64,
    },
    /// The training library gave up.
    #[error("layer {layer}: training failed: {reason}")]
    Training {
        /// Layer.
        layer: usize,
        /// What it says.
        reason: String,
    },
    /// A file of what is learned that is not used.
    #[error(transparent)]
    Refused(#[from] learned::Refused),
    /// A file of what is learned that cannot be written.
    #[error(transparent)]
    Save(#[from] learned::SaveError),
    /// A file with the predictor or the thresholds of some layers: the run that made it was interrupted.
    #[error("{file}: knows {found} of {expected} layers: the run that made it did not end")]
    Unfinished {
        /// Path.
        file: String,
        /// Layers there are.
        found: usize,
        /// The model's.
        expected: usize,
    },
    /// A file that somebody who was asked to, or was quicker, has saved since it was looked at.
    #[error(
        "{file}: another program has saved what it learned of this model meanwhile, which stays"
    )]
    Overtaken {
        /// Path.
        file: String,
    },
    /// A file with what another text or other settings made.
    #[error("{file}: was made otherwise ({found}), not by what is asked for now ({wanted})")]
    OtherRecipe {
        /// Path.
        file: String,
        /// How it was made.
        found: String,
        /// How it would be made.
        wanted: String,
    },
    /// A side file whose predictor contradicts the model or itself.
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
}

/// Result of work on predictors.
pub type Result<T> = std::result::Result<T, Error>;
