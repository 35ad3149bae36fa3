//! Lists and removes the files of the repack cache.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use hal::Bytes;

use super::MODEL_KEY;
use gguf::File;

/// Suffix of finished files.
pub const SUFFIX: &str = ".thermocline";
/// Suffix of unfinished files.
const UNFINISHED: &str = ".thermocline.part";
/// A process that is still writing updates its file more often than this. An older unfinished file
/// counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(15 * 60);

/// A file of the repack cache.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file in bytes.
    pub size: Bytes,
    /// Path of the model that the file was made from; `None` if the file cannot be read or names no
    /// model.
    pub model: Option<String>,
}

impl Entry {
    /// Whether the model no longer exists at its path, so that the repack file is useless; `false`
    /// if the path is unknown.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.model.as_ref().is_some_and(|model| !Path::new(model).exists())
    }
}

/// The finished repack files in `folder`, sorted by path. A missing folder counts as empty.
///
/// # Errors
/// The system's error.
pub fn list(folder: &Path) -> io::Result<Vec<Entry>> {
    let paths = find_files(folder, &[SUFFIX])?;
    let entry = |path: PathBuf| {
        let size = Bytes(fs::metadata(&path).map_or(0, |file| file.len()));
        let file = File::open(&path).ok();
        let model =
            file.and_then(|f| f.metadata().str(MODEL_KEY).ok().flatten().map(str::to_owned));
        Entry { path, size, model }
    };
    Ok(paths.into_iter().map(entry).collect())
}

/// Removes all repack files in `folder`, including unfinished ones, and nothing else. Returns the
/// bytes freed.
///
/// # Errors
/// The system's error; files before the failing one are already removed.
pub fn clear(folder: &Path) -> io::Result<Bytes> {
    let mut freed = Bytes(0);
    for path in find_files(folder, &[SUFFIX, UNFINISHED])? {
        let size = fs::metadata(&path).map(|file| Bytes(file.len()));
        match size.and_then(|size| fs::remove_file(&path).map(|()| size)) {
            Ok(size) => freed += size,
            // Another program has renamed or removed the file in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(freed)
}

/// Removes unfinished files that count as [`ABANDONED`], left by killed processes.
pub(super) fn drop_leftovers(folder: &Path) {
    for path in find_files(folder, &[UNFINISHED]).unwrap_or_default() {
        let age = fs::metadata(&path).and_then(|file| file.modified()).map(|time| time.elapsed());
        if matches!(age, Ok(Ok(age)) if age > ABANDONED) {
            // A leftover only costs disk space, so a failure is ignored.
            let _ = fs::remove_file(&path);
        }
    }
}

fn find_files(folder: &Path, ends: &[&str]) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_file() && ends.iter().any(|end| name.ends_with(end)) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}
