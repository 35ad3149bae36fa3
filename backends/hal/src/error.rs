//! What a correct caller cannot prevent, and what the checks of this crate refuse.

use crate::Bytes;

/// The result of every call of the contract.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong below the engine. Fields carry the facts; the command adds the cure.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The device, or the budget it was given, has no room left.
    #[error("{device} has no room for {label}: {wanted} wanted, {free} free")]
    OutOfMemory {
        /// Device name.
        device: String,
        /// What was to be placed.
        label: String,
        /// Size of the request.
        wanted: Bytes,
        /// What the ledger or the driver still had.
        free: Bytes,
    },
    /// The device stopped answering; everything on it is gone.
    #[error("{device} was lost: {reason}")]
    DeviceLost {
        /// Device name.
        device: String,
        /// What the driver said.
        reason: String,
    },
    /// An operand does not have the shape, format or layout that the op needs.
    #[error("{op}: operand {operand} should be {expected} but is {got}")]
    Shape {
        /// Op name.
        op: &'static str,
        /// Operand or parameter name.
        operand: &'static str,
        /// What the op needs.
        expected: String,
        /// What it was given.
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
    /// One op would read rows that it also writes.
    #[error("{op}: operand {operand} overlaps an operand that is written")]
    Aliasing {
        /// Op name.
        op: &'static str,
        /// The operand that is read.
        operand: &'static str,
    },
    /// A tensor of another device was handed in.
    #[error("{op}: operand {operand} does not live on {device}")]
    ForeignBuffer {
        /// Op or call name.
        op: &'static str,
        /// Operand name.
        operand: &'static str,
        /// The device that was asked.
        device: String,
    },
    /// A vendor library is not on this machine.
    #[error("{name} was not found")]
    MissingLibrary {
        /// File or package name.
        name: String,
        /// How to get it.
        hint: String,
    },
    /// The driver refused a call.
    #[error("{call} failed with {code}: {message}")]
    Driver {
        /// The call.
        call: String,
        /// The driver's code.
        code: i64,
        /// The driver's text.
        message: String,
    },
    /// The step was given up by its owner (an interrupt, or an error on the other side of a hand-off).
    #[error("the step was cancelled")]
    Cancelled,
}

impl Error {
    /// A [`Error::Shape`] from anything that prints.
    pub fn shape(
        op: &'static str,
        operand: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> Self {
        Error::Shape { op, operand, expected: expected.to_string(), got: got.to_string() }
    }
}
