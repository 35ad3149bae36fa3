//! Host memory that a device can copy to and from, owned by one side at a time.

use std::fmt;

use crate::{DeviceId, Reservation};

/// A backend's staging memory (pinned or mapped where that exists).
pub trait RawStaging: fmt::Debug + Send + Sync + std::any::Any {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, to write.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Ordinary host memory: staging for devices that need nothing special.
#[derive(Debug)]
pub struct PlainStaging(Vec<u8>);

impl PlainStaging {
    /// `len` zero bytes.
    #[must_use]
    pub fn boxed(len: usize) -> Box<dyn RawStaging> {
        Box::new(PlainStaging(vec![0; len]))
    }
}

impl RawStaging for PlainStaging {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

/// Idle staging memory of one device. What you hold is idle; what flies is inside a [`crate::Transfer`].
#[derive(Debug)]
pub struct Staging {
    pub(crate) raw: Box<dyn RawStaging>,
    pub(crate) device: DeviceId,
    pub(crate) held: Reservation,
}

impl Staging {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes()
    }

    /// The bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }
}
