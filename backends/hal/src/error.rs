//! Errors: conditions that a correct caller cannot prevent, and refusals by the checks of this
//! crate.

use crate::Bytes;

/// The result of every call of the contract.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong below the engine. Fields carry the facts; the command adds help.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The device or its budget has no room left.
    #[error("out of memory on {device}: {label} needs {wanted}, {free} free")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Label of the allocation.
        label: String,
        /// Size of the request.
        wanted: Bytes,
        /// Bytes the ledger or the driver had left.
        free: Bytes,
    },
    /// The device stopped responding; all memory on it is lost.
    #[error("{device} was lost: {reason}")]
    DeviceLost {
        /// Device name.
        device: String,
        /// Reason given by the driver.
        reason: String,
    },
    /// An operand does not have the shape, format or layout that the op needs.
    #[error("{op}: operand {operand} should be {expected} but is {got}")]
    Shape {
        /// Op name.
        op: &'static str,
        /// Operand or parameter name.
        operand: &'static str,
        /// The requirement of the op.
        expected: String,
        /// The value it got.
        got: String,
    },
    /// The device cannot run this op with these formats and sizes.
    #[error("{device} cannot run {op}: {reason}")]
    Unsupported {
        /// Op name.
        op: &'static str,
        /// Device name.
        device: String,
        /// Why, from [`crate::Plan::No`].
        reason: String,
    },
    /// An op would read rows that it also writes.
    #[error("{op}: operand {operand} overlaps an operand that is written")]
    Aliasing {
        /// Op name.
        op: &'static str,
        /// The operand that is read.
        operand: &'static str,
    },
    /// A tensor of another device was passed.
    #[error("{op}: operand {operand} is not on {device}")]
    ForeignBuffer {
        /// Op or call name.
        op: &'static str,
        /// Operand name.
        operand: &'static str,
        /// The device that was called.
        device: String,
    },
    /// A vendor library is not on this machine.
    #[error("{name} not found")]
    MissingLibrary {
        /// File or package name.
        name: String,
        /// How to install it.
        hint: String,
    },
    /// A driver call failed.
    #[error("{call} failed with {code}: {message}")]
    Driver {
        /// Name of the call.
        call: String,
        /// The driver's error code.
        code: i64,
        /// The driver's message.
        message: String,
    },
    /// The step was cancelled by its owner (an interrupt, or an error on the other side of a
    /// hand-off).
    #[error("the step was cancelled")]
    Cancelled,
}

impl Error {
    /// An [`Error::Shape`] from any printable value.
    pub fn shape(
        op: &'static str,
        operand: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Error::Shape { op, operand, expected: expected.to_string(), got: got.to_string() }
    }
}
