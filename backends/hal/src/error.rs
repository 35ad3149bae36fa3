//! Errors: conditions that a correct caller cannot prevent, and calls that the checks of this crate
//! reject.

use crate::Bytes;

/// Result of the fallible functions of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong below the engine. The command line adds help to these messages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The device or its memory budget is exhausted.
    #[error("out of memory on {device}: {}", shortage(label, *requested, *free))]
    OutOfMemory {
        /// Device name.
        device: String,
        /// Label of the allocation.
        label: String,
        /// Size of the request.
        requested: Bytes,
        /// Free bytes in the budget or on the device.
        free: Bytes,
    },
    /// The device stopped responding; all memory on it is lost.
    #[error("{device} was lost: {reason}")]
    DeviceLost {
        /// Device name.
        device: String,
        /// Why the device was lost.
        reason: String,
    },
    /// The device itself waited for the host's answer for longer than it may; later programs do not
    /// wait on the device. The step can be repeated with programs that are recorded again.
    #[error("{device} waited too long for the CPU's answer")]
    TimedOut {
        /// Device name.
        device: String,
    },
    /// An operand does not have the shape, format or layout that the op needs.
    #[error("{op}: operand `{operand}` is {got}, expected {expected}")]
    Shape {
        /// Op name.
        op: &'static str,
        /// Operand or parameter name.
        operand: &'static str,
        /// The requirement of the op.
        expected: String,
        /// The value that the op got.
        got: String,
    },
    /// The device cannot run this op or call with these formats and sizes.
    #[error("{device} cannot run {op}: {reason}")]
    Unsupported {
        /// Op or call name.
        op: &'static str,
        /// Device name.
        device: String,
        /// The reason; for an op, the reason in [`crate::Plan::No`].
        reason: String,
    },
    /// An op would write rows that it also reads or writes through another operand.
    #[error("{op}: operand `{operand}` overlaps an operand that the op writes")]
    Aliasing {
        /// Op name.
        op: &'static str,
        /// The overlapping operand.
        operand: &'static str,
    },
    /// The caller passed a tensor of another device.
    #[error("{op}: operand `{operand}` is not on {device}")]
    ForeignBuffer {
        /// Op or call name.
        op: &'static str,
        /// Operand name.
        operand: &'static str,
        /// The device that was called.
        device: String,
    },
    /// A vendor library is not on this machine.
    #[error("{name} was not found")]
    MissingLibrary {
        /// File or package name.
        name: String,
        /// How to install it.
        hint: String,
    },
    /// A driver call failed.
    #[error("{call} failed{}: {message}", with_code(*code))]
    Driver {
        /// Name of the call.
        call: String,
        /// The driver's error code; 0 if it has none.
        code: i64,
        /// The driver's message.
        message: String,
    },
    /// The step was cancelled by its owner (an interrupt, or an error on the other side of a
    /// hand-off).
    #[error("the step was cancelled")]
    Cancelled,
}

/// The driver's error code as part of a message; empty for 0.
fn with_code(code: i64) -> String {
    if code == 0 { String::new() } else { format!(" with code {code}") }
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

/// An allocation that failed although the memory seems to be free met another limit.
fn shortage(label: &str, requested: Bytes, free: Bytes) -> String {
    if requested > free {
        format!("{label} needs {requested}, but only {free} are free")
    } else {
        format!("{requested} for {label} were refused, although {free} are free")
    }
}
