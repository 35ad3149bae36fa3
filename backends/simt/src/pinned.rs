//! Pinned host memory that the device can access: staging blocks, and the mailboxes of hand-offs.

#![allow(unsafe_code, reason = "memory from the driver, shared with a device")]

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use hal::{RawStaging, Result};

use crate::driver::{DevicePtr, Driver, HostBlock};

/// A pinned block, freed when dropped.
pub(crate) struct Pinned<D: Driver> {
    driver: Arc<D>,
    block: HostBlock,
    /// The requested length in bytes.
    len: usize,
}

// SAFETY: the block is host memory owned by this value alone; the submitter orders the device's
// accesses, and memory that host and device use at once is accessed through atomics.
unsafe impl<D: Driver> Send for Pinned<D> {}
// SAFETY: as above; through a shared reference the memory is only read, or accessed through
// atomics.
unsafe impl<D: Driver> Sync for Pinned<D> {}

impl<D: Driver> fmt::Debug for Pinned<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinned({} bytes)", self.len)
    }
}

impl<D: Driver> Pinned<D> {
    /// Allocates `len` zero bytes.
    ///
    /// # Errors
    /// [`hal::Error::OutOfMemory`], a lost device.
    pub(crate) fn new(driver: &Arc<D>, label: &str, len: usize) -> Result<Pinned<D>> {
        let block = driver.alloc_host(label, len.max(16))?;
        let aligned = !block.host.is_null() && (block.host as usize).is_multiple_of(16);
        assert!(block.len >= len && aligned, "the driver gave {block:?} for {len} bytes");
        Ok(Pinned { driver: Arc::clone(driver), block, len })
    }

    pub(crate) fn device(&self) -> DevicePtr {
        self.block.device
    }

    /// The requested length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.block.host
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.block.host
    }

    /// Word number `at`, which host and device may access concurrently.
    pub(crate) fn word(&self, at: usize) -> &AtomicU32 {
        assert!(4 * at + 4 <= self.len, "word {at} exceeds {} bytes", self.len);
        // SAFETY: the word is inside the block, which is aligned to words and lives as long as
        // `self`; while these words may change, they are accessed through atomics only.
        unsafe { AtomicU32::from_ptr(self.block.host.add(4 * at).cast()) }
    }

    /// `n` values from word `at` on. The device does not write them while they are borrowed: at
    /// that time it waits for the answer, or the run is over.
    pub(crate) fn words<T: bytemuck::Pod>(&self, at: usize, n: usize) -> &[T] {
        assert!(
            size_of::<T>() == 4 && 4 * (at + n) <= self.len,
            "{n} words at {at} exceed {} bytes",
            self.len
        );
        // SAFETY: the values are inside the block, which is aligned to words; any bits are a valid
        // `T`.
        unsafe { std::slice::from_raw_parts(self.block.host.add(4 * at).cast(), n) }
    }

    /// Writes values from word `at` on. The device reads them only after it sees a flag, which the
    /// caller sets afterwards.
    pub(crate) fn put(&self, at: usize, values: &[f32]) {
        assert!(
            4 * (at + values.len()) <= self.len,
            "{} words at {at} exceed {} bytes",
            values.len(),
            self.len
        );
        // SAFETY: the values are inside the block; the hand-off protocol excludes all other
        // accesses until the flag is set.
        unsafe {
            let to: *mut f32 = self.block.host.add(4 * at).cast();
            to.copy_from_nonoverlapping(values.as_ptr(), values.len());
        }
    }
}

impl<D: Driver> RawStaging for Pinned<D> {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the block has that many bytes, and staging memory is idle while it can be
        // borrowed.
        unsafe { std::slice::from_raw_parts(self.block.host, self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the block is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.block.host, self.len) }
    }
}

impl<D: Driver> Drop for Pinned<D> {
    fn drop(&mut self) {
        self.driver.free_host(self.block);
    }
}
