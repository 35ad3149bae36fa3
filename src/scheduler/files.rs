//! Writes files that only their owner may read, because saved sequences contain users' texts.

use std::fs::{self, DirBuilder};
use std::io::{self, Read, Write};
use std::path::Path;

use gguf::{PartFile, Problem};
use own_file::open_regular;

/// Creates a folder and its parents, accessible only to this user. An existing folder is not
/// changed.
pub(crate) fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Writes a file that only this user may read, such as the bytes of [`engine::Engine::save`]. The
/// file is written under a temporary name in the same folder and then renamed, so that a reader
/// never sees an incomplete file, also after a crash of the system.
///
/// # Errors
/// The system's I/O error.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let written = || {
        let mut file = PartFile::create_private(path)?;
        file.write_all(bytes).map_err(|reason| Problem::Io { action: "write", reason })?;
        file.commit()
    };
    written().map_err(|problem| {
        if let Problem::Io { reason, .. } = problem {
            reason
        } else {
            io::Error::other(problem.to_string())
        }
    })
}

/// Whether a saved sequence may be written to `path`: it is free, or a file that holds one.
#[must_use]
pub fn may_replace(path: &Path) -> bool {
    if fs::metadata(path).is_err() {
        return true;
    }
    let mut start = Vec::new();
    let mut read = || open_regular(path)?.take(16).read_to_end(&mut start);
    read().is_ok() && engine::is_saved_sequence(&start)
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
