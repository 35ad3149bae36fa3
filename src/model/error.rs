//! Why a container that can be read is not a model that can be run.

use crate::gguf;

/// Every variant names the file and what in it is meant.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container itself, or a key of the wrong type.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// A key that is needed is not there.
    #[error("{file}: key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// File name.
        file: String,
        /// The key.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A key with a value that cannot be.
    #[error("{file}: key `{key}` is {found}, expected {expected}")]
    Key {
        /// File name.
        file: String,
        /// The key.
        key: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// No such architecture here.
    #[error("{file}: architecture `{arch}` is not supported")]
    Architecture {
        /// File name.
        file: String,
        /// What the file says.
        arch: String,
        /// What runs.
        known: Vec<&'static str>,
        /// What of the file could be read.
        readable: String,
    },
    /// A tensor that is needed is not there.
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
    /// A tensor with values that cannot be.
    #[error("{file}: tensor `{tensor}` holds {found}, expected {expected}")]
    Values {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// What it should hold.
        expected: &'static str,
        /// The first value that is not.
        found: String,
    },
    /// A tensor in a format that has no kernels here.
    #[error("{file}: tensor `{tensor}` is {found}, expected one of {expected}")]
    Format {
        /// File name.
        file: String,
        /// The tensor.
        tensor: String,
        /// Formats that run.
        expected: String,
        /// Its format.
        found: String,
    },
    /// Tensors whose meaning is not known: running without them would give wrong text.
    #[error("{file}: tensor `{tensor}` has no meaning in architecture `{arch}`")]
    UnknownTensor {
        /// File name.
        file: String,
        /// The first of them.
        tensor: String,
        /// The architecture.
        arch: String,
    },
}
