//! Errors of this crate.

use hal::Error;

/// An error of `call` that has no driver code.
pub(crate) fn failure(call: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Driver { call: call.into(), code: 0, message: message.into() }
}
