//! PowerInfer's files of the same kind: counts of its profiler, and its list of neurons on the GPU.
//!
//! Source: PowerInfer's loader and solver (Song et al., SOSP 2024) as published in their repository.

use std::path::Path;

use crate::convert;
use crate::gguf::{self, Bytes, Container, File, TensorType};
use crate::model::Model;

use super::{LayerProfile, Profile};

/// Why such a file is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file of counts that cannot be read.
    #[error(transparent)]
    Counts(#[from] convert::Error),
    /// A container that cannot be read.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// Another number of neurons than the model's layers have.
    #[error("{file}: has {found} numbers, expected {expected}, the neurons of layer {layer}")]
    Neurons {
        /// The path.
        file: String,
        /// The layer.
        layer: usize,
        /// The model's.
        expected: usize,
        /// The file's.
        found: u64,
    },
    /// A number that is no count.
    #[error("{file}: holds {found}, expected counts of tokens")]
    Count {
        /// The path.
        file: String,
        /// The number.
        found: f64,
    },
    /// No neuron of any layer ever fired.
    #[error("{folder}: all counts are 0")]
    Empty {
        /// The folder.
        folder: String,
    },
    /// It is not about this model, or no such list.
    #[error("{file}: {what}, expected {expected}")]
    Index {
        /// The path.
        file: String,
        /// What it has.
        what: String,
        /// What it should have.
        expected: String,
    },
}

/// Counts beyond this are none: they would not be exact.
const MOST: f64 = (1u64 << 53) as f64;

/// The counts `activation_0.pt`, `activation_1.pt`, ... in `folder`, in the order of their numbers, as a profile of
/// `model`. How many tokens were counted is not in the files: the most that any neuron fired is taken for it. Only
/// which neurons fire how often is known then.
///
/// # Errors
/// [`Error`].
pub fn import(folder: &Path, model: &Model) -> Result<Profile, Error> {
    let n_ff = model.hyper.n_ff;
    let mut layers = Vec::new();
    for layer in 0..model.hyper.n_layer {
        let path = folder.join(format!("activation_{layer}.pt"));
        let file = || path.display().to_string();
        let values = convert::vector(&path, &Bytes::open(&path)?)?;
        if values.len() != n_ff {
            let found = values.len() as u64;
            return Err(Error::Neurons { file: file(), layer, expected: n_ff, found });
        }
        if let Some(&found) = values.iter().find(|n| !(0.0..=MOST).contains(*n)) {
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

/// PowerInfer's choice of neurons for the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuIndex {
    /// Bytes of device memory that it was made for.
    pub vram_capacity: u64,
    /// Neurons of each layer that are on the GPU, ascending.
    pub layers: Vec<Vec<u32>>,
}

/// Reads `<model>.generated.gpuidx`, of a model of `n_layer` layers with `n_ff` neurons each.
///
/// # Errors
/// [`Error::File`] and [`Error::Index`].
pub fn gpu_index(file: &File, n_layer: usize, n_ff: usize) -> Result<GpuIndex, Error> {
    let wrong = |what: String, expected: String| Error::Index {
        file: file.name().to_owned(),
        what,
        expected,
    };
    if file.container() != Container::PowerInfer {
        return Err(wrong(format!("is a {} container", file.container()), "a PWRI one".into()));
    }
    let blocks = file.metadata().u32("generic.gpu_index.block_count")?;
    if blocks.map(|n| n as usize) != Some(n_layer) {
        let found = blocks.map_or("no number of layers".into(), |n| format!("{n} layers"));
        return Err(wrong(found, format!("{n_layer}")));
    }
    let capacity = file.metadata().u64("split.vram_capacity")?;
    let capacity = capacity.ok_or_else(|| wrong("no capacity".into(), "one in bytes".into()))?;
    let mut layers = Vec::new();
    for layer in 0..n_layer {
        let name = format!("blk.{layer}.gpu_idx");
        let tensor = file.tensor(&name);
        let expected = || format!("{n_ff} numbers of I32");
        let tensor = tensor.ok_or_else(|| wrong(format!("no `{name}`"), expected()))?;
        if tensor.ty != TensorType::I32 || tensor.shape != [n_ff as u64] {
            let found = format!("`{name}` of {:?} {}", tensor.shape, tensor.ty);
            return Err(wrong(found, expected()));
        }
        let marks = file.bytes(tensor)?.as_chunks::<4>().0.iter().map(|b| i32::from_le_bytes(*b));
        let chosen = (0..).zip(marks).filter(|(_, mark)| *mark != 0).map(|(neuron, _)| neuron);
        layers.push(chosen.collect());
    }
    Ok(GpuIndex { vram_capacity: capacity, layers })
}

impl GpuIndex {
    /// Neurons on the GPU.
    #[must_use]
    pub fn n_neurons(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}
