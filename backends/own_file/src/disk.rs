//! Free disk space.

use std::path::Path;

/// Bytes that this process may still write in `folder`, or in its nearest parent that exists, if the system reports
/// it.
#[must_use]
pub fn free_bytes(folder: &Path) -> Option<u64> {
    // A relative path ends with an empty one: the current folder.
    let named = |folder: &'_ Path| !folder.as_os_str().is_empty();
    let mut folders = folder.ancestors().map(|f| if named(f) { f } else { Path::new(".") });
    folders.find_map(of_folder)
}

#[cfg(unix)]
fn of_folder(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(windows)]
fn of_folder(folder: &Path) -> Option<u64> {
    super::windows::free_bytes(folder)
}

#[cfg(not(any(unix, windows)))]
fn of_folder(_folder: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(any(unix, windows))]
    fn a_folder_that_does_not_exist_yet_has_the_room_of_its_parent() {
        let folder = std::env::temp_dir();
        assert!(free_bytes(&folder).is_some_and(|bytes| bytes > 0));
        assert!(free_bytes(&folder.join("not").join("there")).is_some_and(|bytes| bytes > 0));
        assert!(free_bytes(Path::new("not/there")).is_some());
        assert!(free_bytes(Path::new("")).is_some());
    }
}
