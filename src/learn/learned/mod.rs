//! The side file of a model, next to it or in the user's cache folder: its profile, thresholds,
//! and predictor.
//!
//! This module locates the file, checks that it belongs to the model, and replaces one section
//! while keeping the others. The modules `profile` and `predictor` define the contents of the
//! sections.
//!
//! The file is a GGUF container whose keys and tensors are prefixed with the name of their
//! [`Section`]. It identifies the model by a fingerprint that does not change when the model is
//! copied or moved, and has a checksum per section. It is written under a temporary name and
//! renamed.

mod lock;
mod save;

pub use lock::lock;
pub use save::{SaveError, SectionContents, check_writable, save, save_if, writable_path};

use std::path::{Path, PathBuf};

use hal::HostRows;

use gguf::{self, File, Hash, Metadata, TensorInfo, TensorType};

const ARCHITECTURE_KEY: &str = "general.architecture";
/// The architecture of a side file, which no model has, so that no program mistakes it for a model.
const ARCHITECTURE: &str = "thermocline.learned";
const VERSION_KEY: &str = "thermocline.learned.version";
const MODEL_KEY: &str = "thermocline.learned.model";
const FINGERPRINT_KEY: &str = "thermocline.learned.fingerprint";
/// Version of the file's layout. Sections have versions of their own.
const VERSION: u32 = 1;
/// Suffix of the file names.
pub const SUFFIX: &str = ".thermocline.gguf";
/// Prefix of the source of a profile, or of the recipe of a predictor, that was made automatically.
/// Commands may replace such a section.
pub const FIRST_USE: &str = "first use: ";

/// A section of the file, made and replaced independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// How often each neuron is active.
    Profile,
    /// Thresholds below which neurons are skipped.
    Thresholds,
    /// The predictor of active neurons.
    Predictor,
}

impl Section {
    /// Every section.
    pub const ALL: [Section; 3] = [Section::Profile, Section::Thresholds, Section::Predictor];

    /// Prefix of the section's keys and tensors, without the dot.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Section::Profile => "profile",
            Section::Thresholds => "thresholds",
            Section::Predictor => "predictor",
        }
    }

    /// Whether the key or tensor `name` belongs to the section.
    fn owns(self, name: &str) -> bool {
        name.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The full name of the section's key or tensor `name`.
    fn full_name(self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }

    fn sum_key(self) -> String {
        self.full_name("sum")
    }
}

/// Why a side file is not used.
#[derive(Debug, thiserror::Error)]
pub enum SideFileError {
    /// Not a container, or truncated.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The file of another user, which could make the model answer anything.
    #[error(
        "{file} belongs to user {owner}, who is neither you, nor root, nor the owner of the model"
    )]
    Owner {
        /// Path of the file.
        file: String,
        /// The owner's number.
        owner: u32,
    },
    /// A container that is not a side file.
    #[error("{file} is not a side file of a model: its architecture is `{found}`")]
    Foreign {
        /// Path of the file.
        file: String,
        /// Architecture that the file names.
        found: String,
    },
    /// Another version of the file's layout.
    #[error("{file} has side-file version {found}, expected {VERSION}")]
    Version {
        /// Path of the file.
        file: String,
        /// Version of the file.
        found: u32,
    },
    /// Made for another model, or the model has changed.
    #[error(
        "{file} was made for another model, or the model has changed since then (its model is `{model}` with fingerprint {found}, expected {expected})"
    )]
    Model {
        /// Path of the file.
        file: String,
        /// The model's name in the file.
        model: String,
        /// The fingerprint in the file.
        found: String,
        /// The model's fingerprint.
        expected: String,
    },
    /// The checksum does not match.
    #[error("{file} is damaged: the checksum of section `{section}` does not match")]
    Sum {
        /// Path of the file.
        file: String,
        /// The section.
        section: &'static str,
    },
    /// A required key or tensor is missing.
    #[error("{file}: `{name}` is missing, expected {expected}")]
    Missing {
        /// Path of the file.
        file: String,
        /// The key or tensor.
        name: String,
        /// The expected value.
        expected: String,
    },
    /// A key or tensor with an unexpected type, shape or value.
    #[error("{file}: `{name}` is {found}, expected {expected}")]
    Wrong {
        /// Path of the file.
        file: String,
        /// The key or tensor.
        name: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
}

/// An open side file.
#[derive(Debug)]
pub struct SideFile {
    file: File,
}

impl SideFile {
    /// Opens the file at `path` if it belongs to `model`.
    ///
    /// # Errors
    /// [`SideFileError`].
    pub fn open(path: &Path, model: &File) -> Result<SideFile, SideFileError> {
        let file = File::open(path)?;
        if let Some(owner) = file.foreign_owner(model) {
            return Err(SideFileError::Owner { file: file.name().to_owned(), owner });
        }
        SideFile::check(file, &model.fingerprint())
    }

    /// As [`SideFile::open`] for bytes in memory, for the model with this fingerprint.
    ///
    /// # Errors
    /// [`SideFileError`].
    pub fn from_vec(bytes: Vec<u8>, fingerprint: &str) -> Result<SideFile, SideFileError> {
        SideFile::check(File::from_vec(bytes, "bytes in memory")?, fingerprint)
    }

    /// The side file of `model` to use for `section`: the first of its [`places`] that has the
    /// section; `None` if no file has it. So a predictor next to the model and a profile in the
    /// cache are both used.
    ///
    /// # Errors
    /// [`SideFileError`] for the first existing file that is invalid, since it may have the
    /// section.
    pub fn find(
        model: &File,
        folder: Option<&Path>,
        section: Section,
    ) -> Result<Option<SideFile>, SideFileError> {
        for path in places(model, folder).into_iter().filter(|path| path.exists()) {
            let learned = SideFile::open(&path, model)?;
            if learned.has(section) {
                return Ok(Some(learned));
            }
        }
        Ok(None)
    }

    fn check(file: File, fingerprint: &str) -> Result<SideFile, SideFileError> {
        let (name, metadata) = (file.name().to_owned(), file.metadata());
        let what = metadata.str(ARCHITECTURE_KEY)?.unwrap_or("none");
        if what != ARCHITECTURE {
            return Err(SideFileError::Foreign { file: name, found: what.to_owned() });
        }
        let version = metadata.u32(VERSION_KEY)?.unwrap_or_default();
        if version != VERSION {
            return Err(SideFileError::Version { file: name, found: version });
        }
        let found = metadata.str(FINGERPRINT_KEY)?.unwrap_or("none");
        if found != fingerprint {
            return Err(SideFileError::Model {
                file: name,
                model: metadata.str(MODEL_KEY)?.unwrap_or("none").to_owned(),
                found: found.to_owned(),
                expected: fingerprint.to_owned(),
            });
        }
        match damaged_sections(&file)?.first() {
            Some(section) => Err(SideFileError::Sum { file: name, section: section.name() }),
            None => Ok(SideFile { file }),
        }
    }

    /// Path of the file, or the name given to bytes in memory.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Whether the file has the section.
    #[must_use]
    pub fn has(&self, section: Section) -> bool {
        self.file.metadata().get(&section.sum_key()).is_some()
    }

    /// All keys and values. Keys of a section are prefixed with its name and a dot.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.file.metadata()
    }

    /// The integer at the key `name` of a section.
    ///
    /// # Errors
    /// [`SideFileError::Missing`], or a value of another type.
    pub fn u64(&self, section: Section, name: &str) -> Result<u64, SideFileError> {
        let key = section.full_name(name);
        let value = self.metadata().u64(&key)?;
        value.ok_or_else(|| self.missing(key, "a number of 0 or more".into()))
    }

    /// The string at the key `name` of a section.
    ///
    /// # Errors
    /// [`SideFileError::Missing`], or a value that is not a string.
    pub fn text(&self, section: Section, name: &str) -> Result<&str, SideFileError> {
        let key = section.full_name(name);
        let value = self.metadata().str(&key)?;
        value.ok_or_else(|| self.missing(key, "a string".into()))
    }

    /// Whether a section has a tensor of this name.
    #[must_use]
    pub fn has_tensor(&self, section: Section, name: &str) -> bool {
        self.file.tensor(&section.full_name(name)).is_some()
    }

    /// The bytes of a section's tensor `name`, of this shape (row length first) and type, with any
    /// alignment.
    ///
    /// # Errors
    /// [`SideFileError::Missing`] and [`SideFileError::Wrong`].
    pub fn bytes(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
        ty: TensorType,
    ) -> Result<&[u8], SideFileError> {
        Ok(self.file.bytes(self.tensor(section, name, shape, ty)?)?)
    }

    /// As [`SideFile::bytes`], for 64-bit floats.
    ///
    /// # Errors
    /// As [`SideFile::bytes`].
    pub fn f64s(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
    ) -> Result<Vec<f64>, SideFileError> {
        let bytes = self.bytes(section, name, shape, TensorType::F64)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
    }

    /// As [`SideFile::bytes`], for 32-bit floats.
    ///
    /// # Errors
    /// As [`SideFile::bytes`].
    pub fn f32s(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
    ) -> Result<Vec<f32>, SideFileError> {
        let bytes = self.bytes(section, name, shape, TensorType::F32)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    /// As [`SideFile::bytes`], for 64-bit integers.
    ///
    /// # Errors
    /// As [`SideFile::bytes`].
    pub fn i64s(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
    ) -> Result<Vec<i64>, SideFileError> {
        let bytes = self.bytes(section, name, shape, TensorType::I64)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect())
    }

    /// As [`SideFile::bytes`], for 32-bit integers.
    ///
    /// # Errors
    /// As [`SideFile::bytes`].
    pub fn i32s(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
    ) -> Result<Vec<i32>, SideFileError> {
        let bytes = self.bytes(section, name, shape, TensorType::I32)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
    }

    /// A weight matrix of any format and size, whose bytes stay mapped from the file.
    ///
    /// # Errors
    /// [`SideFileError::Missing`]; [`SideFileError::Wrong`] for more than two axes and unsupported
    /// formats.
    pub fn matrix(&self, section: Section, name: &str) -> Result<HostRows, SideFileError> {
        let full = section.full_name(name);
        let Some(tensor) = self.file.tensor(&full) else {
            return Err(self.missing(full, "a matrix".into()));
        };
        let wrong = || self.wrong_tensor(tensor, "a matrix in a supported format".into());
        let format = tensor.ty.format().ok_or_else(wrong)?;
        let sizes = (usize::try_from(tensor.n_rows()), usize::try_from(tensor.row_len()));
        let (Ok(n_rows), Ok(n_cols)) = sizes else { return Err(wrong()) };
        if tensor.shape.len() > 2 {
            return Err(wrong());
        }
        let bytes = self.file.slice(tensor)?;
        let source = hal::Source::Mapped(std::sync::Arc::new(bytes));
        HostRows::new(source, n_rows, n_cols, format).map_err(|_| wrong())
    }

    fn tensor(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
        ty: TensorType,
    ) -> Result<&TensorInfo, SideFileError> {
        let full = section.full_name(name);
        let expected = || format!("{shape:?} of {ty}");
        match self.file.tensor(&full) {
            None => Err(self.missing(full, expected())),
            Some(tensor) if tensor.shape == shape && tensor.ty == ty => Ok(tensor),
            Some(tensor) => Err(self.wrong_tensor(tensor, expected())),
        }
    }

    fn missing(&self, name: String, expected: String) -> SideFileError {
        SideFileError::Missing { file: self.name().to_owned(), name, expected }
    }

    fn wrong_tensor(&self, tensor: &TensorInfo, expected: String) -> SideFileError {
        let found = format!("{:?} of {}", tensor.shape, tensor.ty);
        let (file, name) = (self.name().to_owned(), tensor.name.clone());
        SideFileError::Wrong { file, name, expected, found }
    }
}

/// Possible locations of the side file of `model`, best first: next to the model file, if the model
/// is in a file and has no overlay; then in `folder`, if given.
#[must_use]
pub fn places(model: &File, folder: Option<&Path>) -> Vec<PathBuf> {
    // The file next to the model belongs to the model without adapters.
    let beside = model.paths().first().filter(|_| model.overlay_bytes() == 0).map(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let stem = name.strip_suffix(".gguf").unwrap_or(&name);
        path.with_file_name(format!("{stem}{SUFFIX}"))
    });
    let in_folder = folder.map(|folder| {
        let path = model.paths().first();
        let stem = path.and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy());
        let stem = stem.unwrap_or("built-in".into());
        folder.join(format!("{stem}-{}{SUFFIX}", &model.fingerprint()[..8]))
    });
    beside.into_iter().chain(in_folder).collect()
}

fn has_section(file: &File, section: Section) -> bool {
    file.metadata().iter().any(|(key, _)| section.owns(key))
        || file.tensors().iter().any(|tensor| section.owns(&tensor.name))
}

fn damaged_sections(file: &File) -> Result<Vec<Section>, SideFileError> {
    let mut broken = Vec::new();
    for section in Section::ALL {
        let stored = file.metadata().u64(&section.sum_key())?;
        if stored != has_section(file, section).then(|| checksum(file, section)).transpose()? {
            broken.push(section);
        }
    }
    Ok(broken)
}

/// The checksum of a section: its keys except the checksum itself, and its tensors with their
/// bytes, in file order.
fn checksum(file: &File, section: Section) -> Result<u64, gguf::Error> {
    let mut hash = Hash::default();
    for (key, value) in file.metadata().iter().filter(|(key, _)| section.owns(key)) {
        if key != section.sum_key() {
            hash.add(key.as_bytes());
            hash.add(format!("{value:?}").as_bytes());
        }
    }
    for tensor in file.tensors().iter().filter(|tensor| section.owns(&tensor.name)) {
        hash.add(format!("{} {:?} {}", tensor.name, tensor.shape, tensor.ty).as_bytes());
        hash.add(file.bytes(tensor)?);
    }
    Ok(hash.finish())
}
