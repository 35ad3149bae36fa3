//! What the codes of both vendors mean, and the first one that a device does not recover from.

use std::ffi::c_int;
use std::sync::OnceLock;

use hal::{Error, Result};

/// What a call says. HIP took CUDA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It worked.
    Done,
    /// What was asked about has not happened yet.
    Pending,
    /// There is too little memory.
    OutOfMemory,
    /// Nothing on this device will work any more in this process.
    Lost,
    /// This call did not work.
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
            // Shut down; taken away; errors of memory and of links to other devices.
            4 | 46 | 214 | 220 | 226 => Outcome::Lost,
            // A kernel did what it must not, or did not end.
            700 | 702 | 709 | 710 | 714..=719 | 721 => Outcome::Lost,
            // What drivers say of a card that does not answer.
            999 => Outcome::Lost,
            // HIP's own: errors of the runtime's memory, and of the runtime.
            1052 | 1053 => Outcome::Lost,
            _ => Outcome::Refused,
        }
    }

    /// The meaning of a code that a call of this name gave. An unknown error is a loss where it may come from work that was
    /// given before; HIP also uses it for what it will not record.
    #[must_use]
    pub fn of_call(call: &str, code: c_int) -> Outcome {
        let refuses = ["Capture", "Instantiate", "ModuleLoad", "GetFunction"];
        match code == 999 && refuses.iter().any(|name| call.contains(name)) {
            true => Outcome::Refused,
            false => Outcome::of(code),
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
    /// [`Error::DeviceLost`], always the same one.
    pub(super) fn check(&self) -> Result<()> {
        self.lost.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// The device is gone; the first reason stays.
    pub(super) fn lose(&self, reason: String) -> Error {
        let device = self.device.clone();
        self.lost.get_or_init(|| Error::DeviceLost { device, reason }).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_stays() {
        let health = Health::new("CUDA0");
        assert_eq!(health.check(), Ok(()));
        let first = health.lose("first".to_owned());
        assert_eq!(health.lose("second".to_owned()), first);
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
