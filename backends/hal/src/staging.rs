//! Staging: host memory that a device can copy to and from. Its owner is the host or a copy in
//! flight.

use std::fmt;

use crate::{DeviceId, Reservation};

/// A backend's staging memory, pinned or mapped if the device supports it.
pub trait RawStaging: fmt::Debug + Send + Sync + std::any::Any {
    /// The bytes.
    fn bytes(&self) -> &[u8];
    /// The bytes, writable.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Ordinary host memory: staging for devices without special requirements.
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

/// Idle staging memory of one device. A [`crate::Transfer`] owns the staging memory of a copy in
/// flight.
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

    /// The bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }
}
