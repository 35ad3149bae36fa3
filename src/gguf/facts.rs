//! What the system says of a file, to see whether another program wrote to it.

use std::time::SystemTime;
use std::{fs, io};

use own_file::identity;

/// What the system said of a file at one moment.
#[derive(Clone, Copy, Debug)]
pub struct FileFacts {
    size: u64,
    modified: Option<SystemTime>,
    /// Device and number of the file.
    identity: Option<(u64, u64)>,
    status: Option<Status>,
}

/// When a file's bytes or status changed last, which no program can set, and the parts of its
/// status that change without its bytes.
#[derive(Clone, Copy, Debug)]
struct Status {
    /// Seconds and nanoseconds.
    changed: (i64, i64),
    n_links: u64,
    mode: u32,
    owner: (u32, u32),
}

impl FileFacts {
    /// The facts of an open file.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(file: &fs::File) -> io::Result<FileFacts> {
        let found = file.metadata()?;
        Ok(FileFacts {
            size: found.len(),
            modified: found.modified().ok(),
            identity: identity(file),
            status: Status::new(&found),
        })
    }

    /// Device and number of the file; `None` where the file system has none.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Bytes of the file.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether `now` are facts of the same file, to which no process has written since. Links to the
    /// file may have come or gone, and its mode and owner may have changed. Windows
    /// says only the size and the time of the last write, which a program can set.
    #[must_use]
    pub fn is_unchanged(&self, now: &FileFacts) -> bool {
        let bytes = |facts: &FileFacts| (facts.identity, facts.size, facts.modified);
        let status = self.status.zip(now.status);
        bytes(self) == bytes(now) && status.is_none_or(|(before, now)| before.explains(&now))
    }
}

impl Status {
    fn new(file: &fs::Metadata) -> Option<Status> {
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            Some(Status {
                changed: (file.ctime(), file.ctime_nsec()),
                n_links: file.nlink(),
                mode: file.mode(),
                owner: (file.uid(), file.gid()),
            })
        }
        #[cfg(not(unix))]
        {
            let _ = file;
            None
        }
    }

    /// Whether the status did not change, or for a reason other than a write.
    fn explains(&self, now: &Status) -> bool {
        let others = |status: &Status| (status.n_links, status.mode, status.owner);
        self.changed == now.changed || others(self) != others(now)
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::{Bytes, Problem};
    use std::os::unix::fs::PermissionsExt;

    /// A file whose facts are older than the clock of the file system is fine.
    fn file(name: &str) -> std::path::PathBuf {
        let name = format!("thermocline-facts-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, [1; 5000]).expect("a temporary file");
        std::thread::sleep(std::time::Duration::from_millis(20));
        path
    }

    #[test]
    fn a_write_is_seen_even_if_size_and_time_stay() {
        let path = file("written");
        let mapped = Bytes::open(&path).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        mapped.check_unchanged().unwrap();
        fs::write(&path, [2; 5000]).unwrap();
        let is_seen = || {
            let error = mapped.check_unchanged().unwrap_err();
            matches!(error.problem(), Problem::SourceChanged)
        };
        assert!(is_seen());
        let written = fs::File::options().write(true).open(&path).unwrap();
        written.set_modified(modified).unwrap();
        assert!(is_seen());
        written.set_len(4000).unwrap();
        let error = mapped.check_unchanged().unwrap_err();
        assert!(matches!(error.problem(), Problem::SourceLost), "{error}");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn reads_links_and_modes_change_nothing() {
        let path = file("kept");
        let mapped = Bytes::open(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), [1; 5000]);
        mapped.check_unchanged().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        mapped.check_unchanged().unwrap();
        // Another file gets the name, and this one has none: its bytes stay.
        fs::rename(file("other"), &path).unwrap();
        mapped.check_unchanged().unwrap();
        assert_eq!(mapped[..], [1; 5000]);
        fs::remove_file(&path).unwrap();
    }
}
