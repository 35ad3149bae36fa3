//! The one unsafe call of this module: mapping a file into memory.
#![allow(unsafe_code)] // a mapping cannot be made in safe Rust: another process may change the file

use std::{fs, io};

/// Maps `file` for reading, whole.
///
/// # Errors
/// What the system says.
pub(super) fn map(file: &fs::File) -> io::Result<memmap2::Mmap> {
    // SAFETY: the mapping is read-only and private to `Backing`, which hands out only `&[u8]` of plain
    // bytes, so no value can become invalid by a change of the file. That nobody shortens the file
    // while it is mapped is the user's part: the system then ends the process, it does not corrupt it.
    unsafe { memmap2::Mmap::map(file) }
}
