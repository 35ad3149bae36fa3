//! Room on the disk, and what of it the system keeps in memory.

use std::path::Path;

/// Bytes that this process may still write where `folder` is, if the system tells.
#[cfg(unix)]
#[must_use]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Bytes that this process may still write where `folder` is, if the system tells.
#[cfg(not(unix))]
#[must_use]
pub fn free_bytes(_folder: &Path) -> Option<u64> {
    None
}

/// Has the system forget what it holds of a file that was just written, once it is on the disk: read back, it lies in
/// large pages, where what came in by writing lies in whatever was free. A file that the system does not let go of stays.
#[cfg(target_os = "linux")]
pub fn forget_pages(path: &Path) {
    if let Ok(file) = std::fs::File::open(path)
        && file.sync_all().is_ok()
    {
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

/// Only Linux is told such a thing.
#[cfg(not(target_os = "linux"))]
pub fn forget_pages(_path: &Path) {}
