//! Errors of converting, quantising, splitting and merging.

use std::io;

use super::source::{pickle, safetensors, zip};

/// Why an operation failed. Variants that concern a file or a tensor name it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("{file}: cannot {action}: {reason}")]
    Io {
        /// The path.
        file: String,
        /// The operation.
        action: &'static str,
        /// The I/O error.
        reason: io::Error,
    },
    /// An error of a GGUF file, or of any mapped file.
    #[error(transparent)]
    Container(#[from] gguf::Error),
    /// A file is not valid JSON.
    #[error("{file} is not valid JSON: {reason}")]
    Json {
        /// The path.
        file: String,
        /// The error and its position.
        reason: serde_json::Error,
    },
    /// A pipe, device or folder where a small file is expected.
    #[error("{file} is not a regular file")]
    NotAFile {
        /// The path.
        file: String,
    },
    /// A file is too large to be read whole.
    #[error("{file} has {found} bytes, expected at most {limit}")]
    TooLarge {
        /// The path.
        file: String,
        /// Size of the file in bytes.
        found: u64,
        /// The largest accepted size in bytes.
        limit: u64,
    },
    /// An invalid safetensors file.
    #[error("{file} is not a valid safetensors file: {problem}")]
    Safetensors {
        /// The path.
        file: String,
        /// The problem.
        problem: safetensors::Problem,
    },
    /// An invalid archive of a PyTorch checkpoint.
    #[error("{file} is not a valid checkpoint archive: {problem}")]
    Archive {
        /// The path.
        file: String,
        /// The problem.
        problem: zip::Problem,
    },
    /// An invalid pickle in a PyTorch checkpoint.
    #[error("{file} has an invalid pickle, at byte {at}: {problem}")]
    Pickle {
        /// The path.
        file: String,
        /// Offset in the pickle.
        at: usize,
        /// The problem.
        problem: pickle::Problem,
    },
    /// The folder has no checkpoint.
    #[error("the folder {folder} contains no checkpoint, expected {expected}")]
    NoCheckpoint {
        /// The folder.
        folder: String,
        /// The expected files.
        expected: &'static str,
    },
    /// An index of shards with an invalid file name.
    #[error("{file} names the shard `{shard}`, expected a file in the same folder")]
    Shard {
        /// The index.
        file: String,
        /// The name.
        shard: String,
    },
    /// A required setting is missing.
    #[error("{file}: `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The path.
        file: String,
        /// The key, or equivalent keys.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A setting with an invalid value.
    #[error("{file}: `{key}` is {found}, expected {expected}")]
    Key {
        /// The path.
        file: String,
        /// The key.
        key: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// A model whose shapes do not follow from its settings here.
    #[error("{file}: the shapes of the model type `{found}` are not known")]
    Shapes {
        /// `config.json`.
        file: String,
        /// The value in the file; empty without one.
        found: String,
        /// The known values.
        known: Vec<&'static str>,
    },
    /// An unsupported family.
    #[error("{file}: architecture `{found}` cannot be converted")]
    Architecture {
        /// `config.json`.
        file: String,
        /// The value in the file.
        found: String,
        /// The supported values.
        known: Vec<&'static str>,
    },
    /// A tensor occurs twice.
    #[error("{file}: tensor `{tensor}` occurs twice in the checkpoint")]
    DuplicateTensor {
        /// The second file.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// A required tensor is missing.
    #[error("tensor `{tensor}` is missing from the checkpoint")]
    MissingTensor {
        /// The tensor's name in the output file.
        tensor: String,
    },
    /// An unknown tensor.
    #[error("tensor `{tensor}` is unknown in architecture `{arch}`")]
    UnknownTensor {
        /// The first unknown tensor.
        tensor: String,
        /// The architecture.
        arch: &'static str,
    },
    /// A tensor of the wrong shape.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// The expected shape.
        expected: String,
        /// Shape in the checkpoint, slowest axis first.
        found: Vec<u64>,
    },
    /// A tensor of an unsupported number type.
    #[error("tensor `{tensor}` has type {found}, expected {expected}")]
    Encoding {
        /// The tensor.
        tensor: String,
        /// The expected types.
        expected: &'static str,
        /// Type of the tensor.
        found: String,
    },
    /// An error in the tokenizer.
    #[error("{file}: {what}")]
    Tokenizer {
        /// The path.
        file: String,
        /// The problem.
        what: String,
    },
    /// An unknown pre-tokenizer.
    #[error("{file}: no known pre-tokenizer splits text by {found}")]
    PreTokenizer {
        /// `tokenizer.json`.
        file: String,
        /// Steps of the pre-tokenizer.
        found: String,
    },
    /// A feature that PowerInfer's container does not support.
    #[error("PowerInfer's container cannot hold {what}")]
    PowerInfer {
        /// The feature.
        what: String,
    },
    /// An unsupported target type.
    #[error("unknown quantisation type `{found}`")]
    Target {
        /// The requested type.
        found: String,
        /// The supported types.
        known: Vec<String>,
    },
    /// A target type that can be read but not written.
    #[error("tensors cannot be quantised to `{found}`: this needs a search over its codebook")]
    CodebookTarget {
        /// The requested type.
        found: String,
    },
    /// An invalid pattern of tensor names.
    #[error("'{pattern}' is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The error.
        reason: regex::Error,
    },
    /// A file that is not a usable importance matrix.
    #[error("{file} is not a usable importance matrix: {what}")]
    Importance {
        /// The path.
        file: String,
        /// The problem.
        what: String,
    },
    /// An importance matrix of another model.
    #[error("the importance matrix has {found} values for tensor `{tensor}`, expected {expected}")]
    ImportanceSize {
        /// The tensor.
        tensor: String,
        /// Columns of the tensor, over all of its matrices.
        expected: usize,
        /// Values in the importance matrix.
        found: usize,
    },
    /// A type that needs an importance matrix.
    #[error("tensor `{tensor}` cannot be quantised to {ty} without an importance matrix")]
    NeedsImportance {
        /// The tensor.
        tensor: String,
        /// The type.
        ty: String,
    },
    /// A tensor is quantised already.
    #[error("tensor `{tensor}` is already {found}; quantising it again loses quality")]
    Requantize {
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        found: String,
    },
    /// The output file exists.
    #[error("{file} already exists")]
    Exists {
        /// The path.
        file: String,
    },
    /// The output would overwrite an input.
    #[error("{file} is both an input and the output, by path or through a link")]
    SameFile {
        /// The path.
        file: String,
    },
    /// Too many parts for the file names.
    #[error("the split would have {found} parts, expected at most {limit}")]
    Parts {
        /// Number of parts with the given limits.
        found: usize,
        /// The largest supported number.
        limit: usize,
    },
    /// The progress callback requested a stop.
    #[error("interrupted")]
    Interrupted,
}
