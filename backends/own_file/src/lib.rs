//! Reads files that the program keeps in a cache, where other users may have put files too; and what else the standard
//! library does not say of files on every system.

mod disk;
mod identity;
mod process;
#[cfg(windows)]
mod windows;

pub use disk::free_bytes;
pub use identity::{identity, identity_at};
pub use process::is_dead;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;

/// The user that owns a file; `None` where the system has no numbers for users.
pub fn owner(file: &fs::Metadata) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        Some(file.uid())
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        None
    }
}

/// `owner`, unless files of that user are trusted beside files of the user `trusted`: it is this
/// user, root, or `trusted`.
pub fn foreign(owner: Option<u32>, trusted: Option<u32>) -> Option<u32> {
    #[cfg(unix)]
    let known = [Some(rustix::process::geteuid().as_raw()), Some(0), trusted];
    #[cfg(not(unix))]
    let known = [owner, None, trusted];
    owner.filter(|_| !known.contains(&owner))
}

/// Opens a regular file for reading, without waiting for the writer of a named pipe.
///
/// # Errors
/// The system's error; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
    }
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// As [`open_regular`], for a file whose contents are trusted: it must belong to this user or to
/// root.
///
/// # Errors
/// As [`open_regular`]; [`io::ErrorKind::PermissionDenied`] for a file of another user.
pub fn open_own(path: &Path) -> io::Result<File> {
    let file = open_regular(path)?;
    match foreign(owner(&file.metadata()?), None) {
        Some(user) => {
            let text = format!("it belongs to user {user}");
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        None => Ok(file),
    }
}

/// Reads a file that [`open_own`] opens.
///
/// # Errors
/// As [`open_own`]; [`io::ErrorKind::FileTooLarge`] for more than `limit` bytes.
pub fn read_own(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_own(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn only_regular_files_of_this_user_or_root_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let path = folder.join("file");
        fs::write(&path, b"0123456789").unwrap();
        assert_eq!(read_own(&path, 10).unwrap(), b"0123456789");
        assert_eq!(read_own(&path, 9).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_own(folder, 10).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let pipe = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        assert_eq!(read_own(&pipe, 10).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        if rustix::process::geteuid().is_root() {
            chown(&path, Some(54_321), None).unwrap();
            assert_eq!(read_own(&path, 10).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
