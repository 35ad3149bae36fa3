//! Reasons why a vendor's devices cannot be used at all.

use thiserror::Error;

/// A vendor's library is missing, does not work, or lists no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Missing {
    /// The library was not found.
    #[error("{name} not found on this machine")]
    Library {
        /// The library's file name.
        name: &'static str,
    },
    /// The library lacks a function.
    #[error("the driver's library has no {name}")]
    Function {
        /// The function's name.
        name: &'static str,
    },
    /// The driver is older than the kernels.
    #[error("the driver is too old: it supports {found}, but {needed} is required")]
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

impl From<Missing> for hal::Error {
    /// The error of opening a device, although listing the devices worked.
    fn from(missing: Missing) -> hal::Error {
        match missing {
            Missing::Driver { call, code, text } => {
                hal::Error::Driver { call: call.to_owned(), code: i64::from(code), message: text }
            }
            Missing::Library { .. }
            | Missing::Function { .. }
            | Missing::Version { .. }
            | Missing::Device => hal::Error::Driver {
                call: "open".to_owned(),
                code: 0,
                message: missing.to_string(),
            },
        }
    }
}
