//! Reads small files whole: settings, vocabularies, templates.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use super::Error;

/// The bytes of the regular file at `path`, which may have at most `limit` bytes.
///
/// # Errors
/// A path that is not a regular file (reading a pipe or device may never end, so it is not
/// opened), a file longer than `limit`, an I/O error.
pub(super) fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let file = || path.display().to_string();
    let io_error = |action| move |reason| Error::Io { file: file(), action, reason };
    if !fs::metadata(path).map_err(io_error("open"))?.is_file() {
        return Err(Error::NotAFile { file: file() });
    }
    let source = File::open(path).map_err(io_error("open"))?;
    let found = source.metadata().map_err(io_error("open"))?.len();
    if found > limit {
        return Err(Error::TooLarge { file: file(), found, limit });
    }
    // Some system files report length 0 and never end.
    let mut bytes = Vec::new();
    source.take(limit + 1).read_to_end(&mut bytes).map_err(io_error("read"))?;
    match bytes.len() as u64 {
        found if found > limit => Err(Error::TooLarge { file: file(), found, limit }),
        _ => Ok(bytes),
    }
}

/// As [`read_limited`], as text; `None` if the file does not exist.
///
/// # Errors
/// As [`read_limited`], and bytes that are not UTF-8.
pub(super) fn text_if_present(path: &Path, limit: u64) -> Result<Option<String>, Error> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Ok(_) | Err(_) => text_limited(path, limit).map(Some),
    }
}

/// As [`read_limited`], as text.
///
/// # Errors
/// As [`read_limited`], and bytes that are not UTF-8.
pub(super) fn text_limited(path: &Path, limit: u64) -> Result<String, Error> {
    String::from_utf8(read_limited(path, limit)?).map_err(|reason| Error::Io {
        file: path.display().to_string(),
        action: "read",
        reason: io::Error::new(io::ErrorKind::InvalidData, reason.utf8_error()),
    })
}
