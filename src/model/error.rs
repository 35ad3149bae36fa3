//! Why a GGUF file is not a supported model.

/// Every variant names the file and the key or tensor.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the container, or a key of the wrong type.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// A required key is missing.
    #[error("{file}: key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// File name.
        file: String,
        /// The key.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A key with an invalid value.
    #[error("{file}: key `{key}` is {found}, expected {expected}")]
    Key {
        /// File name.
        file: String,
        /// The key.
        key: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// An unsupported architecture.
    #[error("{file}: architecture `{arch}` is not supported")]
    Architecture {
        /// File name.
        file: String,
        /// The architecture in the file.
        arch: String,
        /// Supported architectures.
        known: Vec<&'static str>,
        /// Summary of the readable contents.
        readable: String,
    },
    /// A required tensor is missing.
    #[error("{file}: tensor `{tensor}` is missing, expected shape [{expected}]")]
    MissingTensor {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// Its shape, ggml order.
        expected: String,
    },
    /// A tensor of another shape.
    #[error("{file}: tensor `{tensor}` has shape [{found}], expected [{expected}]")]
    Shape {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// Expected shape, ggml order.
        expected: String,
        /// Its shape, ggml order.
        found: String,
    },
    /// A tensor with invalid values.
    #[error("{file}: tensor `{tensor}` holds {found}, expected {expected}")]
    Values {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// The expected values.
        expected: &'static str,
        /// The first invalid value.
        found: String,
    },
    /// A tensor in an unsupported format.
    #[error("{file}: tensor `{tensor}` is {found}, expected one of {expected}")]
    Format {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// Supported formats.
        expected: String,
        /// Its format.
        found: String,
    },
    /// Tensors of unknown meaning: running without them would give wrong text.
    #[error("{file}: tensor `{tensor}` has no meaning in architecture `{arch}`")]
    UnknownTensor {
        /// File name.
        file: String,
        /// The first of these tensors.
        tensor: String,
        /// The architecture.
        arch: String,
    },
}
