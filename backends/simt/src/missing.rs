//! Reasons why a vendor's devices cannot be used at all.

use thiserror::Error;

/// A vendor's library is missing, does not work, or lists no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LibraryError {
    /// The library was not found.
    #[error("{name} was not found; install {package}")]
    Library {
        /// The library's file name.
        name: &'static str,
        /// What contains it.
        package: &'static str,
    },
    /// The library lacks a function.
    #[error("the driver's library has no function {name}; install a newer driver")]
    Function {
        /// The function's name.
        name: &'static str,
    },
    /// The driver is older than the kernels.
    #[error("the driver is too old: it supports {found}, but {needed} is required; update it")]
    Version {
        /// The version it supports.
        found: String,
        /// The required version.
        needed: &'static str,
    },
    /// The driver fails before it lists devices.
    #[error("the driver does not work: {call} failed with {code} ({text})")]
    Driver {
        /// The call.
        call: &'static str,
        /// The returned code.
        code: i32,
        /// The driver's message.
        text: String,
    },
    /// The driver works and lists no device.
    #[error("the driver lists no device")]
    Device,
}

impl From<LibraryError> for hal::Error {
    fn from(error: LibraryError) -> hal::Error {
        match error {
            LibraryError::Driver { call, code, text } => {
                hal::Error::Driver { call: call.to_owned(), code: i64::from(code), message: text }
            }
            LibraryError::Library { .. }
            | LibraryError::Function { .. }
            | LibraryError::Version { .. }
            | LibraryError::Device => {
                hal::Error::Driver { call: "open".to_owned(), code: 0, message: error.to_string() }
            }
        }
    }
}
