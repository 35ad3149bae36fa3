//! Weights in a device's own layout, made once and kept in a file that is mapped from then on.
//!
//! Here: which file belongs to which model, whether it can be believed, and how it is written. Not here: what the
//! packed bytes are (the device makes them), which weights are packed (`engine`), where the folder is (`cli`).
//!
//! The file is a GGUF container with one tensor of bytes per pack. It is believed if it names the same packs in the
//! same layouts, was made from this very model (its fingerprint) and every pack has the sum it had. The device looks at what
//! the bytes point to, too, when it adopts them: a sum can be forged.
//! Anything else is made anew. It comes into being under another name, so that two processes at once do no harm.

mod files;
mod fingerprint;
mod write;

pub use files::{Entry, SUFFIX, clear, list};
pub use write::{WriteError, write};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hal::{Bytes, HostRows, PackDesc, SharedBytes, StoredPack};

use crate::gguf::{self, File, Hash, Metadata};
use fingerprint::{fingerprint, sum};

const VERSION_KEY: &str = "thermocline.converted.version";
const MODEL_KEY: &str = "thermocline.converted.model";
const FINGERPRINT_KEY: &str = "thermocline.converted.fingerprint";
const PACKS_KEY: &str = "thermocline.converted.packs";
/// Version of this file, not of what the packs hold.
const VERSION: u32 = 2;
/// The tensor with a sum per pack.
const SUMS: &str = "sums";

/// A weight that a device keeps in a layout of its own.
#[derive(Clone, Debug)]
pub struct Weight {
    /// What the engine calls it.
    pub label: String,
    /// What is taken of the matrix.
    pub pack: PackDesc,
    /// The matrix in the model file.
    pub source: HostRows,
    /// The layout and size that the device gives it.
    pub stored: StoredPack,
}

impl Weight {
    /// Bytes of the matrix in the model file.
    #[must_use]
    pub fn source_size(&self) -> Bytes {
        self.source.desc().bytes().unwrap_or_default()
    }

    /// All that must be the same for packed bytes to be the same.
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

/// The file in `folder` for these weights of `model`; `None` for a model that is not in a file itself.
///
/// A changed model at the same path has the same name for it, so that old files are replaced.
#[must_use]
pub fn path(folder: &Path, model: &File, weights: &[Weight]) -> Option<PathBuf> {
    let first = model.paths().first()?;
    let full = full_path(first);
    let mut hash = Hash::default();
    hash.add(full.as_os_str().as_encoded_bytes());
    weights.iter().for_each(|weight| hash.add(weight.description().as_bytes()));
    let stem = first.file_stem()?.to_string_lossy().into_owned();
    Some(folder.join(format!("{stem}-{:08x}{SUFFIX}", hash.finish() as u32)))
}

/// The one path that stands for a file, if the system tells.
fn full_path(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

/// An open file of packs.
#[derive(Debug)]
pub struct Converted {
    file: File,
    /// Labels, packs and layouts, in the order of the file's tensors.
    weights: Vec<(String, PackDesc, StoredPack)>,
}

/// Why a file of packs is not used.
#[derive(Debug, thiserror::Error)]
pub enum Stale {
    /// There is none.
    #[error("there is none")]
    Absent,
    /// It is no container, or cut short.
    #[error("it is damaged: {0}")]
    Damaged(#[from] gguf::Error),
    /// It holds other packs.
    #[error("it is of another version or holds other packs")]
    Other,
    /// It was made from another model.
    #[error("the model has changed since")]
    Model,
    /// The bytes are not those that were written.
    #[error("it is damaged: the sum of `{label}` is wrong")]
    Sum {
        /// The pack.
        label: String,
    },
}

impl Converted {
    /// Opens the file at `path` if it holds exactly `weights` of `model`.
    ///
    /// # Errors
    /// [`Stale`]: the reason why it has to be made anew.
    pub fn open(path: &Path, model: &File, weights: &[Weight]) -> Result<Arc<Converted>, Stale> {
        if !path.exists() {
            return Err(Stale::Absent);
        }
        let file = File::open(path)?;
        check_header(file.metadata(), model, weights)?;
        let sums = file.tensor(SUMS).ok_or(Stale::Other)?;
        let sums = file.bytes(sums)?.as_chunks::<8>().0;
        if sums.len() != weights.len() || file.tensors().len() != weights.len() + 1 {
            return Err(Stale::Other);
        }
        file.fetch();
        for (weight, &expected) in weights.iter().zip(sums) {
            let tensor = file.tensor(&weight.label).ok_or(Stale::Other)?;
            if tensor.n_bytes() != weight.stored.len as u64 {
                return Err(Stale::Other);
            }
            if sum(file.bytes(tensor)?) != u64::from_le_bytes(expected) {
                return Err(Stale::Sum { label: weight.label.clone() });
            }
        }
        let known = weights.iter().map(|w| (w.label.clone(), w.pack.clone(), w.stored));
        Ok(Arc::new(Converted { weights: known.collect(), file }))
    }

    /// The bytes of the pack that is called `label`, if they are of this pack and layout.
    #[must_use]
    pub fn find(&self, label: &str, pack: &PackDesc, stored: StoredPack) -> Option<SharedBytes> {
        let same = |(name, of, how): &&(String, PackDesc, StoredPack)| {
            name == label && of == pack && *how == stored
        };
        self.weights.iter().find(same)?;
        let bytes = self.file.slice(self.file.tensor(label)?).ok()?;
        Some(Arc::new(bytes))
    }
}

fn check_header(metadata: &Metadata, model: &File, weights: &[Weight]) -> Result<(), Stale> {
    let packs = metadata.str_array(PACKS_KEY)?.ok_or(Stale::Other)?;
    let same = packs.len() == weights.len()
        && packs.iter().zip(weights).all(|(found, w)| found == w.description().as_bytes());
    if metadata.u32(VERSION_KEY)? != Some(VERSION) || !same {
        return Err(Stale::Other);
    }
    match metadata.str(FINGERPRINT_KEY)? == Some(&fingerprint(model, weights)) {
        true => Ok(()),
        false => Err(Stale::Model),
    }
}
