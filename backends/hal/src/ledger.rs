//! One ledger per device counts every byte allocated on it, against a hard budget.

use std::sync::{Arc, Mutex, PoisonError};

use crate::{Bytes, Error, Result};

/// The ledger of one device. Nothing is allocated on a device without a [`Reservation`] from it.
#[derive(Debug)]
pub struct Ledger {
    device: String,
    budget: Bytes,
    usage: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    used: Bytes,
    peak: Bytes,
}

/// A booked amount of memory. Dropping it releases the bytes.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    bytes: Bytes,
}

impl Ledger {
    /// A ledger for `device` that never exceeds `budget`.
    #[must_use]
    pub fn new(device: &str, budget: Bytes) -> Arc<Ledger> {
        Arc::new(Ledger { device: device.to_owned(), budget, usage: Mutex::default() })
    }

    /// Books `bytes`; `label` names the allocation in an error.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if this would exceed the budget; the ledger is then unchanged.
    pub fn reserve(self: &Arc<Self>, label: &str, bytes: Bytes) -> Result<Reservation> {
        let mut usage = self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.budget - usage.used;
        if bytes > free {
            return Err(Error::OutOfMemory {
                device: self.device.clone(),
                label: label.to_owned(),
                requested: bytes,
                free,
            });
        }
        usage.used += bytes;
        usage.peak = usage.peak.max(usage.used);
        Ok(Reservation { ledger: Arc::clone(self), bytes })
    }

    /// The budget: the most bytes that may be booked at once.
    #[must_use]
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// Bytes booked now.
    #[must_use]
    pub fn used(&self) -> Bytes {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner).used
    }

    /// Highest number of bytes booked at any time.
    #[must_use]
    pub fn peak(&self) -> Bytes {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner).peak
    }
}

impl Reservation {
    /// Size of this reservation.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut usage = self.ledger.usage.lock().unwrap_or_else(PoisonError::into_inner);
        usage.used = usage.used - self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_budget_and_are_released() {
        let ledger = Ledger::new("test", Bytes(100));
        let a = ledger.reserve("a", Bytes(60)).unwrap();
        let error = ledger.reserve("b", Bytes(41)).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { requested: Bytes(41), free: Bytes(40), .. }));
        drop(a);
        let _b = ledger.reserve("b", Bytes(100)).unwrap();
        assert_eq!((ledger.used(), ledger.peak()), (Bytes(100), Bytes(100)));
    }
}
