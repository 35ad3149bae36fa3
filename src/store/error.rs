//! Errors of reading weights from disk.

use hal::Bytes;

/// Why weights cannot be read.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The system's error, after the retries.
    #[error("cannot read {file} at byte {offset}: {reason}")]
    Read {
        /// Path of the file.
        file: String,
        /// Offset of the first byte that could not be read.
        offset: u64,
        /// The system's message.
        reason: String,
    },
    /// The file has become shorter than it was when it was opened.
    #[error("{file} was shortened while in use: nothing can be read at byte {offset}")]
    Shortened {
        /// Path of the file.
        file: String,
        /// Offset of the first missing byte.
        offset: u64,
    },
    /// The file was written to while in use.
    #[error("{file} was changed while in use, or the system no longer reports its state")]
    Changed {
        /// Path of the file.
        file: String,
    },
    /// Units that are needed at once exceed the budget.
    #[error("weights that one layer needs at once take {needed}, but only {capacity} may be used")]
    Capacity {
        /// Bytes of the units.
        needed: Bytes,
        /// Bytes that units may take.
        capacity: Bytes,
    },
    /// The system refused to reserve addresses or to start threads.
    #[error("cannot set up reading weights from disk: {reason}")]
    Setup {
        /// The system's message.
        reason: String,
    },
    /// The user interrupted the wait.
    #[error("interrupted")]
    Interrupted,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;
