//! Reads PowerInfer's files: the counts of its profiler, and its list of neurons on the GPU.
//!
//! Source: PowerInfer's loader and solver (Song et al., SOSP 2024) as published in their
//! repository.

use std::path::Path;

use gguf::{self, Bytes, Container, File, TensorType};
use model::Model;

use super::{LayerProfile, Profile};

/// An error of reading PowerInfer's files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of counts that cannot be read.
    #[error(transparent)]
    Counts(#[from] convert::Error),
    /// A container that cannot be read.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// A number of neurons that differs from the model's layer.
    #[error("{file} has {found} numbers, expected {expected}, one per neuron of layer {layer}")]
    Neurons {
        /// The path.
        file: String,
        /// The layer.
        layer: usize,
        /// The model's number.
        expected: usize,
        /// The file's number.
        found: u64,
    },
    /// A number that is not a count.
    #[error("{file} has the value {found}, expected a number of tokens")]
    Count {
        /// The path.
        file: String,
        /// The number.
        found: f64,
    },
    /// All counts are 0.
    #[error("{folder}: all counts are 0, so the files contain no profile")]
    Empty {
        /// The folder.
        folder: String,
    },
    /// A list of GPU neurons that does not match the model, or a file without such a list.
    #[error("{file} {what}, expected {expected}")]
    Index {
        /// The path.
        file: String,
        /// The actual content.
        what: String,
        /// The expected content.
        expected: String,
    },
}

/// Maximum count; larger counts may not be exact in an f64.
const MAX_COUNT: f64 = (1u64 << 53) as f64;

/// Reads the counts in `activation_0.pt`, `activation_1.pt`, ... of `folder`, one file per layer,
/// as a profile of `model` that has only counts. The files do not contain the number of tokens, so
/// the largest count is used.
///
/// # Errors
/// [`Error`].
pub fn import(folder: &Path, model: &Model) -> Result<Profile, Error> {
    let mut layers = Vec::new();
    for (layer, n_ff) in model.neurons().into_iter().enumerate() {
        let path = folder.join(format!("activation_{layer}.pt"));
        let file = || path.display().to_string();
        let values = convert::vector(&path, &Bytes::open(&path)?)?;
        if values.len() != n_ff {
            let found = values.len() as u64;
            return Err(Error::Neurons { file: file(), layer, expected: n_ff, found });
        }
        if let Some(&found) = values.iter().find(|n| !(0.0..=MAX_COUNT).contains(*n)) {
            return Err(Error::Count { file: file(), found });
        }
        let fires = values.into_iter().map(|n| n.round() as u64).collect();
        layers.push(LayerProfile { fires, size: vec![0.0; n_ff], ..LayerProfile::default() });
    }
    let n_tokens = layers.iter().flat_map(|layer| &layer.fires).max().copied().unwrap_or_default();
    if n_tokens == 0 {
        return Err(Error::Empty { folder: folder.display().to_string() });
    }
    let source = "PowerInfer's activation counts".to_owned();
    Ok(Profile { source, n_tokens, n_wanted: n_tokens, stride: 0, layers })
}

/// PowerInfer's selection of neurons for the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIndex {
    /// Device memory, in bytes, for which the neurons were selected.
    pub vram_capacity: u64,
    /// Neurons of each layer that are on the GPU, ascending.
    pub layers: Vec<Vec<u32>>,
}

/// Reads `<model>.generated.gpuidx`; `n_ff` has the model's number of neurons in each layer.
///
/// # Errors
/// [`Error::File`] and [`Error::Index`].
pub fn gpu_index(file: &File, n_ff: &[usize]) -> Result<GpuIndex, Error> {
    let wrong = |what: String, expected: String| Error::Index {
        file: file.name().to_owned(),
        what,
        expected,
    };
    if file.container() != Container::PowerInfer {
        return Err(wrong(format!("is a {} container", file.container()), "a PWRI file".into()));
    }
    let blocks = file.metadata().u32("generic.gpu_index.block_count")?;
    let n_layer = n_ff.len();
    if blocks.map(|n| n as usize) != Some(n_layer) {
        let found =
            blocks.map_or("states no number of layers".into(), |n| format!("has {n} layers"));
        return Err(wrong(found, format!("{n_layer}")));
    }
    let capacity = file.metadata().u64("split.vram_capacity")?;
    let capacity = capacity.ok_or_else(|| {
        wrong("has no key `split.vram_capacity`".into(), "a number of bytes".into())
    })?;
    let mut layers = Vec::new();
    for (layer, &n_ff) in n_ff.iter().enumerate() {
        let name = format!("blk.{layer}.gpu_idx");
        let tensor = file.tensor(&name);
        let expected = || format!("{n_ff} values of type I32");
        let tensor = tensor.ok_or_else(|| wrong(format!("has no tensor `{name}`"), expected()))?;
        if tensor.ty != TensorType::I32 || tensor.shape != [n_ff as u64] {
            let found = format!("has `{name}` of {:?} {}", tensor.shape, tensor.ty);
            return Err(wrong(found, expected()));
        }
        let marks = file.bytes(tensor)?.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
        let chosen = (0..).zip(marks).filter(|(_, mark)| *mark != 0).map(|(neuron, _)| neuron);
        layers.push(chosen.collect());
    }
    Ok(GpuIndex { vram_capacity: capacity, layers })
}

impl GpuIndex {
    /// Number of neurons on the GPU.
    #[must_use]
    pub fn n_neurons(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}
