//! Sets of slots on a device for streamed chunks.

use std::sync::Arc;

use hal::{Device, HostRows, Source, Tensor, TensorDesc};

use crate::error::Result;
use crate::load::ffn::FfnTensors;
use crate::load::lists::ChunkLists;
use crate::ops::ffn::FfnShare;
use crate::ops::predict::Predictor;
use crate::size::stream::{ChunkShape, ChunkTensor, distinct};

/// Indices of a share's tensors in a set of slots.
#[derive(Clone, Debug)]
pub(crate) struct TensorIndices {
    parts: Vec<ChunkTensor>,
    indices: Vec<usize>,
}

impl TensorIndices {
    pub(crate) fn find(&self, part: ChunkTensor) -> Option<usize> {
        self.parts.iter().position(|known| *known == part).map(|at| self.indices[at])
    }

    pub(crate) fn as_slice(&self) -> &[usize] {
        &self.indices
    }
}

/// A set of slots on a device, with a share over them for each shape of chunks.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) tensors: Vec<Tensor>,
    /// Whether each tensor is a per-neuron vector.
    pub(crate) vectors: Vec<bool>,
    pub(crate) shares: Vec<FfnTensors>,
    pub(crate) indices: Vec<TensorIndices>,
}

impl Slots {
    pub(crate) fn new(device: &Device, shapes: &[ChunkShape]) -> Result<Slots> {
        let all = distinct(shapes);
        let tensors: Vec<Tensor> = all
            .iter()
            .map(|(part, pack)| {
                if part.is_vector() {
                    device.alloc("streamed vector", pack.source)
                } else {
                    device.import("streamed neurons", pack, &zeros(pack.source)?)
                }
            })
            .collect::<hal::Result<_>>()?;
        let indices = |shape: &ChunkShape| {
            let at = |part| all.iter().position(|known| known == part).expect("`all` has the part");
            TensorIndices {
                parts: shape.parts.iter().map(|(part, _)| *part).collect(),
                indices: shape.parts.iter().map(at).collect(),
            }
        };
        let indices: Vec<TensorIndices> = shapes.iter().map(indices).collect();
        let share = |(shape, indices): (&ChunkShape, &TensorIndices)| {
            let of = |part| indices.find(part).map(|at| tensors[at].clone());
            FfnShare {
                gate: of(ChunkTensor::Gate),
                up: of(ChunkTensor::Up).expect("every feed-forward block has up"),
                down: of(ChunkTensor::Down).expect("every feed-forward block has down"),
                bias_gate: of(ChunkTensor::BiasGate),
                bias_up: of(ChunkTensor::BiasUp),
                bias_down: None,
                threshold: of(ChunkTensor::Threshold),
                experts: None,
                activation: shape.activation,
                gaussian_cut: None,
                orientation: shape.orientation,
            }
        };
        let shares = shapes.iter().zip(&indices).map(share).collect();
        let vectors = all.iter().map(|(part, _)| part.is_vector()).collect();
        Ok(Slots { tensors, vectors, shares, indices })
    }
}

impl Slots {
    /// The predictor of a layer over the neurons in slots of this shape.
    pub(crate) fn predictor(
        &self,
        shape: usize,
        of: &Predictor<Tensor>,
        lists: &ChunkLists,
    ) -> Predictor<Tensor> {
        let at = |part| self.indices[shape].find(part).expect("listed neurons have their scores");
        let [scores, bias] = [ChunkTensor::Scores, ChunkTensor::ScoresBias]
            .map(|part| self.tensors[at(part)].clone());
        of.for_neurons(scores, bias, lists.slots())
    }
}

fn zeros(desc: TensorDesc) -> hal::Result<HostRows> {
    let len = desc.bytes().unwrap_or_default().0 as usize;
    HostRows::new(Source::Owned(Arc::new(vec![0u8; len])), desc.n_rows, desc.n_cols, desc.format)
}
