//! Reserved addresses for the bytes of a file, page by page with or without memory.
//!
//! All unsafe code of this crate is in this file. It relies on one promise of `store`: bytes of the
//! region are read only while their unit is resident, and a unit is written only before it is
//! resident. Pages at both ends of a unit may hold bytes of resident neighbours; a read writes the
//! same bytes to them that they already have.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use hal::SharedBytes;

/// Bytes of a page: the granularity of memory and of reads past the page cache. Systems with larger
/// pages round returned ranges inwards.
pub(crate) const PAGE: u64 = 4096;

/// Reserved addresses, in whole pages, that begin on a page.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the region is an address range that lives until it is dropped; accesses follow the
// promise at the head of this file.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// A range of a region, for use as the memory of a tensor.
struct RegionBytes {
    region: Arc<Region>,
    range: Range<usize>,
}

impl AsRef<[u8]> for RegionBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is inside the region, which is mapped for reading and lives as long as
        // `self`. Pages without memory read as zeros. Concurrent writes follow the promise above.
        unsafe {
            std::slice::from_raw_parts(
                self.region.start.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

impl Region {
    /// Reserves addresses for `len` bytes without memory.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::Unsupported`] on systems other than Unix.
    #[cfg(unix)]
    pub(crate) fn reserve(len: u64) -> io::Result<Arc<Region>> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: the system chooses new addresses, so no existing memory is touched.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A huge page would take memory for units that are not resident.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is the new mapping; the advice changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(start.as_ptr().cast(), len, rustix::mm::Advice::LinuxNoHugepage)
        };
        Ok(Arc::new(Region { start, len }))
    }

    /// Always fails: reserved addresses need Unix.
    #[cfg(not(unix))]
    pub(crate) fn reserve(_len: u64) -> io::Result<Arc<Region>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A range of the region as the memory of a tensor.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub(crate) fn slice(self: &Arc<Self>, range: Range<u64>) -> SharedBytes {
        let range = self.checked(range);
        Arc::new(RegionBytes { region: Arc::clone(self), range })
    }

    /// Calls `read` with the memory of `range`.
    ///
    /// # Panics
    /// If the range is outside the region.
    pub(crate) fn fill<T>(&self, range: Range<u64>, read: impl FnOnce(&mut [u8]) -> T) -> T {
        let range = self.checked(range);
        // SAFETY: the range is inside the region, which is mapped for writing. Only one job reads
        // into a unit, and nothing else uses it: see the promise at the head of this file.
        read(unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len())
        })
    }

    /// Returns the memory of whole pages to the system; they read as zeros until they are filled.
    ///
    /// # Panics
    /// If the range is outside the region or is not whole pages.
    pub(crate) fn release(&self, range: Range<u64>) {
        let range = self.checked(range);
        let page = PAGE as usize;
        assert!(range.start.is_multiple_of(page) && range.end.is_multiple_of(page), "whole pages");
        if range.is_empty() {
            return;
        }
        #[cfg(target_os = "linux")]
        // SAFETY: the pages are inside the region, and no resident unit has bytes in them. If the
        // advice fails, the pages keep their memory, which does not change any result.
        let _ = unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().add(range.start).cast(),
                range.len(),
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        #[cfg(all(unix, not(target_os = "linux")))]
        {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            let (protection, flags) = (
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            );
            // SAFETY: new pages replace pages of this region alone, and no resident unit has bytes
            // in them.
            let _ = unsafe {
                mmap_anonymous(
                    self.start.as_ptr().add(range.start).cast(),
                    range.len(),
                    protection,
                    flags,
                )
            };
        }
    }

    fn checked(&self, range: Range<u64>) -> Range<usize> {
        let inside = range.start <= range.end && range.end <= self.len as u64;
        assert!(inside, "{range:?} is inside the region of {} bytes", self.len);
        range.start as usize..range.end as usize
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: `reserve` mapped the range; slices and jobs keep the region alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn released_pages_read_as_zeros() {
        let region = Region::reserve(3 * PAGE - 5).unwrap();
        let bytes = region.slice(0..3 * PAGE);
        let all = || (*bytes).as_ref().to_vec();
        assert!(all().iter().all(|&byte| byte == 0));
        region.fill(PAGE - 1..2 * PAGE + 1, |out| out.fill(7));
        assert_eq!(all().iter().filter(|&&byte| byte == 7).count(), PAGE as usize + 2);
        region.release(PAGE..2 * PAGE);
        assert_eq!(all().iter().filter(|&&byte| byte == 7).count(), 2);
    }

    #[test]
    fn a_region_may_exceed_the_memory_of_the_machine() {
        let region = Region::reserve(1 << 42).unwrap();
        region.fill((1 << 41)..(1 << 41) + 3, |out| out.copy_from_slice(&[1, 2, 3]));
        let bytes = region.slice((1 << 41)..(1 << 41) + 4);
        assert_eq!((*bytes).as_ref(), [1, 2, 3, 0]);
    }

    #[test]
    #[should_panic(expected = "inside the region")]
    fn ranges_are_checked() {
        let region = Region::reserve(PAGE).unwrap();
        let _ = region.slice(0..PAGE + 1);
    }
}
