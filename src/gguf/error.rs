//! Errors of container files: the file's name and one [`Problem`] with its numbers.

use std::io;

use super::{Container, TensorType};

/// A container that cannot be used, with the reason.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct Error {
    file: String,
    problem: Box<Problem>,
}

impl Error {
    /// The error that a file has this problem; `file` is its path or name.
    #[must_use]
    pub fn new(file: &str, problem: Problem) -> Error {
        Error { file: file.to_owned(), problem: Box::new(problem) }
    }

    /// The path, or the name given to bytes in memory.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }
}

/// A problem with a container. Lengths and offsets are in bytes; offsets count from the file's
/// start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// A file operation failed.
    #[error("cannot {action}: {reason}")]
    Io {
        /// The operation: `open`, `map`, `write`...
        action: &'static str,
        /// The I/O error.
        reason: io::Error,
    },
    /// Writing: the disk does not have enough space.
    #[error("the file needs {wanted}, but the disk has {free} free")]
    Disk {
        /// Size of the file.
        wanted: hal::Bytes,
        /// Free space.
        free: hal::Bytes,
    },
    /// A directory where a file is expected.
    #[error("this path is a directory, expected a GGUF file{hint}")]
    Directory {
        /// Suggests the file to pass instead, based on the directory's contents; starts with a
        /// separator, or is empty.
        hint: String,
    },
    /// A pipe, socket or device.
    #[error("this path is not a regular file, so it cannot be mapped")]
    NotAFile,
    /// An empty file.
    #[error("the file is empty (0 bytes), expected a GGUF file")]
    Empty,
    /// The first four bytes are not the magic of a container.
    #[error("this is not a GGUF file: expected the magic `GGUF` or `PWRI`, found {found}")]
    Magic {
        /// Description of the actual content.
        found: String,
    },
    /// Numbers are stored with the high byte first.
    #[error(
        "this is a big-endian GGUF file, expected little-endian; convert it with llama.cpp's gguf-convert-endian"
    )]
    BigEndian,
    /// An unsupported version of the format.
    #[error("the file has GGUF version {found}, expected 2 or 3{}", if *found == 1 { "; version 1 is from 2023: get a newer file of the model" } else { "" })]
    Version {
        /// The version in the file.
        found: u32,
    },
    /// The file ends inside its header.
    #[error(
        "the file is truncated inside {place}: expected at least {expected} bytes, found {found}"
    )]
    Truncated {
        /// The key, tensor or field being read.
        place: String,
        /// Minimum length of the file.
        expected: u64,
        /// Actual length.
        found: u64,
    },
    /// The header exceeds the size limit.
    #[error("{place} lies beyond the first {limit} bytes, the largest supported header")]
    HeaderTooLong {
        /// The key, tensor or field being read.
        place: String,
        /// The limit.
        limit: u64,
    },
    /// A count that does not fit the rest of the file.
    #[error(
        "{place} has a count of {count}, which needs at least {expected} bytes, found {found} left in the file"
    )]
    Count {
        /// The counted items.
        place: String,
        /// The count in the file.
        count: u64,
        /// Minimum size of that number of items.
        expected: u128,
        /// Bytes that are left.
        found: u64,
    },
    /// A key or tensor name that is too long.
    #[error("{place} has a name of {found} bytes, expected at most {limit}")]
    NameLength {
        /// Which key or tensor, by number.
        place: String,
        /// Length in the file.
        found: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// A key or tensor name that is not UTF-8.
    #[error("{place} has a name that is not UTF-8: `{found}`")]
    NameText {
        /// Which key or tensor, by number.
        place: String,
        /// The name, with replacement characters.
        found: String,
    },
    /// A key occurs twice.
    #[error("key `{key}` occurs twice in the metadata, expected once")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type that does not exist.
    #[error("{place} has the value type {found}, expected 0 to 12")]
    ValueType {
        /// The key.
        place: String,
        /// The type id in the file.
        found: u32,
    },
    /// A bool that is neither 0 nor 1.
    #[error("{place} has the bool {found}, expected 0 or 1")]
    Bool {
        /// The key.
        place: String,
        /// The byte in the file.
        found: u8,
    },
    /// Arrays nested too deeply.
    #[error("{place} nests arrays deeper than {limit} levels")]
    Depth {
        /// The key.
        place: String,
        /// Maximum depth.
        limit: usize,
    },
    /// A key has a value of the wrong type or range.
    #[error("key `{key}` should hold {expected}, found {found}")]
    Key {
        /// The key.
        key: String,
        /// The expected value.
        expected: &'static str,
        /// The value's type, and the value if it is short.
        found: String,
    },
    /// `general.alignment` is not a power of two.
    #[error("key `general.alignment` should hold a power of two up to 2147483648, found {found}")]
    Alignment {
        /// The value in the file.
        found: u64,
    },
    /// A tensor name occurs twice.
    #[error("tensor `{tensor}` occurs twice, expected once")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tensor with no dimension or too many.
    #[error("tensor `{tensor}` has {found} dimensions, expected 1 to 4")]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// The number in the file.
        found: u64,
    },
    /// The number of values overflows.
    #[error("tensor `{tensor}` of shape {shape:?} has more values or bytes than 64 bits can count")]
    Elements {
        /// The tensor.
        tensor: String,
        /// Shape of the tensor, fastest axis first.
        shape: Vec<u64>,
    },
    /// A row that is not a whole number of blocks.
    #[error(
        "tensor `{tensor}` has rows of {found} values, expected a multiple of {expected} for type {ty}"
    )]
    RowLength {
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        ty: TensorType,
        /// Values in a block of that type.
        expected: u64,
        /// Values in a row.
        found: u64,
    },
    /// A type id that is not in the container's table.
    #[error("tensor `{tensor}` has the unknown type id {id}{}", TensorType::removal_note(*id))]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The type id in the file.
        id: u32,
    },
    /// A tensor that does not start at a multiple of the alignment.
    #[error(
        "tensor `{tensor}` starts at data offset {found}, expected a multiple of the alignment {expected}"
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// The alignment.
        expected: u64,
        /// Offset from the start of the data section.
        found: u64,
    },
    /// A tensor that extends past the end of the file.
    #[error(
        "tensor `{tensor}` ends beyond the file: expected at least {expected} bytes, found {found} (truncated or corrupt file)"
    )]
    BeyondEnd {
        /// The tensor.
        tensor: String,
        /// Minimum length of the file for this tensor.
        expected: u128,
        /// Actual length.
        found: u64,
    },
    /// Two tensors share bytes.
    #[error(
        "tensors `{first}` and `{second}` overlap: the first ends at byte {end}, the second starts at {start}"
    )]
    Overlap {
        /// The tensor that starts earlier.
        first: String,
        /// The tensor that starts inside it.
        second: String,
        /// End of the first.
        end: u64,
        /// Start of the second.
        start: u64,
    },
    /// A part of a split model does not match the others.
    #[error("invalid split file: {what}: expected {expected}, found {found}")]
    Split {
        /// The key or property.
        what: &'static str,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// A part of a split model is missing.
    #[error(
        "part {number} of {count} of this split model is missing; put all parts into one folder"
    )]
    MissingPart {
        /// Number of the part, from 1.
        number: u64,
        /// Number of parts.
        count: u64,
    },
    /// Writing: a mapped file whose bytes are copied has become shorter or cannot be read.
    #[error("the file was shortened or cannot be read while in use")]
    SourceLost,
    /// A mapped file was written to after it was opened, so its bytes may be mixed.
    #[error("the file was written to while in use")]
    SourceChanged,
    /// Writing: the output would replace something other than a regular file.
    #[error("the output is {kind}: only a regular file can be replaced")]
    NotReplaceable {
        /// What the output's path leads to.
        kind: &'static str,
    },
    /// Writing: the output would replace a file that this process has mapped.
    #[error("this run reads the file, by this path or through a link, so it is not replaced")]
    ReadByThisRun,
    /// Writing: the container's type table has no such type.
    #[error("tensor `{tensor}` has type {ty}, which a {container} file cannot hold")]
    NoTypeId {
        /// The tensor.
        tensor: String,
        /// Type of the tensor.
        ty: TensorType,
        /// The container being written.
        container: Container,
    },
    /// Writing: data of another tensor than the next declared one.
    #[error("data of tensor `{found}` written, expected {expected}")]
    WriteOrder {
        /// The next tensor, or the end.
        expected: String,
        /// The given tensor.
        found: String,
    },
    /// Writing: more or fewer bytes than the tensor's shape needs.
    #[error("tensor `{tensor}` needs {expected} bytes of data, found {found}")]
    WriteLength {
        /// The tensor.
        tensor: String,
        /// Bytes by shape and type.
        expected: u64,
        /// Bytes written.
        found: u64,
    },
}
