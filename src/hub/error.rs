//! The errors of this crate.

use crate::ModelName;
use std::io;
use std::path::PathBuf;

/// Why a model cannot be found or fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cache does not have the model, and the network may not be used.
    #[error("'{0}' is not in the cache, and downloads are off")]
    Offline(String),
    /// The hub does not answer.
    #[error("cannot reach {host}: {reason}")]
    Unreachable {
        /// The hub's host.
        host: String,
        /// Why.
        reason: String,
    },
    /// The hub has no such repository, or hides it from this user.
    #[error("{host} has no repository '{name}' that you may read")]
    NotFound {
        /// The model.
        name: ModelName,
        /// The hub's host.
        host: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository's owner decides who may download.
    #[error("'{name}' is gated: its owner must grant you access")]
    Gated {
        /// The model.
        name: ModelName,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub refuses access: without a token, or with one that is invalid or lacks a permission.
    #[error("{host} refused the request with status {status}")]
    Refused {
        /// The hub's host.
        host: String,
        /// 401 or 403.
        status: u16,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The repository has no such file.
    #[error("'{name}' has no file '{file}'")]
    NoFile {
        /// The model.
        name: ModelName,
        /// The file.
        file: String,
        /// The models that it has, each by its first file.
        known: Box<[String]>,
    },
    /// The repository has no GGUF file.
    #[error("'{name}' has no GGUF file")]
    NoModel {
        /// The model.
        name: ModelName,
        /// Whether it has safetensors files.
        has_weights: bool,
    },
    /// The repository has other quantisations.
    #[error("'{}' has no quantisation {}", name.path(), name.quantisation.as_deref().unwrap_or_default())]
    NoQuantisation {
        /// The model, with the quantisation that is missing.
        name: ModelName,
        /// The quantisations that it has.
        known: Vec<String>,
    },
    /// A split model lacks files.
    #[error("'{file}' has {count} parts, and the repository has {found} of them")]
    MissingParts {
        /// The first part in the repository.
        file: String,
        /// Number of parts that its name states.
        count: usize,
        /// Number of parts in the repository.
        found: usize,
    },
    /// A status that is not handled otherwise.
    #[error("{host} answered with status {status}")]
    Status {
        /// The host.
        host: String,
        /// The HTTP status.
        status: u16,
    },
    /// A response that breaks the protocol.
    #[error("{host} sent an invalid response: {reason}")]
    Answer {
        /// The host.
        host: String,
        /// What is wrong.
        reason: String,
    },
    /// A file has another size than the hub announced. The download was deleted.
    #[error("'{file}' should have {expected} bytes, but the server has {found}")]
    Size {
        /// The file.
        file: String,
        /// Announced bytes.
        expected: u64,
        /// Bytes that the server announced or has sent.
        found: u64,
    },
    /// A file has another checksum than the hub announced. The download was deleted.
    #[error("'{file}' has the checksum {found} instead of {expected}; the download was deleted")]
    Checksum {
        /// The file.
        file: String,
        /// Announced checksum, hexadecimal.
        expected: String,
        /// Computed checksum, hexadecimal.
        found: String,
    },
    /// The connection broke too often without any progress.
    #[error("the download of '{file}' stopped after {received} bytes: {reason}")]
    Broken {
        /// The file.
        file: String,
        /// Bytes that are on disk and will be kept.
        received: u64,
        /// Why the last attempt ended.
        reason: String,
    },
    /// The disk has too little free space.
    #[error("{needed} bytes are needed in '{}', and {free} are free", folder.display())]
    Full {
        /// The cache folder.
        folder: PathBuf,
        /// Bytes that the download still needs.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A file or folder of the cache cannot be used.
    #[error("cannot {action} '{}'", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// Turns an I/O error into [`Error::Io`].
pub(crate) fn io_error(
    action: &'static str,
    path: impl Into<PathBuf>,
) -> impl FnOnce(io::Error) -> Error {
    let path = path.into();
    move |source| Error::Io { action, path, source }
}
