//! Errors in the specification of a synthetic model.

/// Why a specification is invalid or cannot be built. The messages list the supported values.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A specification that does not have three or four fields.
    #[error(
        "`{given}` is not a synthetic model, expected SHAPE:TYPE:relu, SHAPE:TYPE:silu, SHAPE:TYPE:relu:pwri or SHAPE*EXPERTS/USED:TYPE:silu"
    )]
    Syntax {
        /// The given text.
        given: String,
    },
    /// Neither a name nor a list of sizes.
    #[error("unknown shape `{given}`, expected {known} or EMBDxLAYERSxFFxHEADS/KV")]
    Shape {
        /// The given text.
        given: String,
        /// The names.
        known: String,
    },
    /// A format that synthetic weights cannot have.
    #[error("synthetic weights do not support format `{given}`, expected one of {known}")]
    Format {
        /// The given text.
        given: String,
        /// The supported formats.
        known: String,
    },
    /// An unsupported activation.
    #[error("unknown activation `{given}`, expected relu or silu")]
    Activation {
        /// The given text.
        given: String,
    },
    /// An invalid size.
    #[error("{what} is {found}, expected {expected}")]
    Size {
        /// Name of the size.
        what: &'static str,
        /// The given size.
        found: String,
        /// The expected size.
        expected: String,
    },
    /// PowerInfer's container for a model without a predictor. Only ReLU models with a set density
    /// have one.
    #[error("PowerInfer's container needs a ReLU model with a set density, but this is {found}")]
    Container {
        /// The requested model.
        found: &'static str,
    },
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
    /// An error of the container.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}
