//! Refusals of this crate's own.

use hal::Error;

/// A refused call.
pub(crate) fn driver(call: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Driver { call: call.into(), code: 0, message: message.into() }
}
