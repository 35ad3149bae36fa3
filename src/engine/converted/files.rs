//! Lists and removes the files of the repack cache.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use hal::Bytes;
use own_file::open_regular;

use super::MODEL_KEY;
use gguf::File;

/// Suffix of finished files.
pub const SUFFIX: &str = ".thermocline";
/// First bytes of every finished file.
const MAGIC: &[u8; 4] = b"GGUF";

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

/// The finished repack files in `folder`, sorted by path. A missing folder counts as empty. Other
/// files that have the suffix are not listed.
///
/// # Errors
/// The system's error.
pub fn list(folder: &Path) -> io::Result<Vec<Entry>> {
    let paths = find_files(folder, is_finished)?;
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
    for path in find_files(folder, |path| is_finished(path) || is_unfinished(path))? {
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

/// Whether `path` has the name and the first bytes of a repack file; it may be damaged.
fn is_finished(path: &Path) -> bool {
    let named = path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(SUFFIX));
    let mut start = [0; MAGIC.len()];
    named
        && open_regular(path).and_then(|mut file| file.read_exact(&mut start)).is_ok()
        && start == *MAGIC
}

/// Whether a process gave `path` its name while it wrote a repack file.
fn is_unfinished(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    gguf::writer_of(&name).is_some_and(|(_, target)| target.ends_with(SUFFIX))
}

fn find_files(folder: &Path, ours: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_file() && ours(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
