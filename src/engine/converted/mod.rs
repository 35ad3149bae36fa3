//! The repack cache: weights repacked once in a device's own layout and kept in a file that is
//! memory-mapped from then on.
//!
//! This module names the file of a model, checks whether it is valid, and writes it. `load/`
//! selects the weights, the device packs them, and the command chooses the folder.
//!
//! The file is a GGUF container with one byte tensor per pack. It is valid if it lists the same
//! packs in the same layouts, has the fingerprint of this model, and every pack matches its
//! checksum. The device also validates the contents when it adopts them, since a checksum can be
//! forged. An invalid file is written again. Files are written under a temporary name, so that two
//! processes can write at the same time.

mod files;
mod fingerprint;
mod write;

pub use files::{Entry, SUFFIX, clear, list};
pub use write::{WriteError, write};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hal::{Bytes, HostRows, PackDesc, SharedBytes, StoredPack};

use fingerprint::{checksum, fingerprint};
use gguf::{self, File, Hash, Metadata};

const VERSION_KEY: &str = "thermocline.converted.version";
const MODEL_KEY: &str = "thermocline.converted.model";
const FINGERPRINT_KEY: &str = "thermocline.converted.fingerprint";
const PACKS_KEY: &str = "thermocline.converted.packs";
/// Version of this file format, not of the packs in it.
const VERSION: u32 = 2;
/// Name of the tensor with one checksum per pack.
const SUMS: &str = "sums";

/// A weight that a device stores in its own layout.
#[derive(Clone, Debug)]
pub struct Weight {
    /// Label of the weight in the engine.
    pub label: String,
    /// The rows and columns that are packed.
    pub pack: PackDesc,
    /// The matrix in the model file.
    pub source: HostRows,
    /// Layout and size on the device.
    pub stored: StoredPack,
}

impl Weight {
    /// Bytes of the matrix in the model file.
    #[must_use]
    pub fn source_size(&self) -> Bytes {
        self.source.desc().bytes().unwrap_or_default()
    }

    /// Text with the label, the selection, the source's shape, the orientation, the layout and the
    /// size of the pack.
    fn description(&self) -> String {
        let Weight { label, pack, stored, .. } = self;
        let (source, kind) = (pack.source, if pack.transpose { "transposed" } else { "in rows" });
        let selected = match &pack.select {
            hal::Select::All => "all".to_owned(),
            hal::Select::Rows(list) | hal::Select::ColumnBlocks(list) => format!("{list:?}"),
        };
        format!("{label}: {selected} of {source}, {kind}, {}, {} bytes", stored.layout, stored.len)
    }
}

/// Bytes of all packs.
#[must_use]
pub fn size(weights: &[Weight]) -> Bytes {
    weights.iter().map(|weight| Bytes(weight.stored.len as u64)).sum()
}

/// Path of the file in `folder` for these weights of `model`; `None` for a model that was not read
/// from a file.
///
/// The name depends on the model's path and overlays and on the packs, not on the model's contents,
/// so that the file of a changed model is replaced.
#[must_use]
pub fn path(folder: &Path, model: &File, weights: &[Weight]) -> Option<PathBuf> {
    let first = model.paths().first()?;
    let full = full_path(first);
    let mut hash = Hash::default();
    hash.add(full.as_os_str().as_encoded_bytes());
    model.overlay_headers().for_each(|header| hash.add(header));
    weights.iter().for_each(|weight| hash.add(weight.description().as_bytes()));
    let stem = first.file_stem()?.to_string_lossy().into_owned();
    Some(folder.join(format!("{stem}-{:08x}{SUFFIX}", hash.finish() as u32)))
}

/// The canonical path, or the path as given if the system cannot resolve it.
fn full_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// An open file of the repack cache.
#[derive(Debug)]
pub struct RepackFile {
    file: File,
    /// Labels, packs and layouts in the order of the file's tensors.
    weights: Vec<(String, PackDesc, StoredPack)>,
}

/// Why a file of repacked weights is not used.
#[derive(Debug, thiserror::Error)]
pub enum StaleFile {
    /// The file does not exist.
    #[error("the file does not exist")]
    Absent,
    /// The file cannot be read, is truncated, or is not a valid GGUF container.
    #[error("the file is damaged: {0}")]
    Damaged(#[from] gguf::Error),
    /// The file of another user, which could make the model answer anything.
    #[error("it belongs to user {owner}, who is neither you, nor root, nor the owner of the model")]
    Owner {
        /// The owner's number.
        owner: u32,
    },
    /// The file has another format version or other packs.
    #[error("the file was written by another version or with other options")]
    Other,
    /// The file was made from another model.
    #[error("the model has changed since the file was written")]
    Model,
    /// The bytes of a pack do not match its checksum.
    #[error("the file is damaged: the checksum of `{label}` does not match")]
    Sum {
        /// Label of the pack.
        label: String,
    },
}

impl RepackFile {
    /// Opens the file at `path` if it holds exactly `weights` of `model`.
    ///
    /// # Errors
    /// [`StaleFile`] if the file must be written again.
    pub fn open(
        path: &Path,
        model: &File,
        weights: &[Weight],
    ) -> Result<Arc<RepackFile>, StaleFile> {
        if !path.exists() {
            return Err(StaleFile::Absent);
        }
        let file = File::open(path)?;
        if let Some(owner) = file.foreign_owner(model) {
            return Err(StaleFile::Owner { owner });
        }
        check_header(file.metadata(), model, weights)?;
        let sums = file.tensor(SUMS).ok_or(StaleFile::Other)?;
        let sums = file.bytes(sums)?.as_chunks::<8>().0;
        if sums.len() != weights.len() || file.tensors().len() != weights.len() + 1 {
            return Err(StaleFile::Other);
        }
        file.fetch();
        for (weight, &expected) in weights.iter().zip(sums) {
            let tensor = file.tensor(&weight.label).ok_or(StaleFile::Other)?;
            if tensor.n_bytes() != weight.stored.len as u64 {
                return Err(StaleFile::Other);
            }
            if checksum(file.bytes(tensor)?) != u64::from_le_bytes(expected) {
                return Err(StaleFile::Sum { label: weight.label.clone() });
            }
        }
        let known = weights.iter().map(|w| (w.label.clone(), w.pack.clone(), w.stored));
        Ok(Arc::new(RepackFile { weights: known.collect(), file }))
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// The bytes of the pack labelled `label`; `None` if the file has no such pack in this layout.
    #[must_use]
    pub fn find(&self, label: &str, pack: &PackDesc, stored: StoredPack) -> Option<SharedBytes> {
        let same = |(name, desc, layout): &&(String, PackDesc, StoredPack)| {
            name == label && desc == pack && *layout == stored
        };
        self.weights.iter().find(same)?;
        let bytes = self.file.slice(self.file.tensor(label)?).ok()?;
        Some(Arc::new(bytes))
    }
}

fn check_header(metadata: &Metadata, model: &File, weights: &[Weight]) -> Result<(), StaleFile> {
    let packs = metadata.str_array(PACKS_KEY)?.ok_or(StaleFile::Other)?;
    let same = packs.len() == weights.len()
        && packs.iter().zip(weights).all(|(found, w)| found == w.description().as_bytes());
    if metadata.u32(VERSION_KEY)? != Some(VERSION) || !same {
        return Err(StaleFile::Other);
    }
    if metadata.str(FINGERPRINT_KEY)? == Some(&fingerprint(model, weights)) {
        Ok(())
    } else {
        Err(StaleFile::Model)
    }
}
