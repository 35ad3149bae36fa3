//! Driver objects that are destroyed when dropped.

#![allow(unsafe_code, reason = "handles of a driver")]

use std::borrow::Cow;
use std::ffi::c_int;
use std::fmt;
use std::sync::Arc;

use super::calls::{HandleCall, Raw};
use super::health::{Health, Outcome};
use super::{Calls, Vendor};

/// An open device, kept alive by all objects created on it.
#[derive(Debug)]
pub(super) struct OpenDevice<V> {
    pub(super) vendor: V,
    pub(super) calls: Calls,
    pub(super) health: Health,
}

impl<V: Vendor> OpenDevice<V> {
    /// Makes the device current for this thread's calls.
    ///
    /// # Errors
    /// [`hal::Error::DeviceLost`], [`hal::Error::Driver`].
    pub(super) fn make_current(&self) -> hal::Result<&Calls> {
        self.health.check()?;
        self.check(V::ENTER, self.vendor.enter())?;
        Ok(&self.calls)
    }

    /// Converts a driver code to a `hal` error.
    ///
    /// # Errors
    /// See [`crate::Driver`].
    pub(super) fn check(&self, call: &str, code: c_int) -> hal::Result<()> {
        match Outcome::of_call(call, code) {
            Outcome::Done => Ok(()),
            Outcome::OutOfMemory => Err(self.out_of_memory(call, 0)),
            Outcome::Lost => {
                Err(self.health.mark_lost(format!("{call} failed: {}", self.vendor.text(code))))
            }
            Outcome::Pending | Outcome::Refused => Err(hal::Error::Driver {
                call: call.to_owned(),
                code: i64::from(code),
                message: self.vendor.text(code),
            }),
        }
    }

    pub(super) fn out_of_memory(&self, label: &str, wanted: u64) -> hal::Error {
        let free = self.memory().map_or(0, |(free, _)| free);
        hal::Error::OutOfMemory {
            device: self.health.device.clone(),
            label: label.to_owned(),
            requested: hal::Bytes(wanted),
            free: hal::Bytes(free as u64),
        }
    }

    /// Free and total memory if the driver reports it.
    pub(super) fn memory(&self) -> Result<(usize, usize), c_int> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes both values, and only before it returns.
        match unsafe { (self.calls.memory.call)(&raw mut free, &raw mut total) } {
            0 => Ok((free, total)),
            code => Err(code),
        }
    }
}

pub(super) struct Handle<V: Vendor> {
    pub(super) raw: Raw,
    destroy: HandleCall,
    shared: Arc<OpenDevice<V>>,
}

impl<V: Vendor> Handle<V> {
    /// Wraps a new handle.
    pub(super) fn new(shared: &Arc<OpenDevice<V>>, raw: Raw, destroy: HandleCall) -> Handle<V> {
        Handle { raw, destroy, shared: Arc::clone(shared) }
    }
}

impl<V: Vendor> fmt::Debug for Handle<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.raw, self.shared.health.device)
    }
}

impl<V: Vendor> Drop for Handle<V> {
    fn drop(&mut self) {
        if self.shared.make_current().is_ok() {
            // SAFETY: `destroy` is the matching destructor, and no other reference to the object is
            // left. The returned code is ignored: the next call reports a lost device.
            let _ = unsafe { (self.destroy.call)(self.raw) };
        }
    }
}

// SAFETY: handles of both drivers may be used and destroyed from any thread.
unsafe impl<V: Vendor> Send for Handle<V> {}
// SAFETY: as above.
unsafe impl<V: Vendor> Sync for Handle<V> {}

/// A driver's stream.
#[derive(Debug)]
pub struct Stream<V: Vendor>(pub(super) Handle<V>);

/// A driver's event.
#[derive(Debug)]
pub struct Event<V: Vendor>(pub(super) Handle<V>);

/// A loaded unit of kernels.
#[derive(Debug)]
pub struct Module<V: Vendor> {
    pub(super) raw: Handle<V>,
    /// The image it was loaded from: HIP does not copy it, and may read it as long as the module
    /// lives.
    pub(super) _image: Cow<'static, [u8]>,
}

/// A kernel of a module.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(pub(super) Raw);

// SAFETY: the handle is opaque, and any thread may pass it to the driver.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// An instantiated graph.
#[derive(Debug)]
pub struct Graph<V: Vendor> {
    pub(super) instance: Handle<V>,
    /// The captured graph: old versions of HIP still read it.
    pub(super) _recorded: Handle<V>,
}
