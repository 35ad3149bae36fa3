//! Why there is no such model.

use crate::gguf;

/// Every variant says what there is instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not three parts, or four.
    #[error(
        "`{given}` is no synthetic model, expected SHAPE:TYPE:relu, SHAPE:TYPE:silu or SHAPE:TYPE:relu:pwri"
    )]
    Syntax {
        /// What was given.
        given: String,
    },
    /// Neither a name nor a list of sizes.
    #[error("unknown shape `{given}`, expected {known} or EMBDxLAYERSxFFxHEADS/KV")]
    Shape {
        /// What was given.
        given: String,
        /// The names.
        known: String,
    },
    /// A format that weights cannot have.
    #[error("no weights are made in format `{given}`, expected one of {known}")]
    Format {
        /// What was given.
        given: String,
        /// The formats.
        known: String,
    },
    /// Another activation.
    #[error("unknown activation `{given}`, expected relu or silu")]
    Activation {
        /// What was given.
        given: String,
    },
    /// A size that cannot be.
    #[error("{what} is {found}, expected {expected}")]
    Size {
        /// Which size.
        what: &'static str,
        /// The size.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A predictor for neurons that do not fire.
    #[error("PowerInfer's container holds ReLU models with planted activity, not {found}")]
    Container {
        /// What was asked for.
        found: &'static str,
    },
    /// The container could not be written.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}
