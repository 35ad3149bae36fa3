//! Reserved addresses for the bytes of a file, page by page with or without memory.
//!
//! All unsafe code of this crate is in this file and in `ring`. It relies on one promise of `store`: bytes of the
//! region are read only while their unit is resident, and a unit is written only before it is
//! resident. A job writes only bytes of its unit, though pages at both ends of a unit may hold bytes
//! of resident neighbours too.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use hal::SharedBytes;

/// Bytes of the largest page that the system may have: the granularity of memory and of reads past
/// the page cache.
pub(crate) const PAGE: u64 = if cfg!(target_vendor = "apple") {
    16 << 10
} else if cfg!(any(target_arch = "x86", target_arch = "x86_64")) {
    4 << 10
} else {
    64 << 10
};
/// Bytes of a huge page.
pub(crate) const HUGE: u64 = 2 << 20;

/// Reserved addresses, in whole pages, that begin on a huge page.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
    /// The mapping that `start` is in.
    #[cfg(any(unix, windows))]
    mapping: (NonNull<u8>, usize),
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
        // `self`. Pages without memory read as zeros; on Windows they cannot be read, and are not:
        // only bytes of resident units are. Concurrent writes follow the promise above.
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
    /// The system's error; [`io::ErrorKind::Unsupported`] on systems other than Unix and Windows.
    #[cfg(any(unix, windows))]
    pub(crate) fn reserve(len: u64) -> io::Result<Arc<Region>> {
        let len = len.max(1).checked_next_multiple_of(PAGE);
        let len = len.and_then(|len| usize::try_from(len).ok());
        let len = len.ok_or(io::ErrorKind::OutOfMemory)?;
        let mapped = len.checked_add(HUGE as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let base = reserve_addresses(mapped)?;
        // SAFETY: the mapping is longer than `len` by a huge page, so that this stays inside.
        let start = unsafe { base.add(base.align_offset(HUGE as usize)) };
        Ok(Arc::new(Region { start, len, mapping: (base, mapped) }))
    }

    /// Always fails: reserved addresses need Unix or Windows.
    #[cfg(not(any(unix, windows)))]
    pub(crate) fn reserve(_len: u64) -> io::Result<Arc<Region>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets the system use huge pages for `range`, of which all or nothing has memory at a time. A
    /// system without huge pages uses small ones.
    ///
    /// # Panics
    /// If the range is outside the region or is not whole pages.
    #[cfg(target_os = "linux")]
    pub(crate) fn advise_huge(&self, range: Range<u64>) {
        let range = self.checked_pages(range);
        // SAFETY: the range is inside the region; the advice changes no contents.
        let _ = unsafe {
            rustix::mm::madvise(
                self.start.as_ptr().add(range.start).cast(),
                range.len(),
                rustix::mm::Advice::LinuxHugepage,
            )
        };
    }

    /// Does nothing: macOS has no huge pages on Apple silicon, and Windows cannot give and take them back by units.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn advise_huge(&self, range: Range<u64>) {
        let _ = self.checked_pages(range);
    }

    /// Moves the memory of the pages `from` to the addresses at `to` of `target`, which have no
    /// memory; `from` reads as zeros afterwards. The contents are unspecified for the caller: they
    /// are overwritten before use. If the system cannot do that, changes nothing and returns false.
    ///
    /// # Panics
    /// If a range is outside its region or is not whole pages.
    #[cfg(target_os = "linux")]
    pub(crate) fn move_pages(&self, from: Range<u64>, target: &Region, to: u64) -> bool {
        use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};
        let from = self.checked_pages(from);
        let to = target.checked_pages(to..to + from.len() as u64);
        // SAFETY: both ranges are inside regions.
        let (old, new) = unsafe {
            (self.start.as_ptr().add(from.start), target.start.as_ptr().add(to.start).cast())
        };
        // The old addresses stay reserved (Linux 5.7).
        let flags = MremapFlags::MAYMOVE | MremapFlags::DONTUNMAP;
        // SAFETY: no resident unit has bytes in either range, and no job uses them.
        if unsafe { mremap_fixed(old.cast(), from.len(), from.len(), flags, new) }.is_ok() {
            return true;
        }
        let (protection, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
        );
        // The failed call may have unmapped the new addresses. If it has not, this call fails.
        // SAFETY: existing mappings are not replaced.
        let _ = unsafe { mmap_anonymous(new, to.len(), protection, flags) };
        false
    }

    /// Always false: only Linux moves pages.
    #[cfg(not(target_os = "linux"))]
    pub(crate) fn move_pages(&self, from: Range<u64>, target: &Region, to: u64) -> bool {
        let len = self.checked_pages(from).len() as u64;
        let _ = target.checked_pages(to..to + len);
        false
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
        #[cfg(windows)]
        self.commit(&range);
        // SAFETY: the range is inside the region, which is mapped for writing. Only one job reads
        // into a unit, and nothing else uses it: see the promise at the head of this file.
        read(unsafe {
            std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len())
        })
    }

    /// Gives memory to the pages of `range` that have none. Ends the process, as a failed allocation
    /// does, if the system has none.
    #[cfg(windows)]
    fn commit(&self, range: &Range<usize>) {
        use windows_sys::Win32::System::Memory::{MEM_COMMIT, PAGE_READWRITE, VirtualAlloc};
        if range.is_empty() {
            return;
        }
        // SAFETY: the range is inside the region. Pages that have memory keep it and their contents.
        let memory = unsafe {
            let first = self.start.as_ptr().add(range.start);
            VirtualAlloc(first.cast(), range.len(), MEM_COMMIT, PAGE_READWRITE)
        };
        if memory.is_null() {
            let layout = std::alloc::Layout::array::<u8>(range.len());
            std::alloc::handle_alloc_error(layout.unwrap_or(std::alloc::Layout::new::<u8>()));
        }
    }

    /// Returns the memory of whole pages to the system; they read as zeros until they are filled, or
    /// on Windows not at all.
    ///
    /// # Panics
    /// If the range is outside the region or is not whole pages.
    pub(crate) fn release(&self, range: Range<u64>) {
        let range = self.checked_pages(range);
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
        #[cfg(windows)]
        // SAFETY: the pages are inside the region, and no resident unit has bytes in them. If the
        // call fails, the pages keep their memory, which does not change any result.
        let _ = unsafe {
            use windows_sys::Win32::System::Memory::{MEM_DECOMMIT, VirtualFree};
            VirtualFree(self.start.as_ptr().add(range.start).cast(), range.len(), MEM_DECOMMIT)
        };
    }

    fn checked(&self, range: Range<u64>) -> Range<usize> {
        let inside = range.start <= range.end && range.end <= self.len as u64;
        assert!(inside, "{range:?} is inside the region of {} bytes", self.len);
        range.start as usize..range.end as usize
    }

    fn checked_pages(&self, range: Range<u64>) -> Range<usize> {
        let whole = range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE);
        assert!(whole, "{range:?} are whole pages");
        self.checked(range)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        #[cfg(unix)]
        // SAFETY: `reserve` mapped the range; slices and jobs keep the region alive.
        let _ = unsafe { rustix::mm::munmap(self.mapping.0.as_ptr().cast(), self.mapping.1) };
        #[cfg(windows)]
        // SAFETY: as above. Windows takes the beginning of a mapping, and finds its length.
        let _ = unsafe {
            use windows_sys::Win32::System::Memory::{MEM_RELEASE, VirtualFree};
            VirtualFree(self.mapping.0.as_ptr().cast(), 0, MEM_RELEASE)
        };
    }
}

/// New addresses without memory.
#[cfg(unix)]
fn reserve_addresses(len: usize) -> io::Result<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: the system chooses new addresses, so no existing memory is touched.
    let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
    // A huge page would take memory for units that are not resident.
    #[cfg(target_os = "linux")]
    // SAFETY: the range is the new mapping; the advice changes no contents.
    let _ = unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxNoHugepage) };
    NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// See the definition for Unix.
#[cfg(windows)]
fn reserve_addresses(len: usize) -> io::Result<NonNull<u8>> {
    use windows_sys::Win32::System::Memory::{MEM_RESERVE, PAGE_READWRITE, VirtualAlloc};
    // SAFETY: the system chooses new addresses, so no existing memory is touched.
    let base = unsafe { VirtualAlloc(std::ptr::null(), len, MEM_RESERVE, PAGE_READWRITE) };
    NonNull::new(base.cast()).ok_or_else(io::Error::last_os_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_as_zeros() {
        let region = Region::reserve(3 * PAGE - 5).unwrap();
        let all = || (*region.slice(0..3 * PAGE)).as_ref().to_vec();
        let sevens = || all().iter().filter(|&&byte| byte == 7).count() as u64;
        region.fill(PAGE - 1..2 * PAGE + 1, |out| {
            assert!(out.iter().all(|&byte| byte == 0));
            out.fill(7);
        });
        assert_eq!(sevens(), PAGE + 2);
        region.release(PAGE..2 * PAGE);
        // Neighbours keep their contents.
        region.fill(PAGE..2 * PAGE, |out| assert!(out.iter().all(|&byte| byte == 0)));
        assert_eq!(sevens(), 2);
    }

    #[test]
    #[cfg(unix)]
    fn pages_without_memory_read_as_zeros() {
        let region = Region::reserve(3 * PAGE).unwrap();
        let all = || (*region.slice(0..3 * PAGE)).as_ref().iter().all(|&byte| byte == 0);
        assert!(all());
        region.fill(0..3 * PAGE, |out| out.fill(7));
        region.release(0..3 * PAGE);
        assert!(all());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn moved_pages_keep_their_contents_and_leave_zeros() {
        let (a, b) = (Region::reserve(8 * PAGE).unwrap(), Region::reserve(8 * PAGE).unwrap());
        a.fill(0..8 * PAGE, |out| out.fill(7));
        assert!(a.move_pages(2 * PAGE..5 * PAGE, &b, PAGE));
        let n = |region: &Arc<Region>| {
            let bytes = region.slice(0..8 * PAGE);
            (*bytes).as_ref().iter().filter(|&&byte| byte == 7).count() as u64 / PAGE
        };
        assert_eq!((n(&a), n(&b)), (5, 3));
        assert!(b.move_pages(PAGE..3 * PAGE, &b, 6 * PAGE));
        assert_eq!((*b.slice(6 * PAGE..6 * PAGE + 1)).as_ref(), [7]);
        assert_eq!(n(&b), 3);
        // Both ends are memory as before.
        a.fill(2 * PAGE..5 * PAGE, |out| out.fill(7));
        b.fill(0..8 * PAGE, |out| out.fill(7));
        assert_eq!((n(&a), n(&b)), (8, 8));
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
