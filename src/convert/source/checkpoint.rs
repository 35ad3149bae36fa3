//! Finds the files of a checkpoint in a folder and reads the locations of all tensors.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Tensor, safetensors, torch};
use crate::Error;
use crate::config::Json;
use gguf::Bytes;

/// All tensors of a model by name; their values are mapped, but not yet read.
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

/// For each type of checkpoint: the file that lists its shards, and prefix and suffix of its files.
const LAYOUTS: [(&str, &str, &str); 2] = [
    ("model.safetensors.index.json", "model", ".safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model", ".bin"),
];

impl Checkpoint {
    /// Opens the checkpoint in `folder`; safetensors are preferred.
    ///
    /// # Errors
    /// No checkpoint, a missing shard, errors in a file.
    pub(crate) fn open(folder: &Path) -> Result<Checkpoint, Error> {
        for (index, start, end) in LAYOUTS {
            let mut files = match indexed(&folder.join(index))? {
                Some(files) => files,
                None => matching(folder, start, end)?,
            };
            if files.is_empty() && end == ".safetensors" {
                files = matching(folder, "", end)?;
            }
            if !files.is_empty() {
                return Checkpoint::read(&files);
            }
        }
        let expected = "model*.safetensors or pytorch_model*.bin";
        Err(Error::NoCheckpoint { folder: folder.display().to_string(), expected })
    }

    fn read(files: &BTreeSet<PathBuf>) -> Result<Checkpoint, Error> {
        let mut tensors = BTreeMap::new();
        for path in files {
            for tensor in read(path)? {
                let name = tensor.name.clone();
                if tensors.insert(name.clone(), tensor).is_some() {
                    let file = path.display().to_string();
                    return Err(Error::DuplicateTensor { file, tensor: name });
                }
            }
        }
        Ok(Checkpoint { tensors })
    }
}

fn read(path: &Path) -> Result<Vec<Tensor>, Error> {
    parse(path, &Bytes::open(path)?)
}

/// The tensors of file `path` with content `bytes`: safetensors or PyTorch, depending on the name.
pub(super) fn parse(path: &Path, bytes: &Bytes) -> Result<Vec<Tensor>, Error> {
    if path.extension().is_some_and(|end| end == "safetensors") {
        let file = || path.display().to_string();
        return safetensors::read(bytes)
            .map_err(|problem| Error::Safetensors { file: file(), problem });
    }
    torch::read(path, bytes)
}

/// The shards that an index lists; `None` if the index does not exist.
fn indexed(path: &Path) -> Result<Option<BTreeSet<PathBuf>>, Error> {
    let Some(index) = Json::open_if_present(path)? else { return Ok(None) };
    let mut files = BTreeSet::new();
    let map = index
        .object("weight_map")?
        .ok_or_else(|| index.missing("weight_map", "the file of each tensor"))?;
    for shard in map.values() {
        let name = shard.as_str().unwrap_or_default();
        // A shard name with a folder would let an index point to any file of the machine.
        if name.is_empty() || Path::new(name).file_name() != Some(name.as_ref()) {
            return Err(Error::Shard {
                file: path.display().to_string(),
                shard: shard.to_string(),
            });
        }
        files.insert(path.with_file_name(name));
    }
    Ok(Some(files))
}

/// The files of `folder` with this prefix and suffix.
fn matching(folder: &Path, start: &str, end: &str) -> Result<BTreeSet<PathBuf>, Error> {
    let io_error =
        |reason| Error::Io { file: folder.display().to_string(), action: "list", reason };
    let mut files = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(io_error)? {
        let path = entry.map_err(io_error)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(start) && name.ends_with(end) {
            files.insert(path);
        }
    }
    Ok(files)
}
