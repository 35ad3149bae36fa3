//! Global memory: allocations of the driver, and variables of the module.

#![allow(unsafe_code, reason = "kernels access memory by address")]

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use fakes::Range;

/// Everything that a launch may access.
pub(crate) struct Memory {
    /// In the order of addresses, without overlap.
    ranges: Vec<Range>,
    /// The range of the last access: the next one is mostly in the same.
    last: Cell<usize>,
}

impl Memory {
    /// Memory that consists of `ranges` and the variables of a module.
    ///
    /// # Safety
    /// All ranges are readable and writable, and stay so while the value exists. Other threads access
    /// a word of them at the same time only by relaxed accesses of the kernel and atomics.
    pub(crate) unsafe fn new(ranges: &[Range], variables: &[Box<[AtomicU64]>]) -> Memory {
        let own = variables
            .iter()
            .map(|words| Range { at: words.as_ptr() as u64, len: 8 * words.len() as u64 });
        let mut ranges: Vec<Range> = ranges.iter().copied().chain(own).collect();
        ranges.sort_unstable_by_key(|range| range.at);
        Memory { ranges, last: Cell::new(0) }
    }

    /// Fails unless an access is aligned and inside one range.
    #[inline]
    pub(crate) fn check(&self, address: u64, bytes: u64) -> Result<(), String> {
        let inside = |range: &Range| {
            let from = address.wrapping_sub(range.at);
            from < range.len && bytes <= range.len - from
        };
        if !address.is_multiple_of(bytes) {
            return Err(format!("an access of {bytes} bytes at {address:#x}, which is misaligned"));
        }
        if self.ranges.get(self.last.get()).is_some_and(inside) {
            return Ok(());
        }
        let behind = self.ranges.partition_point(|range| range.at <= address);
        let before = behind.checked_sub(1);
        match before.filter(|&at| inside(&self.ranges[at])) {
            Some(at) => {
                self.last.set(at);
                Ok(())
            }
            None => {
                let text = format!(
                    "an access of {bytes} bytes at {address:#x}, outside of every allocation"
                );
                Err(match before.map(|at| self.ranges[at]) {
                    Some(Range { at, len }) if address - at < 2 * len + 65536 => {
                        format!("{text}; it is at byte {} of an allocation of {len}", address - at)
                    }
                    Some(_) | None => text,
                })
            }
        }
    }

    /// Reads 2, 4 or 8 bytes of a checked address.
    #[inline]
    pub(crate) fn read(&self, address: u64, bytes: usize) -> u64 {
        // SAFETY: `check` accepted the address; see `new`.
        unsafe {
            match bytes {
                2 => u64::from((address as *const u16).read()),
                4 => u64::from((address as *const u32).read()),
                _ => (address as *const u64).read(),
            }
        }
    }

    /// Writes 2, 4 or 8 bytes to a checked address.
    #[inline]
    pub(crate) fn write(&self, address: u64, bytes: usize, value: u64) {
        // SAFETY: `check` accepted the address; see `new`.
        unsafe {
            match bytes {
                2 => (address as *mut u16).write(value as u16),
                4 => (address as *mut u32).write(value as u32),
                _ => (address as *mut u64).write(value),
            }
        }
    }

    /// Reads a word that the host may write at the same time.
    pub(crate) fn read_relaxed(&self, address: u64, bytes: usize) -> u64 {
        // SAFETY: `check` accepted the address; see `new`. The order is that of a fence that follows,
        // which the CPU needs as well.
        unsafe {
            if bytes == 8 {
                AtomicU64::from_ptr(address as *mut u64).load(Ordering::Acquire)
            } else {
                u64::from(AtomicU32::from_ptr(address as *mut u32).load(Ordering::Acquire))
            }
        }
    }

    /// Writes a word that the host may read at the same time.
    pub(crate) fn write_relaxed(&self, address: u64, bytes: usize, value: u64) {
        // SAFETY: as above.
        unsafe {
            if bytes == 8 {
                AtomicU64::from_ptr(address as *mut u64).store(value, Ordering::Release);
            } else {
                AtomicU32::from_ptr(address as *mut u32).store(value as u32, Ordering::Release);
            }
        }
    }

    /// Changes a word at a checked address and returns what it was. The host may read it at the same
    /// time.
    pub(crate) fn change(&self, address: u64, f: impl Fn(u32) -> u32) -> u32 {
        // SAFETY: as above.
        let word = unsafe { AtomicU32::from_ptr(address as *mut u32) };
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some(f(old)))
            .unwrap_or_else(|old| old)
    }
}
