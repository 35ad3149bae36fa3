//! Errors of opening, placing, loading and running a model.

use std::io;

use hal::Bytes;
use text::{sample, tokenizer};

use crate::devices::MissingBackend;

/// What limits the memory of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The memory of the machine or its container.
    Machine,
    /// The budget that the user set.
    Budget,
    /// The free memory minus a margin.
    Free,
}

impl MemoryLimit {
    /// The end of a message: who has, or what is, only `total`.
    fn clause(self, total: Bytes) -> String {
        match self {
            MemoryLimit::Machine => format!("this machine has {total}"),
            MemoryLimit::Budget => format!("the budget is {total}"),
            MemoryLimit::Free => format!("only {total} may be used"),
        }
    }
}

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened, or is not a valid GGUF file.
    #[error("cannot load the model")]
    File(#[source] gguf::Error),
    /// The file cannot be read into memory.
    #[error("cannot read the model in '{file}'")]
    Read {
        /// Name of the model file.
        file: String,
        /// The system's error.
        #[source]
        reason: io::Error,
    },
    /// The file does not fit into memory, and memory mapping is turned off.
    #[error("cannot read {size} into memory")]
    TooLargeToRead {
        /// Size of the file.
        size: Bytes,
    },
    /// The vocabulary is missing, invalid or of an unsupported kind.
    #[error("cannot use the tokenizer in '{file}'")]
    Vocabulary {
        /// Name of the model file.
        file: String,
        /// The problem.
        #[source]
        reason: tokenizer::Error,
    },
    /// The vocabulary and the embedding differ in size.
    #[error(
        "cannot run the model in '{file}': the vocabulary has {found} tokens, but `token_embd.weight` has {expected} rows"
    )]
    VocabularySize {
        /// Name of the model file.
        file: String,
        /// Tokens of the vocabulary.
        found: usize,
        /// Rows of the embedding.
        expected: usize,
    },
    /// The file is not a supported model.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// A LoRA adapter cannot be merged into the model.
    #[error("cannot use the LoRA adapter")]
    Adapter(#[from] model::AdapterError),
    /// The matrices with merged adapters need more memory than this machine has.
    #[error(
        "the matrices that the LoRA adapters change need {size} of memory, but this machine has {total}"
    )]
    AdaptersTooLarge {
        /// Bytes of the merged matrices.
        size: Bytes,
        /// Memory of the machine.
        total: Bytes,
    },
    /// A device cannot be chosen or opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The model needs more memory than it may use.
    #[error("the model needs {wanted} of memory, but {}", limit.clause(*total))]
    Memory {
        /// Memory that the model needs.
        wanted: Bytes,
        /// Memory that it may use.
        total: Bytes,
        /// Where `total` comes from.
        limit: MemoryLimit,
        /// The needed memory itemised, as text; empty if unknown.
        items: String,
        /// The largest context that would fit, in tokens; `None` if no context fits.
        n_ctx: Option<usize>,
        /// The largest context beside which all weights are in memory, if with `n_ctx` tokens some
        /// stay on disk.
        n_ctx_in_memory: Option<usize>,
    },
    /// A sparsity level needs a predictor or thresholds, and this model has none.
    #[error("there is no predictor for this model yet")]
    NoPredictor,
    /// An imported predictor has no measured errors, so it has no sparsity levels.
    #[error("the predictor of this model was imported, so its errors are not measured")]
    NoLevels,
    /// No predictor reached the quality of a sparsity level.
    #[error("the predictor of this model does not reach the quality of `{level}`")]
    LevelNotReached {
        /// `balanced` or `fast`.
        level: &'static str,
    },
    /// The predictor in the side file cannot be used.
    #[error(transparent)]
    Predictor(#[from] learn::predictor::Error),
    /// An error of loading or of a step.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// Text cannot be converted to tokens, or tokens to text.
    #[error("cannot convert between text and tokens")]
    Text(#[source] tokenizer::Error),
    /// The chat template fails on a conversation.
    #[error("cannot format the conversation with the model's template")]
    Template(#[source] text::chat::TemplateError),
    /// The sampler rejects its settings or the logits.
    #[error("cannot sample a token")]
    Sample(#[from] sample::Error),
    /// The constraint on a text failed.
    #[error(transparent)]
    Constraint(#[from] sample::ConstraintError),
    /// A prompt without tokens, for a model without a BOS token.
    #[error("the prompt is empty and the model has no BOS token")]
    EmptyPrompt,
}

/// Why the device options cannot be satisfied.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// No device has this name.
    #[error("no device '{name}': {}; none or cpu uses only the CPU", quoted_list(.known))]
    Unknown {
        /// Name of the device.
        name: String,
        /// Names of the available devices.
        known: Vec<String>,
        /// The backend that the name belongs to, if it has no devices, or else another backend
        /// without devices; `None` if every backend has a device.
        missing: Option<Box<MissingBackend>>,
    },
    /// A device is named twice.
    #[error("the device '{name}' is named twice")]
    Twice {
        /// Name of the device.
        name: String,
    },
    /// Two of the named devices are one card, listed by two drivers.
    #[error("'{name}' and '{other}' are the same card")]
    SameCard {
        /// Name of the device in the one driver.
        name: String,
        /// Name of the device in the other driver.
        other: String,
    },
    /// A backend has no device on this machine.
    #[error("the backend {backend} has no device on this machine")]
    OfBackend {
        /// Name of the backend.
        backend: &'static str,
        /// Why the backend has no device, or why another backend has none; `None` if every other
        /// backend has a device.
        missing: Option<Box<MissingBackend>>,
    },
    /// The device number is too large.
    #[error("no device number {n}: devices are counted from 0, and {n_devices} can be used")]
    Number {
        /// The requested number, from 0.
        n: usize,
        /// Number of available devices.
        n_devices: usize,
        /// A backend without devices, which may provide more; `None` if every backend has a device.
        missing: Option<Box<MissingBackend>>,
    },
    /// A device that was requested by name cannot be opened.
    #[error("device '{name}' cannot be used")]
    CannotOpen {
        /// Name of the device.
        name: String,
        /// The driver's error.
        #[source]
        reason: hal::Error,
    },
    /// The number of budgets is neither one nor the number of devices.
    #[error("{n_budgets} memory budgets for {n_devices} {}: give one, or one per device", plural(.n_devices))]
    Budgets {
        /// Number of budgets.
        n_budgets: usize,
        /// Number of devices.
        n_devices: usize,
    },
    /// A budget in percent for a device whose memory size is unknown.
    #[error("the driver of {device} does not report its memory size, which a percentage needs")]
    ShareOfUnknown {
        /// Name of the device.
        device: String,
    },
    /// An override of tensor buffers that the planner cannot follow.
    #[error("{what}")]
    Override {
        /// The problem.
        what: String,
        /// What to write instead.
        help: String,
    },
    /// An invalid assumed device.
    #[error("{what}")]
    Assumed {
        /// The problem.
        what: String,
        /// The hint for the user; `None` if the message suffices.
        help: Option<&'static str>,
    },
}

fn quoted_list(known: &[String]) -> String {
    match known {
        [] => "the CPU is the only device".to_owned(),
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
            E::Constraint(error) => Error::Constraint(error),
            E::EmptyPrompt => Error::EmptyPrompt,
        }
    }
}
