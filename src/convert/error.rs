//! Why a model cannot be converted, quantised, split or merged.

use std::io;

use super::source::{pickle, safetensors, zip};
use crate::gguf;

/// Every variant names the file or tensor and what in it is meant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refused.
    #[error("{file}: cannot {action}: {reason}")]
    Io {
        /// The path.
        file: String,
        /// What was tried.
        action: &'static str,
        /// The system's words.
        reason: io::Error,
    },
    /// A GGUF file, or any file that is mapped.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// Text that should be JSON.
    #[error("{file}: is not JSON: {reason}")]
    Json {
        /// The path.
        file: String,
        /// What is wrong, and where.
        reason: serde_json::Error,
    },
    /// A pipe, device or folder where a small file is expected.
    #[error("{file}: is not a regular file")]
    NotAFile {
        /// The path.
        file: String,
    },
    /// A small file of settings that is not small.
    #[error("{file}: takes {found} bytes, expected at most {limit}")]
    TooLarge {
        /// The path.
        file: String,
        /// Its size.
        found: u64,
        /// The most that is read.
        limit: u64,
    },
    /// A safetensors file.
    #[error("{file}: bad safetensors file: {problem}")]
    Safetensors {
        /// The path.
        file: String,
        /// What is wrong.
        problem: safetensors::Problem,
    },
    /// The archive around a PyTorch checkpoint.
    #[error("{file}: bad checkpoint archive: {problem}")]
    Archive {
        /// The path.
        file: String,
        /// What is wrong.
        problem: zip::Problem,
    },
    /// The pickle in a PyTorch checkpoint.
    #[error("{file}: bad pickle at byte {at}: {problem}")]
    Pickle {
        /// The path.
        file: String,
        /// Offset in the pickle.
        at: usize,
        /// What is wrong.
        problem: pickle::Problem,
    },
    /// No checkpoint in the folder.
    #[error("{folder}: holds no checkpoint, expected {expected}")]
    NoCheckpoint {
        /// The folder.
        folder: String,
        /// What was looked for.
        expected: &'static str,
    },
    /// An index of shards that names a file which cannot be meant.
    #[error("{file}: names the shard `{shard}`, expected a file beside it")]
    Shard {
        /// The index.
        file: String,
        /// The name.
        shard: String,
    },
    /// A setting that is needed is not there.
    #[error("{file}: `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The path.
        file: String,
        /// The key, or keys that mean the same.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// A setting with a value that cannot be.
    #[error("{file}: `{key}` is {found}, expected {expected}")]
    Key {
        /// The path.
        file: String,
        /// The key.
        key: String,
        /// What it should hold.
        expected: String,
        /// What it holds.
        found: String,
    },
    /// A family that cannot be converted.
    #[error("{file}: architecture `{found}` cannot be converted")]
    Architecture {
        /// `config.json`.
        file: String,
        /// What it says.
        found: String,
        /// What can be converted.
        known: Vec<&'static str>,
    },
    /// A tensor stands twice.
    #[error("{file}: tensor `{tensor}` stands in another file too")]
    DuplicateTensor {
        /// The second file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor that is needed is not there.
    #[error("tensor `{tensor}` is missing from the checkpoint")]
    MissingTensor {
        /// The tensor's name in the file to be.
        tensor: String,
    },
    /// A tensor whose meaning is not known.
    #[error("tensor `{tensor}` has no meaning in architecture `{arch}`")]
    UnknownTensor {
        /// The first of them.
        tensor: String,
        /// The architecture.
        arch: &'static str,
    },
    /// A tensor of another shape.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// What it should be.
        expected: String,
        /// Its shape, slowest axis first.
        found: Vec<u64>,
    },
    /// A tensor of numbers that no weight is made of.
    #[error("tensor `{tensor}` holds {found}, expected {expected}")]
    Encoding {
        /// The tensor.
        tensor: String,
        /// What was expected.
        expected: &'static str,
        /// Its kind of numbers.
        found: String,
    },
    /// The tokenizer.
    #[error("{file}: {what}")]
    Tokenizer {
        /// The path.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// A pre-tokenizer that has no name.
    #[error("{file}: no known pre-tokenizer splits text by {found}")]
    PreTokenizer {
        /// `tokenizer.json`.
        file: String,
        /// Its steps.
        found: String,
    },
    /// What PowerInfer's container cannot hold.
    #[error("PowerInfer's container cannot hold {what}")]
    PowerInfer {
        /// The thing.
        what: String,
    },
    /// A type that is no target of quantisation.
    #[error("tensors cannot be quantised to `{found}`")]
    Target {
        /// What was asked for.
        found: String,
        /// What can be.
        known: Vec<String>,
    },
    /// Quantising what is quantised already.
    #[error("tensor `{tensor}` is {found} already, quantising it again loses quality")]
    Requantize {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
    },
    /// The result would replace a file.
    #[error("{file}: exists already")]
    Exists {
        /// The path.
        file: String,
    },
    /// The result would replace what it is made of.
    #[error("{file}: is read and written at once")]
    SameFile {
        /// The path.
        file: String,
    },
    /// More parts than file names can count.
    #[error("the split would have {found} parts, expected at most {limit}")]
    Parts {
        /// Parts by the limits given.
        found: usize,
        /// Most parts.
        limit: usize,
    },
    /// Whoever heard of the progress said stop.
    #[error("interrupted")]
    Interrupted,
}
