//! Which names lead to one file.

#[cfg(any(unix, test))]
use std::fs;
use std::fs::File;
use std::path::Path;

/// Device and number of an open file, which all its hard links share; `None` where the system or the file system has
/// none.
#[must_use]
pub fn identity(file: &File) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        file.metadata().ok().map(|found| of_metadata(&found))
    }
    #[cfg(windows)]
    {
        super::windows::identity(file)
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = file;
        None
    }
}

/// As [`identity`] for the file that `path` leads to, through symbolic links; it need not be readable.
#[must_use]
pub fn identity_at(path: &Path) -> Option<(u64, u64)> {
    #[cfg(unix)]
    {
        fs::metadata(path).ok().map(|found| of_metadata(&found))
    }
    #[cfg(windows)]
    {
        open_unread(path).ok().and_then(|file| identity(&file))
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = path;
        None
    }
}

#[cfg(unix)]
fn of_metadata(found: &fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

/// Opens a file or folder for its facts alone, which another program's lock does not refuse.
#[cfg(windows)]
fn open_unread(path: &Path) -> std::io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt;
    use windows_sys::Win32::Storage::FileSystem::FILE_FLAG_BACKUP_SEMANTICS;
    std::fs::OpenOptions::new().access_mode(0).custom_flags(FILE_FLAG_BACKUP_SEMANTICS).open(path)
}

#[cfg(all(test, any(unix, windows)))]
mod tests {
    use super::*;

    #[test]
    fn hard_links_are_one_file_and_copies_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [a, link, copy] = ["a", "link", "copy"].map(|name| folder.path().join(name));
        fs::write(&a, b"1").unwrap();
        fs::hard_link(&a, &link).unwrap();
        fs::copy(&a, &copy).unwrap();
        assert_eq!(identity_at(&a), identity_at(&link));
        assert_eq!(identity_at(&a), identity(&File::open(&link).unwrap()));
        assert_ne!(identity_at(&a), identity_at(&copy));
        assert!(identity_at(&a).is_some() && identity_at(folder.path()).is_some());
        assert_eq!(identity_at(&folder.path().join("none")), None);
    }
}
