//! The meaning of both vendors' error codes, and a record of the first unrecoverable error.

use std::ffi::c_int;
use std::sync::OnceLock;

use hal::{Error, Result};

/// Meaning of a returned code. HIP uses CUDA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// The queried work is not done yet.
    Pending,
    /// Out of memory.
    OutOfMemory,
    /// The device is unusable for the rest of this process.
    Lost,
    /// This call failed.
    Refused,
}

impl Outcome {
    /// The meaning of a code.
    #[must_use]
    pub fn of(code: c_int) -> Outcome {
        match code {
            0 => Outcome::Done,
            600 => Outcome::Pending,
            2 => Outcome::OutOfMemory,
            // Deinitialised or unavailable device; uncorrectable ECC and NVLink errors.
            4 | 46 | 214 | 220 | 226 => Outcome::Lost,
            // A kernel made an illegal access, or timed out.
            700 | 702 | 709 | 710 | 714..=719 | 721 => Outcome::Lost,
            // "Unknown error", returned for a card that does not respond.
            999 => Outcome::Lost,
            // Codes that only HIP has: runtime memory errors, and other runtime errors.
            1052 | 1053 => Outcome::Lost,
            _ => Outcome::Refused,
        }
    }

    /// The meaning of a code that the call of this name returned. "Unknown error" (999) means a
    /// lost device, except from calls with which HIP captures work or loads kernels: these also
    /// return it for input that they reject.
    #[must_use]
    pub fn of_call(call: &str, code: c_int) -> Outcome {
        let refuses = ["Capture", "Instantiate", "ModuleLoad", "GetFunction"];
        if code == 999 && refuses.iter().any(|name| call.contains(name)) {
            Outcome::Refused
        } else {
            Outcome::of(code)
        }
    }
}

/// Whether a device still works.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) device: String,
    lost: OnceLock<Error>,
}

impl Health {
    pub(super) fn new(device: &str) -> Health {
        Health { device: device.to_owned(), lost: OnceLock::new() }
    }

    /// # Errors
    /// [`Error::DeviceLost`], always with the same reason.
    pub(super) fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Marks the device as lost; the first reason is kept.
    pub(super) fn mark_lost(&self, reason: String) -> Error {
        let device = self.device.clone();
        self.lost.get_or_init(|| Error::DeviceLost { device, reason }).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_of_a_loss_is_kept() {
        let health = Health::new("CUDA0");
        assert_eq!(health.check(), Ok(()));
        let first = health.mark_lost("first".to_owned());
        assert_eq!(health.mark_lost("second".to_owned()), first);
        assert_eq!(health.check(), Err(first));
    }

    #[test]
    fn errors_of_a_call_are_not_errors_of_the_device() {
        for refused in [1, 201, 209, 218, 222, 400, 500, 701, 720, 801, 900, 901, 12345, -1] {
            assert_eq!(Outcome::of(refused), Outcome::Refused, "{refused}");
        }
        assert_eq!(Outcome::of_call("hipStreamEndCapture", 999), Outcome::Refused);
        assert_eq!(Outcome::of_call("hipStreamEndCapture", 719), Outcome::Lost);
        assert_eq!(Outcome::of_call("hipStreamSynchronize", 999), Outcome::Lost);
        for lost in [46, 214, 700, 702, 715, 719, 999] {
            assert_eq!(Outcome::of(lost), Outcome::Lost, "{lost}");
        }
    }
}
