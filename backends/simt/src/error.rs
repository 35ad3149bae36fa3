//! Errors of this crate.

use hal::Error;

/// A driver call that failed.
pub(crate) fn driver(call: impl Into<String>, message: impl Into<String>) -> Error {
    Error::Driver { call: call.into(), code: 0, message: message.into() }
}
