//! Errors of adapters that cannot be merged.

use hal::format::Format;

/// Why an adapter cannot be merged into a model.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The adapter is not a valid GGUF file, or a key has the wrong type.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// The file is not an adapter.
    #[error("{file}: key `general.type` is `{found}`, expected `adapter`")]
    NotAnAdapter {
        /// Name of the file.
        file: String,
        /// The value in the file.
        found: String,
    },
    /// The file is an adapter of another kind than LoRA.
    #[error("{file}: key `adapter.type` is `{found}`, expected `lora`")]
    Kind {
        /// Name of the file.
        file: String,
        /// The value in the file.
        found: String,
    },
    /// The adapter applies only after certain tokens (aLoRA).
    #[error(
        "{file}: the adapter is activated by tokens of the text (`adapter.alora.invocation_tokens`), which a merged adapter cannot be"
    )]
    Activated {
        /// Name of the file.
        file: String,
    },
    /// The adapter was made for another architecture.
    #[error(
        "{file}: the adapter is for architecture `{found}`, but {model} has architecture `{expected}`"
    )]
    Architecture {
        /// Name of the adapter.
        file: String,
        /// The adapter's architecture.
        found: String,
        /// Name of the model's file.
        model: String,
        /// The model's architecture.
        expected: String,
    },
    /// A scale is not finite.
    #[error("{file}: {what} is {found}, expected a finite number")]
    Scale {
        /// Name of the adapter.
        file: String,
        /// Which number.
        what: &'static str,
        /// Its value.
        found: f32,
    },
    /// A tensor that is neither `lora_a` nor `lora_b`.
    #[error(
        "{file}: tensor `{tensor}` ends neither in `.lora_a` nor in `.lora_b`, and ignoring it could give wrong text"
    )]
    UnknownTensor {
        /// Name of the adapter.
        file: String,
        /// The first such tensor.
        tensor: String,
    },
    /// One of the two factors is missing.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// Name of the adapter.
        file: String,
        /// The missing tensor.
        tensor: String,
    },
    /// The adapter has no factors.
    #[error("{file}: the adapter has no tensors `*.lora_a` and `*.lora_b`")]
    Empty {
        /// Name of the adapter.
        file: String,
    },
    /// The model does not have a matrix that the adapter changes.
    #[error("{file}: the adapter changes `{tensor}`, which {model} does not have")]
    NoSuchTensor {
        /// Name of the adapter.
        file: String,
        /// The matrix.
        tensor: String,
        /// Name of the model's file.
        model: String,
    },
    /// The adapter changes a tensor that is not multiplied with activations.
    #[error(
        "{file}: the adapter changes `{tensor}`, which is {why}; only single matrices can be changed"
    )]
    NotAMatrix {
        /// Name of the adapter.
        file: String,
        /// The tensor.
        tensor: String,
        /// What the tensor is.
        why: &'static str,
    },
    /// A factor does not fit the matrix.
    #[error("{file}: tensor `{tensor}` has shape {found}, expected {expected}")]
    Shape {
        /// Name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape in ggml order.
        found: String,
        /// The expected shape, as text.
        expected: String,
    },
    /// A tensor has an unsupported type.
    #[error("{file}: tensor `{tensor}` is {found}, which cannot be merged")]
    Format {
        /// Name of the file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// A merged value is too large for the format, or NaN.
    #[error("with the adapters, a value of `{tensor}` is {found}, which {format} cannot hold")]
    Values {
        /// The matrix.
        tensor: String,
        /// Format of the merged matrix.
        format: Format,
        /// Such a value.
        found: f32,
    },
}

/// A shape as text, in ggml order (columns first).
pub(super) fn shape_text(shape: &[u64]) -> String {
    format!("[{}]", shape.iter().map(u64::to_string).collect::<Vec<_>>().join(", "))
}
