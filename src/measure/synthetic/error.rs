//! Errors in the specification of a synthetic model.

/// Every variant lists the supported values.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not three or four parts.
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
    /// A predictor for a model without planted activity.
    #[error("PowerInfer's container holds ReLU models with planted activity, not {found}")]
    Container {
        /// The requested model.
        found: &'static str,
    },
    /// An error of the container.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}
