//! Writes files that only their owner may read, because saved sequences contain users' texts.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::path::Path;

/// Creates a folder and its parents, accessible only to this user. An existing folder is not
/// changed.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Suffix of files that are still being written.
pub(crate) const UNFINISHED: &str = ".unfinished";

/// Writes a file that only this user may read, such as the bytes of [`engine::Engine::save`]. The
/// file is written under a temporary name in the same folder and then renamed, so that a reader
/// never sees an incomplete file.
///
/// # Errors
/// The system's I/O error.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{:016x}{UNFINISHED}", RandomState::new().hash_one(0)));
    let temporary = path.with_file_name(name);
    let written = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // Report the first error and ignore errors of the cleanup.
        drop(fs::remove_file(&temporary));
    }
    written
}

/// Whether a saved sequence may be written to `path`: it is free, or a file that holds one.
#[must_use]
pub fn may_replace(path: &Path) -> bool {
    let Ok(found) = fs::metadata(path) else { return true };
    let mut start = Vec::new();
    let mut read = || File::open(path)?.take(16).read_to_end(&mut start);
    found.is_file() && read().is_ok() && engine::is_saved_sequence(&start)
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    file.write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_private_and_complete() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        make_folder(&inner).unwrap();
        let path = inner.join("file");
        write_private(&path, b"first").unwrap();
        write_private(&path, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(fs::read_dir(&inner).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(&inner)), (0o600, 0o700));
        }
        assert!(write_private(&folder.path().join("gone/file"), b"x").is_err());
    }
}
