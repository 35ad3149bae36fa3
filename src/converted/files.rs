//! The folder of such files: what is in it, what can go.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use hal::Bytes;

use super::MODEL_KEY;
use crate::gguf::File;

/// How names of such files end.
pub const SUFFIX: &str = ".thermocline";
/// How names of unfinished ones end.
const UNFINISHED: &str = ".thermocline.part";
/// Whoever still writes a file writes more often than that; one that was stopped for longer has to do without it.
const ABANDONED: Duration = Duration::from_secs(15 * 60);

/// One file of packs.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// The path of the model it was made from; `None` if it cannot be read.
    pub model: Option<String>,
}

impl Entry {
    /// Whether the model is not where it was, so that the file is of no use.
    #[must_use]
    pub fn is_orphan(&self) -> bool {
        self.model.as_ref().is_some_and(|model| !Path::new(model).exists())
    }
}

/// The files in `folder`, by name. A folder that is not there holds none.
///
/// # Errors
/// What the system says.
pub fn list(folder: &Path) -> io::Result<Vec<Entry>> {
    let paths = names(folder, &[SUFFIX])?;
    let entry = |path: PathBuf| {
        let size = Bytes(fs::metadata(&path).map_or(0, |file| file.len()));
        let file = File::open(&path).ok();
        let model =
            file.and_then(|f| f.metadata().str(MODEL_KEY).ok().flatten().map(str::to_owned));
        Entry { path, size, model }
    };
    Ok(paths.into_iter().map(entry).collect())
}

/// Removes all such files in `folder`, unfinished ones too, and nothing else. Gives what was freed.
///
/// # Errors
/// What the system says; files before the one it refuses are gone.
pub fn clear(folder: &Path) -> io::Result<Bytes> {
    let mut freed = Bytes(0);
    for path in names(folder, &[SUFFIX, UNFINISHED])? {
        let size = fs::metadata(&path).map(|file| Bytes(file.len()));
        match size.and_then(|size| fs::remove_file(&path).map(|()| size)) {
            Ok(size) => freed += size,
            // Another program has finished or removed it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(freed)
}

/// Removes what killed processes left unfinished.
pub(super) fn drop_leftovers(folder: &Path) {
    for path in names(folder, &[UNFINISHED]).unwrap_or_default() {
        let age = fs::metadata(&path).and_then(|file| file.modified()).map(|time| time.elapsed());
        if matches!(age, Ok(Ok(age)) if age > ABANDONED) {
            // It costs room, no more: whoever cannot remove it goes on.
            let _ = fs::remove_file(&path);
        }
    }
}

fn names(folder: &Path, ends: &[&str]) -> io::Result<Vec<PathBuf>> {
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
