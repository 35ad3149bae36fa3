//! Replaces a section of a model's side file and keeps the other sections, even if several
//! processes write at the same time.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::{fs, io};

use super::{
    ARCHITECTURE, ARCHITECTURE_KEY, FINGERPRINT_KEY, MODEL_KEY, Section, SideFile, SideFileError,
    VERSION, VERSION_KEY,
    lock::{WAIT, lock},
    places,
};
use gguf::{self, Container, File, Hash, TensorType, Value, Writer};

/// The contents of a section.
#[derive(Debug, Default)]
pub struct SectionContents {
    entries: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl SectionContents {
    /// Adds a key, named without the section.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.entries.push((name.to_owned(), value.into()));
    }

    /// Changes the value of a key, if it exists.
    pub fn replace(&mut self, name: &str, value: impl Into<Value>) {
        let value = value.into();
        if let Some((_, old)) = self.entries.iter_mut().find(|(key, _)| key == name) {
            *old = value;
        }
    }

    /// Adds a tensor, named without the section, of `shape` (row length first), with all its bytes.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: TensorType, bytes: Vec<u8>) {
        self.tensors.push((name.to_owned(), shape.to_vec(), ty, bytes));
    }

    /// [`SectionContents::tensor`] of 64-bit floats.
    pub fn f64s(&mut self, name: &str, shape: &[u64], values: &[f64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, TensorType::F64, bytes);
    }

    /// [`SectionContents::tensor`] of 32-bit floats.
    pub fn f32s(&mut self, name: &str, shape: &[u64], values: &[f32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, TensorType::F32, bytes);
    }

    /// [`SectionContents::tensor`] of 64-bit integers.
    pub fn i64s(&mut self, name: &str, shape: &[u64], values: &[i64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, TensorType::I64, bytes);
    }

    /// [`SectionContents::tensor`] of 32-bit integers.
    pub fn i32s(&mut self, name: &str, shape: &[u64], values: &[i32]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(name, shape, TensorType::I32, bytes);
    }
}

/// An error of saving. The file keeps its previous contents.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A file of this name exists and does not belong to this model; it is not overwritten.
    #[error("{0}")]
    OtherFile(#[from] SideFileError),
    /// The model is not in a file, and no cache folder is known.
    #[error("no folder to save to: the model is not in a file, and no cache folder is known")]
    NoFolder,
    /// The folder cannot be created.
    #[error("cannot create the folder {folder}: {reason}")]
    Folder {
        /// Path of the folder.
        folder: String,
        /// The I/O error.
        reason: io::Error,
    },
    /// The file cannot be locked against other writers.
    #[error("cannot lock {file}: {reason}")]
    Lock {
        /// Path of the file.
        file: String,
        /// The I/O error.
        reason: io::Error,
    },
    /// Another process keeps its lock.
    #[error("another process has locked the folder of {file} for more than {} s", WAIT.as_secs())]
    Busy {
        /// Path of the file.
        file: String,
    },
    /// Reading the old file or writing the new one failed.
    #[error(transparent)]
    File(#[from] gguf::Error),
}

/// Checks that a file can be created at `path`; creates its folder if necessary.
///
/// # Errors
/// [`SaveError`].
pub fn check_writable(path: &Path) -> Result<(), SaveError> {
    make_folder(path)?;
    Writer::new(Container::Gguf).create_own(path)?;
    Ok(())
}

fn make_folder(path: &Path) -> Result<(), SaveError> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => fs::create_dir_all(folder)
            .map_err(|reason| SaveError::Folder { folder: folder.display().to_string(), reason }),
        None => Ok(()),
    }
}

/// The location for the side file of `model`: next to it if that is writable, otherwise in
/// `folder`.
///
/// # Errors
/// [`SaveError`] of the last candidate.
pub fn writable_path(model: &File, folder: Option<&Path>) -> Result<PathBuf, SaveError> {
    let mut last = SaveError::NoFolder;
    for path in places(model, folder) {
        match check_writable(&path) {
            Ok(()) => return Ok(path),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Writes `contents` as the `section` of the side file at `path` for `model`, and keeps the other
/// sections. With `overwrite`, a file for another model or of another version is replaced, and
/// damaged sections are dropped. Processes that save sections at the same time wait for each other,
/// so no section is lost.
///
/// # Errors
/// [`SaveError`].
pub fn save(
    path: &Path,
    model: &File,
    section: Section,
    contents: &SectionContents,
    overwrite: bool,
) -> Result<(), SaveError> {
    let never = AtomicBool::new(false);
    save_if(path, model, section, contents, overwrite, &never, &|_| true).map(|_| ())
}

/// As [`save`], but keeps the section of an existing file if `may_replace` returns `false` for that
/// file: another process may have saved the section since it was read. Setting `interrupt` ends the
/// wait for other processes. Returns whether `contents` was saved.
///
/// # Errors
/// [`SaveError`].
pub fn save_if(
    path: &Path,
    model: &File,
    section: Section,
    contents: &SectionContents,
    overwrite: bool,
    interrupt: &AtomicBool,
    may_replace: &dyn Fn(&SideFile) -> bool,
) -> Result<bool, SaveError> {
    make_folder(path)?;
    let _lock = lock(path, interrupt)?;
    let old = Some(path).filter(|path| path.exists()).map(|path| SideFile::open(path, model));
    if let Some(Ok(old)) = old
        && old.has(section)
        && !may_replace(&old)
    {
        return Ok(false);
    }
    let kept = kept_sections(path, model, section, overwrite)?;
    let mut writer = Writer::new(Container::Gguf);
    writer.set(ARCHITECTURE_KEY, ARCHITECTURE)?;
    writer.set(VERSION_KEY, VERSION)?;
    let name = model.paths().first().and_then(|path| path.file_name());
    let name = name.map_or(model.name().into(), |name| name.to_string_lossy());
    writer.set(MODEL_KEY, &*name)?;
    writer.set(FINGERPRINT_KEY, model.fingerprint())?;
    if let Some(kept) = &kept {
        for (key, value) in kept.entries() {
            writer.set(key, value.clone())?;
        }
    }
    for (name, value) in &contents.entries {
        writer.set(&section.full_name(name), value.clone())?;
    }
    writer.set(&section.sum_key(), checksum(section, contents))?;
    if let Some(kept) = &kept {
        for tensor in kept.tensors() {
            writer.declare(&tensor.name, &tensor.shape, tensor.ty)?;
        }
    }
    for (name, shape, ty, _) in &contents.tensors {
        writer.declare(&section.full_name(name), shape, *ty)?;
    }
    let mut data = writer.create_own(path)?;
    if let Some(kept) = &kept {
        for tensor in kept.tensors() {
            data.write(&tensor.name, kept.file.bytes(tensor)?)?;
        }
    }
    for (name, _, _, bytes) in &contents.tensors {
        data.write(&section.full_name(name), bytes)?;
    }
    data.finish()?;
    Ok(true)
}

/// The contents of the file at `path` to keep when `section` is replaced. With `overwrite`, damaged
/// sections are dropped, and so is everything in a file for another model or of another version.
/// `None` if nothing is kept.
fn kept_sections(
    path: &Path,
    model: &File,
    section: Section,
    overwrite: bool,
) -> Result<Option<KeptSections>, SaveError> {
    if !path.exists() {
        return Ok(None);
    }
    let (file, mut dropped) = match SideFile::open(path, model) {
        Ok(old) => (old.file, Vec::new()),
        Err(SideFileError::Model { .. } | SideFileError::Version { .. }) if overwrite => {
            return Ok(None);
        }
        Err(SideFileError::Sum { .. }) if overwrite => {
            let file = File::open(path)?;
            let broken = super::damaged_sections(&file)?;
            (file, broken)
        }
        Err(error) => return Err(error.into()),
    };
    dropped.push(section);
    Ok(Some(KeptSections { file, dropped }))
}

/// The sections of `file` that are not listed in `dropped`.
struct KeptSections {
    file: File,
    dropped: Vec<Section>,
}

impl KeptSections {
    fn owns(&self, name: &str) -> bool {
        Section::ALL.iter().any(|section| !self.dropped.contains(section) && section.owns(name))
    }

    fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.file.metadata().iter().filter(|(key, _)| self.owns(key))
    }

    fn tensors(&self) -> impl Iterator<Item = &gguf::TensorInfo> {
        self.file.tensors().iter().filter(|tensor| self.owns(&tensor.name))
    }
}

/// The checksum of `contents`, equal to [`super::checksum`] of the written file.
fn checksum(section: Section, contents: &SectionContents) -> u64 {
    let mut hash = Hash::default();
    for (name, value) in &contents.entries {
        hash.add(section.full_name(name).as_bytes());
        hash.add(format!("{value:?}").as_bytes());
    }
    for (name, shape, ty, bytes) in &contents.tensors {
        hash.add(format!("{} {shape:?} {ty}", section.full_name(name)).as_bytes());
        hash.add(bytes);
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::Container;

    fn model(seed: u8) -> File {
        let mut writer = Writer::new(Container::Gguf);
        writer.declare("w", &[4], TensorType::I8).unwrap();
        let mut data = writer.in_memory().unwrap();
        data.write("w", &[seed; 4]).unwrap();
        File::from_vec(data.finish().unwrap(), "made").unwrap()
    }

    fn contents(n: i32) -> SectionContents {
        let mut contents = SectionContents::default();
        contents.set("tokens", n as u64);
        contents.i32s("blk.0.fires", &[3], &[n, 2, 3]);
        contents.f64s("blk.0.size", &[2], &[0.5, f64::from(n)]);
        contents
    }

    #[test]
    fn sections_are_replaced_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path().join("deeper/x.gguf"), model(1));
        save(&path, &model, Section::Profile, &contents(1), false).unwrap();
        save(&path, &model, Section::Predictor, &contents(7), false).unwrap();
        save(&path, &model, Section::Profile, &contents(5), false).unwrap();
        let learned = SideFile::open(&path, &model).unwrap();
        assert!(learned.has(Section::Profile) && !learned.has(Section::Thresholds));
        for (section, n) in [(Section::Profile, 5), (Section::Predictor, 7)] {
            assert_eq!(learned.u64(section, "tokens").unwrap(), n as u64);
            assert_eq!(learned.i32s(section, "blk.0.fires", &[3]).unwrap(), [n, 2, 3]);
            assert_eq!(learned.f64s(section, "blk.0.size", &[2]).unwrap(), [0.5, f64::from(n)]);
        }
        assert!(learned.i32s(Section::Profile, "blk.0.fires", &[4]).is_err());
        assert!(learned.f32s(Section::Profile, "blk.0.fires", &[3]).is_err());
        assert!(learned.u64(Section::Thresholds, "tokens").is_err());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other files");
    }

    #[test]
    fn sections_that_are_saved_at_once_are_all_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path().join("x.gguf"), model(1));
        std::thread::scope(|scope| {
            for section in Section::ALL {
                let (path, model) = (&path, &model);
                scope.spawn(move || {
                    for n in 1..=20 {
                        save(path, model, section, &contents(n), false).unwrap();
                        // The section that this thread saved is still present, although other
                        // threads saved theirs.
                        let learned = SideFile::open(path, model).unwrap();
                        assert_eq!(learned.u64(section, "tokens").unwrap(), n as u64);
                    }
                });
            }
        });
        let learned = SideFile::open(&path, &model).unwrap();
        assert!(Section::ALL.iter().all(|section| learned.has(*section)));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other files");
    }

    #[test]
    fn find_prefers_the_file_next_to_the_model() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("m.gguf");
        let mut writer = Writer::new(Container::Gguf);
        writer.declare("w", &[4], TensorType::I8).unwrap();
        let mut data = writer.create(&at).unwrap();
        data.write("w", &[1; 4]).unwrap();
        data.finish().unwrap();
        let model = File::open(&at).unwrap();
        let cache = folder.path().join("cache");
        let [beside, cached] = &places(&model, Some(&cache))[..] else { panic!("two paths") };
        let tokens = |section| {
            let found = SideFile::find(&model, Some(&cache), section).unwrap();
            found.map(|learned| learned.u64(section, "tokens").unwrap())
        };
        assert_eq!(tokens(Section::Profile), None);
        save(cached, &model, Section::Profile, &contents(1), false).unwrap();
        save(beside, &model, Section::Predictor, &contents(2), false).unwrap();
        assert_eq!((tokens(Section::Profile), tokens(Section::Predictor)), (Some(1), Some(2)));
        assert_eq!(tokens(Section::Thresholds), None);
        save(beside, &model, Section::Profile, &contents(3), false).unwrap();
        assert_eq!(tokens(Section::Profile), Some(3));
        fs::write(beside, "not ours").unwrap();
        SideFile::find(&model, Some(&cache), Section::Profile).unwrap_err();
    }

    #[test]
    fn a_file_of_another_model_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.gguf");
        save(&path, &model(1), Section::Profile, &contents(1), false).unwrap();
        let before = fs::read(&path).unwrap();
        let error = SideFile::open(&path, &model(2)).unwrap_err().to_string();
        assert!(error.contains("was made for another model"), "{error}");
        save(&path, &model(2), Section::Profile, &contents(2), false).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), before);
        save(&path, &model(2), Section::Profile, &contents(2), true).unwrap();
        SideFile::open(&path, &model(2)).unwrap();
        fs::write(&path, "not ours").unwrap();
        save(&path, &model(2), Section::Profile, &contents(2), true).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"not ours");
    }

    #[test]
    fn replacing_a_damaged_section_keeps_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path().join("x.gguf"), model(1));
        save(&path, &model, Section::Predictor, &contents(7), false).unwrap();
        save(&path, &model, Section::Profile, &contents(5), false).unwrap();
        let learned = SideFile::open(&path, &model).unwrap();
        let sizes = learned.f64s(Section::Profile, "blk.0.size", &[2]).unwrap();
        drop(learned);
        let mut bytes = fs::read(&path).unwrap();
        let size = sizes[1].to_le_bytes();
        let at = bytes.windows(8).position(|window| window == size).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let error = SideFile::open(&path, &model).unwrap_err();
        assert!(matches!(error, SideFileError::Sum { .. }), "{error}");
        save(&path, &model, Section::Profile, &contents(9), false).unwrap_err();
        save(&path, &model, Section::Profile, &contents(9), true).unwrap();
        let learned = SideFile::open(&path, &model).unwrap();
        for (section, n) in [(Section::Profile, 9), (Section::Predictor, 7)] {
            assert_eq!(learned.u64(section, "tokens").unwrap(), n);
        }
    }

    #[test]
    fn a_changed_byte_of_a_section_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let (path, model) = (folder.path().join("x.gguf"), model(1));
        save(&path, &model, Section::Profile, &contents(1), false).unwrap();
        let bytes = fs::read(&path).unwrap();
        let known = model.fingerprint();
        let original = SideFile::from_vec(bytes.clone(), &known).unwrap();
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 4;
            // The checksum does not cover padding and the model's name.
            if let Ok(read) = SideFile::from_vec(other, &known) {
                assert_eq!(read.has(Section::Profile), original.has(Section::Profile), "{at}");
                let fires = |file: &SideFile| file.i32s(Section::Profile, "blk.0.fires", &[3]).ok();
                let size = |file: &SideFile| file.f64s(Section::Profile, "blk.0.size", &[2]).ok();
                assert_eq!((fires(&read), size(&read)), (fires(&original), size(&original)));
            }
        }
        for end in 0..bytes.len() {
            // The padding of the last tensor may be missing.
            if let Ok(read) = SideFile::from_vec(bytes[..end].to_vec(), &known) {
                assert!(bytes.len() - end < 32 && bytes[end..].iter().all(|b| *b == 0), "{end}");
                assert!(read.has(Section::Profile), "{end} bytes");
            }
        }
    }
}
