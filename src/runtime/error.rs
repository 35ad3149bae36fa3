//! Why a model cannot be opened, placed, loaded or run.

use std::io;

use hal::Bytes;
use text::{sample, tokenizer};

use crate::devices::Missing;

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file does not exist, or is not a GGUF file.
    #[error("cannot load the model")]
    File(#[source] gguf::Error),
    /// The file cannot be read into memory.
    #[error("cannot read the model in '{file}'")]
    Read {
        /// The file.
        file: String,
        /// The system's error.
        #[source]
        reason: io::Error,
    },
    /// The file does not fit into memory, and mapping it is turned off.
    #[error("cannot read {size} into memory")]
    TooLargeToRead {
        /// Size of the file.
        size: Bytes,
    },
    /// The vocabulary is missing, wrong or of an unsupported kind.
    #[error("cannot use the tokenizer in '{file}'")]
    Vocabulary {
        /// The file.
        file: String,
        /// The problem.
        #[source]
        reason: tokenizer::Error,
    },
    /// The vocabulary and the embedding differ in size.
    #[error(
        "cannot run the model in '{file}': the vocabulary has {found} tokens, expected {expected}, the rows of `token_embd.weight`"
    )]
    VocabularySize {
        /// The file.
        file: String,
        /// Tokens of the vocabulary.
        found: usize,
        /// Rows of the embedding.
        expected: usize,
    },
    /// The file is not a supported model.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// A device cannot be chosen or opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model needs more memory than this machine has.
    #[error("the model needs {wanted} of memory, this machine has {total}")]
    Memory {
        /// The needed memory.
        wanted: Bytes,
        /// Memory of the machine.
        total: Bytes,
        /// The items of the need, as text; empty if unknown.
        items: String,
        /// The largest context that would fit; `None` if none does.
        n_ctx: Option<usize>,
    },
    /// A sparsity level needs a predictor or thresholds, and this model has none.
    #[error("there is no predictor for this model yet")]
    NoPredictor,
    /// An imported predictor has no measured errors, so it has no levels.
    #[error("the predictor of this model was imported: its errors are not measured")]
    NoLevels,
    /// No predictor reached the quality of a level.
    #[error("the predictor of this model does not reach the quality of `{level}`")]
    LevelNotReached {
        /// `balanced` or `fast`.
        level: &'static str,
    },
    /// The predictor in the side file.
    #[error(transparent)]
    Predictor(#[from] learn::predictor::Error),
    /// An error of loading or of a step.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Converting between text and tokens.
    #[error("cannot convert between text and tokens")]
    Text(#[source] tokenizer::Error),
    /// A chat template.
    #[error("cannot format the conversation with the model's template")]
    Template(#[source] text::chat::TemplateError),
    /// Sampling a token.
    #[error("cannot sample a token")]
    Sample(#[from] sample::Error),
    /// A prompt without tokens, for a model without a start token.
    #[error("the prompt is empty and the model has no start token")]
    EmptyPrompt,
}

/// Why the device options cannot be met.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No device has this name.
    #[error("no device '{name}': {}", listed(.known))]
    Unknown {
        /// The name.
        name: String,
        /// Names of the available devices.
        known: Vec<String>,
        /// The missing part of its backend.
        missing: Option<Box<Missing>>,
    },
    /// A device is named twice.
    #[error("the device '{name}' is named twice")]
    Twice {
        /// The name.
        name: String,
    },
    /// A backend has no device on this machine.
    #[error("the backend {backend} has no device on this machine")]
    OfBackend {
        /// The backend.
        backend: &'static str,
        /// The missing part of the backend.
        missing: Option<Box<Missing>>,
    },
    /// The device number is too large.
    #[error("no device number {n}: there are {n_devices}")]
    Number {
        /// The number, from 0.
        n: usize,
        /// Number of available devices.
        n_devices: usize,
        /// The missing part of a backend.
        missing: Option<Box<Missing>>,
    },
    /// A device that was requested by name cannot be opened.
    #[error("device '{name}' cannot be used")]
    CannotOpen {
        /// The name.
        name: String,
        /// The driver's error.
        #[source]
        reason: hal::Error,
    },
    /// The number of budgets is neither one nor the number of devices.
    #[error("{n_budgets} memory budgets for {n_devices} {}", plural(.n_devices))]
    Budgets {
        /// Number of budgets.
        n_budgets: usize,
        /// Number of devices.
        n_devices: usize,
    },
    /// A budget in percent for a device whose memory size is unknown.
    #[error("the driver of {device} does not report how much memory it has")]
    ShareOfUnknown {
        /// The device.
        device: String,
    },
    /// An invalid assumed device.
    #[error("{what}")]
    Assumed {
        /// The problem.
        what: String,
        /// The hint for the user.
        help: Option<&'static str>,
    },
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "there are no devices besides the CPU".to_owned(),
        names => format!("the devices are {}", names.join(", ")),
    }
}

fn plural(n_devices: &usize) -> &'static str {
    if *n_devices == 1 { "device" } else { "devices" }
}

/// Result of the runtime's calls.
pub type Result<T> = std::result::Result<T, Error>;

impl From<crate::generate::Error> for Error {
    fn from(error: crate::generate::Error) -> Error {
        use crate::generate::Error as E;
        match error {
            E::Engine(error) => Error::Engine(error),
            E::Sample(error) => Error::Sample(error),
            E::Tokenizer(error) => Error::Text(error),
            E::EmptyPrompt => Error::EmptyPrompt,
        }
    }
}
