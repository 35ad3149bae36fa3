//! The side file of a model, next to it or in the user's cache folder: its profile, thresholds,
//! and predictor.
//!
//! Here: the location of the file, whether it belongs to the model, replacing a section while
//! keeping the others. Not here: the meaning of the sections (`profile`, `predictor`).
//!
//! The file is a GGUF container whose keys and tensors are prefixed with the name of their
//! [`Section`]. It identifies the model by a fingerprint that does not change when the model is
//! copied or moved, and has a checksum per section. It is written under a temporary name and
//! renamed.

mod save;

pub use save::{Contents, SaveError, check_place, lock, place, save, save_if};

use std::path::{Path, PathBuf};

use hal::HostRows;

use gguf::{self, File, Hash, Metadata, TensorInfo, TensorType};

const ARCHITECTURE_KEY: &str = "general.architecture";
/// The architecture of such a file, so that it is not taken for a model.
const ARCHITECTURE: &str = "thermocline.learned";
const VERSION_KEY: &str = "thermocline.learned.version";
const MODEL_KEY: &str = "thermocline.learned.model";
const FINGERPRINT_KEY: &str = "thermocline.learned.fingerprint";
/// Version of the file's layout; sections have their own.
const VERSION: u32 = 1;
/// Suffix of the file names.
pub const SUFFIX: &str = ".thermocline.gguf";
/// Prefix of a profile's source and a predictor's recipe that were made automatically: a command
/// may replace them.
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

    /// Prefix of its keys and tensors, without the dot.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Section::Profile => "profile",
            Section::Thresholds => "thresholds",
            Section::Predictor => "predictor",
        }
    }

    /// Whether a key or a tensor belongs to it.
    fn owns(self, name: &str) -> bool {
        name.strip_prefix(self.name()).is_some_and(|rest| rest.starts_with('.'))
    }

    /// The full name of its key or tensor `name`.
    fn full(self, name: &str) -> String {
        format!("{}.{name}", self.name())
    }

    fn sum_key(self) -> String {
        self.full("sum")
    }
}

/// Why a side file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Not a container, or truncated.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// Another kind of container.
    #[error("{file}: is not a side file of a model, but has architecture `{found}`")]
    Foreign {
        /// Its path.
        file: String,
        /// Its architecture.
        found: String,
    },
    /// Written by another version of this program.
    #[error("{file}: has version {found}, expected {VERSION}")]
    Version {
        /// Its path.
        file: String,
        /// Its version.
        found: u32,
    },
    /// Made for another model, or the model has changed.
    #[error(
        "{file}: was made for another model, or the model has changed since (it names `{model}`, fingerprint {found}, expected {expected})"
    )]
    Model {
        /// Its path.
        file: String,
        /// The model's name in the file.
        model: String,
        /// The fingerprint in the file.
        found: String,
        /// The model's fingerprint.
        expected: String,
    },
    /// The checksum does not match.
    #[error("{file}: is damaged: wrong checksum of its section `{section}`")]
    Sum {
        /// Its path.
        file: String,
        /// The section.
        section: &'static str,
    },
    /// A required key or tensor is missing.
    #[error("{file}: lacks `{name}`, expected {expected}")]
    Missing {
        /// Its path.
        file: String,
        /// The key or tensor.
        name: String,
        /// The expected value.
        expected: String,
    },
    /// A key or tensor of the wrong type.
    #[error("{file}: `{name}` is {found}, expected {expected}")]
    Wrong {
        /// Its path.
        file: String,
        /// The key or tensor.
        name: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        found: String,
    },
}

/// The side file of a model, open.
#[derive(Debug)]
pub struct Learned {
    file: File,
}

impl Learned {
    /// Opens the file at `path` if it belongs to `model`.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn open(path: &Path, model: &File) -> Result<Learned, Refused> {
        Learned::check(File::open(path)?, &model.fingerprint())
    }

    /// As [`Learned::open`] for bytes in memory, for the model with this fingerprint.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn from_vec(bytes: Vec<u8>, fingerprint: &str) -> Result<Learned, Refused> {
        Learned::check(File::from_vec(bytes, "bytes in memory")?, fingerprint)
    }

    /// The side file of `model` to use for `section`: the first of its [`places`] that has the
    /// section; `None` if there is none. So a predictor next to the model and a profile in the
    /// cache are both used.
    ///
    /// # Errors
    /// [`Refused`] for the first existing file that is invalid, since it may have the section.
    pub fn find(
        model: &File,
        folder: Option<&Path>,
        section: Section,
    ) -> Result<Option<Learned>, Refused> {
        for path in places(model, folder).into_iter().filter(|path| path.exists()) {
            let learned = Learned::open(&path, model)?;
            if learned.has(section) {
                return Ok(Some(learned));
            }
        }
        Ok(None)
    }

    fn check(file: File, fingerprint: &str) -> Result<Learned, Refused> {
        let (name, metadata) = (file.name().to_owned(), file.metadata());
        let what = metadata.str(ARCHITECTURE_KEY)?.unwrap_or("nothing known");
        if what != ARCHITECTURE {
            return Err(Refused::Foreign { file: name, found: what.to_owned() });
        }
        let version = metadata.u32(VERSION_KEY)?.unwrap_or_default();
        if version != VERSION {
            return Err(Refused::Version { file: name, found: version });
        }
        let found = metadata.str(FINGERPRINT_KEY)?.unwrap_or("none");
        if found != fingerprint {
            return Err(Refused::Model {
                file: name,
                model: metadata.str(MODEL_KEY)?.unwrap_or("no model").to_owned(),
                found: found.to_owned(),
                expected: fingerprint.to_owned(),
            });
        }
        match broken(&file)?.first() {
            Some(section) => Err(Refused::Sum { file: name, section: section.name() }),
            None => Ok(Learned { file }),
        }
    }

    /// Its path, or the name given to bytes in memory.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name()
    }

    /// Whether it has the section.
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
    /// [`Refused::Missing`], or a value of another type.
    pub fn u64(&self, section: Section, name: &str) -> Result<u64, Refused> {
        let key = section.full(name);
        let value = self.metadata().u64(&key)?;
        value.ok_or_else(|| self.missing(key, "a number of 0 or more".into()))
    }

    /// The string at the key `name` of a section.
    ///
    /// # Errors
    /// [`Refused::Missing`], or a value that is not a string.
    pub fn text(&self, section: Section, name: &str) -> Result<&str, Refused> {
        let key = section.full(name);
        let value = self.metadata().str(&key)?;
        value.ok_or_else(|| self.missing(key, "a text".into()))
    }

    /// Whether a section has a tensor of this name.
    #[must_use]
    pub fn has_tensor(&self, section: Section, name: &str) -> bool {
        self.file.tensor(&section.full(name)).is_some()
    }

    /// The bytes of a section's tensor `name`, of this shape (row length first) and type, with any
    /// alignment.
    ///
    /// # Errors
    /// [`Refused::Missing`] and [`Refused::Wrong`].
    pub fn bytes(
        &self,
        section: Section,
        name: &str,
        shape: &[u64],
        ty: TensorType,
    ) -> Result<&[u8], Refused> {
        Ok(self.file.bytes(self.tensor(section, name, shape, ty)?)?)
    }

    /// 64-bit floats, as [`Learned::bytes`].
    ///
    /// # Errors
    /// As [`Learned::bytes`].
    pub fn f64s(&self, section: Section, name: &str, shape: &[u64]) -> Result<Vec<f64>, Refused> {
        let bytes = self.bytes(section, name, shape, TensorType::F64)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect())
    }

    /// 32-bit floats, as [`Learned::bytes`].
    ///
    /// # Errors
    /// As [`Learned::bytes`].
    pub fn f32s(&self, section: Section, name: &str, shape: &[u64]) -> Result<Vec<f32>, Refused> {
        let bytes = self.bytes(section, name, shape, TensorType::F32)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
    }

    /// 64-bit integers, as [`Learned::bytes`].
    ///
    /// # Errors
    /// As [`Learned::bytes`].
    pub fn i64s(&self, section: Section, name: &str, shape: &[u64]) -> Result<Vec<i64>, Refused> {
        let bytes = self.bytes(section, name, shape, TensorType::I64)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| i64::from_le_bytes(bytes)).collect())
    }

    /// 32-bit integers, as [`Learned::bytes`].
    ///
    /// # Errors
    /// As [`Learned::bytes`].
    pub fn i32s(&self, section: Section, name: &str, shape: &[u64]) -> Result<Vec<i32>, Refused> {
        let bytes = self.bytes(section, name, shape, TensorType::I32)?;
        Ok(bytes.as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect())
    }

    /// A weight matrix of any format and size, used in place in the file.
    ///
    /// # Errors
    /// [`Refused::Missing`]; [`Refused::Wrong`] for more than two axes and unsupported formats.
    pub fn matrix(&self, section: Section, name: &str) -> Result<HostRows, Refused> {
        let full = section.full(name);
        let Some(tensor) = self.file.tensor(&full) else {
            return Err(self.missing(full, "a matrix".into()));
        };
        let wrong = || self.wrong(tensor, "a matrix in a supported format".into());
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
    ) -> Result<&TensorInfo, Refused> {
        let full = section.full(name);
        let expected = || format!("{shape:?} of {ty}");
        match self.file.tensor(&full) {
            None => Err(self.missing(full, expected())),
            Some(tensor) if tensor.shape == shape && tensor.ty == ty => Ok(tensor),
            Some(tensor) => Err(self.wrong(tensor, expected())),
        }
    }

    fn missing(&self, name: String, expected: String) -> Refused {
        Refused::Missing { file: self.name().to_owned(), name, expected }
    }

    fn wrong(&self, tensor: &TensorInfo, expected: String) -> Refused {
        let found = format!("{:?} of {}", tensor.shape, tensor.ty);
        let (file, name) = (self.name().to_owned(), tensor.name.clone());
        Refused::Wrong { file, name, expected, found }
    }
}

/// Possible locations of the side file of `model`, best first: next to it, if it is in a file; in
/// `folder`.
#[must_use]
pub fn places(model: &File, folder: Option<&Path>) -> Vec<PathBuf> {
    let beside = model.paths().first().map(|path| {
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

fn present(file: &File, section: Section) -> bool {
    file.metadata().iter().any(|(key, _)| section.owns(key))
        || file.tensors().iter().any(|tensor| section.owns(&tensor.name))
}

/// The sections with wrong checksums.
fn broken(file: &File) -> Result<Vec<Section>, Refused> {
    let mut broken = Vec::new();
    for section in Section::ALL {
        let stored = file.metadata().u64(&section.sum_key())?;
        if stored != present(file, section).then(|| sum(file, section)).transpose()? {
            broken.push(section);
        }
    }
    Ok(broken)
}

/// The checksum of a section: its keys except the checksum itself, and its tensors with their
/// bytes, in file order.
fn sum(file: &File, section: Section) -> Result<u64, gguf::Error> {
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
