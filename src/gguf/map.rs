//! The unsafe calls of this module: mapping a file into memory, and letting go of its pages.
//!
//! Weights are read from the mapping itself, token after token, so the size of its pages is speed
//! (docs/measurements.md). On Linux they are those of the system's cache: huge ones are asked for, so that what is read
//! from the disk now comes in them. What lies in the cache in small pages from before stays so.
#![allow(unsafe_code)] // a mapping cannot be made in safe Rust: another process may change the file

use std::ops::Range;
use std::{fs, io};

/// Maps `file` for reading, whole.
///
/// # Errors
/// What the system says.
pub(super) fn map(file: &fs::File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private to `Backing`, which hands out only `&[u8]` of plain
    // bytes, so no value can become invalid by a change of the file. That nobody shortens the file
    // while it is mapped is the user's part: the system then ends the process, it does not corrupt it.
    let map = unsafe { memmap2::Mmap::map(file) }?;
    // A system or file system without huge pages says no, and the file is read as ever.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(map)
}

/// Takes the pages of a range out of this process's memory. Whoever reads them gets the same bytes again.
pub(super) fn release(map: &memmap2::Mmap, range: Range<usize>) {
    #[cfg(unix)]
    {
        // SAFETY: the mapping is shared with the file and never written, so that a dropped page comes back with
        // the file's bytes, also under a reader. The range is inside the mapping, as `advise_range` checks.
        let _ = unsafe {
            map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
        };
    }
    #[cfg(not(unix))]
    let _ = (map, range);
}

/// Has the system read all of the file ahead. Whoever reads it then waits less; nothing else changes.
pub(super) fn fetch(map: &memmap2::Mmap) {
    #[cfg(unix)]
    let _ = map.advise(memmap2::Advice::WillNeed);
    #[cfg(not(unix))]
    let _ = map;
}
