//! Errors of files that are not supported models.

/// Why a file cannot be read as a model. Every variant names the file, and the key or tensor if one
/// is at fault.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container is invalid, or a key has the wrong type.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// A required key is missing.
    #[error("{file}: key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// File name.
        file: String,
        /// Name of the key.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A key has an invalid value.
    #[error("{file}: key `{key}` is {found}, expected {expected}")]
    Key {
        /// File name.
        file: String,
        /// Name of the key.
        key: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// The architecture is not supported.
    #[error("{file}: architecture `{arch}` is not supported")]
    Architecture {
        /// File name.
        file: String,
        /// The architecture in the file.
        arch: String,
        /// Supported architectures.
        known: Vec<&'static str>,
        /// Counts of keys, tensors and tokens in the file, as text.
        readable: String,
    },
    /// A RoPE setting of the user has an invalid value.
    #[error("the RoPE setting {setting} is {found}, expected {expected}")]
    Rope {
        /// Name of the setting.
        setting: &'static str,
        /// The expected value.
        expected: &'static str,
        /// The given value.
        found: f32,
    },
    /// A required tensor is missing.
    #[error("{file}: tensor `{tensor}` is missing, expected shape [{expected}]")]
    MissingTensor {
        /// File name.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Expected shape in ggml order (columns first).
        expected: String,
    },
    /// A tensor has an unexpected shape.
    #[error("{file}: tensor `{tensor}` has shape [{found}], expected [{expected}]")]
    Shape {
        /// File name.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Expected shape in ggml order.
        expected: String,
        /// Shape in the file, in ggml order.
        found: String,
    },
    /// A tensor has invalid values.
    #[error("{file}: tensor `{tensor}` holds {found}, expected {expected}")]
    Values {
        /// File name.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// The expected values.
        expected: &'static str,
        /// The first invalid value.
        found: String,
    },
    /// A tensor has an unsupported format.
    #[error("{file}: tensor `{tensor}` is {found}, expected one of {expected}")]
    Format {
        /// File name.
        file: String,
        /// Name of the tensor.
        tensor: String,
        /// Supported formats.
        expected: String,
        /// Format in the file.
        found: String,
    },
    /// The architecture does not use the tensor. Ignoring the tensor could give wrong text.
    #[error(
        "{file}: tensor `{tensor}` is unknown in architecture `{arch}`, and ignoring it could give wrong text"
    )]
    UnknownTensor {
        /// File name.
        file: String,
        /// The first unused tensor.
        tensor: String,
        /// Name of the architecture.
        arch: String,
    },
}
