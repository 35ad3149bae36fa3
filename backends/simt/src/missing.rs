//! Why a vendor's devices cannot be used at all.

use thiserror::Error;

/// A vendor's library that is not there, does not work, or shows no device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Missing {
    /// No such library.
    #[error("{name} is not on this machine")]
    Library {
        /// The file that was looked for.
        name: &'static str,
    },
    /// The library lacks something.
    #[error("the driver's library has no {name}")]
    Function {
        /// What was looked up.
        name: &'static str,
    },
    /// The driver is older than the kernels.
    #[error("the driver is too old: it is for {found}, {needed} is needed")]
    Version {
        /// What it is for.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// The driver fails before it shows a device.
    #[error("the driver does not work: {call} failed with {code} ({text})")]
    Driver {
        /// The call.
        call: &'static str,
        /// What it returned.
        code: i32,
        /// What the driver says about it.
        text: String,
    },
    /// The driver works and has nothing to show.
    #[error("the driver shows no device")]
    Device,
}

impl From<Missing> for hal::Error {
    /// What opening a device reports where the driver worked when devices were listed.
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
