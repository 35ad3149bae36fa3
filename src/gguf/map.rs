//! The unsafe calls of this crate: mapping a file into memory, and dropping its pages.
//!
//! Weights are read from the mapping itself, token after token, so the page size affects speed
//! (docs/measurements/llama-cpp.md). On Linux, the mapping uses the pages of the page cache. Huge
//! pages are requested, so that later reads from disk use them. Data that is already cached keeps
//! its small pages. macOS and Windows map files in small pages alone (16 KiB on Apple silicon).
#![allow(unsafe_code)] // a mapping cannot be made in safe Rust: another process may change the file

use std::ops::Range;
use std::{fs, io};

/// Maps the whole `file` for reading.
///
/// # Errors
/// The I/O error.
pub(super) fn map(file: &fs::File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private to `Backing`, which returns only `&[u8]` of
    // plain bytes. Text is copied before it is checked, so no value can become invalid by a change
    // of the file. If the file is truncated while it is mapped, a read ends the process
    // (`fault.rs`), and memory is not corrupted.
    let map = unsafe { memmap2::Mmap::map(file) }?;
    // A system or file system without huge pages returns an error, which changes only the speed.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Memory of `len` bytes that begins with `first`. The rest is zeros and takes no memory: the
/// systems give a page only when it is written.
///
/// # Errors
/// The I/O error if that many addresses cannot be had.
pub(super) fn zeros(first: &[u8], len: usize) -> io::Result<memmap2::Mmap> {
    let mut map =
        memmap2::MmapOptions::new().len(len.max(first.len())).no_reserve_swap().map_anon()?;
    map[..first.len()].copy_from_slice(first);
    map.make_read_only()
}

/// Drops the pages of a range from this process's memory. Later reads reload the same bytes.
pub(super) fn release(map: &memmap2::Mmap, range: Range<usize>) {
    #[cfg(unix)]
    {
        // SAFETY: the mapping is shared with the file and never written, so that a dropped page
        // comes back with the file's bytes, even during a read. The range is that of a slice
        // of the mapping (`Bytes::release`).
        let _ = unsafe {
            map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
    }
    #[cfg(windows)]
    {
        // On pages that are not locked, the call takes them out of the process's memory.
        // SAFETY: as above; the call changes no contents.
        let _ = unsafe {
            let first = map.as_ptr().add(range.start);
            windows_sys::Win32::System::Memory::VirtualUnlock(first.cast(), range.len())
        };
    }
    #[cfg(not(any(unix, windows)))]
    let _ = (map, range);
}

/// Expects reads of single pages from now on, and drops all pages from this process's memory and, if
/// no other process uses them, from the page cache.
pub(super) fn expect_few_reads(map: &memmap2::Mmap, file: &fs::File) {
    #[cfg(unix)]
    let _ = map.advise(memmap2::Advice::Random);
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::NoHugePage);
    release(map, 0..map.len());
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed);
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// Starts to read the whole file into memory. This only reduces later waits.
pub(super) fn fetch(map: &memmap2::Mmap) {
    #[cfg(unix)]
    let _ = map.advise(memmap2::Advice::WillNeed);
    #[cfg(windows)]
    {
        use windows_sys::Win32::System::Memory::{PrefetchVirtualMemory, WIN32_MEMORY_RANGE_ENTRY};
        use windows_sys::Win32::System::Threading::GetCurrentProcess;
        let all = WIN32_MEMORY_RANGE_ENTRY {
            VirtualAddress: map.as_ptr().cast_mut().cast(),
            NumberOfBytes: map.len(),
        };
        // SAFETY: the one range is that of the mapping; reading ahead changes no contents.
        let _ = unsafe { PrefetchVirtualMemory(GetCurrentProcess(), 1, &raw const all, 0) };
    }
    #[cfg(not(any(unix, windows)))]
    let _ = map;
}
