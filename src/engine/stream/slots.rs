//! Sets of slots for streamed chunks.

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
pub(crate) struct Places {
    parts: Vec<ChunkTensor>,
    places: Vec<usize>,
}

impl Places {
    pub(crate) fn of(&self, part: ChunkTensor) -> Option<usize> {
        self.parts.iter().position(|known| *known == part).map(|at| self.places[at])
    }

    pub(crate) fn all(&self) -> &[usize] {
        &self.places
    }
}

/// A set of slots on a device, with one share for each shape.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) tensors: Vec<Tensor>,
    /// Whether each of them is a per-neuron vector.
    pub(crate) vectors: Vec<bool>,
    pub(crate) shares: Vec<FfnTensors>,
    pub(crate) places: Vec<Places>,
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
        let places = |shape: &ChunkShape| {
            let at = |part| all.iter().position(|known| known == part).expect("listed above");
            Places {
                parts: shape.parts.iter().map(|(part, _)| *part).collect(),
                places: shape.parts.iter().map(at).collect(),
            }
        };
        let places: Vec<Places> = shapes.iter().map(places).collect();
        let share = |(shape, places): (&ChunkShape, &Places)| {
            let of = |part| places.of(part).map(|at| tensors[at].clone());
            FfnShare {
                gate: of(ChunkTensor::Gate),
                up: of(ChunkTensor::Up).expect("every block has one"),
                down: of(ChunkTensor::Down).expect("every block has one"),
                bias_gate: of(ChunkTensor::BiasGate),
                bias_up: of(ChunkTensor::BiasUp),
                bias_down: None,
                threshold: of(ChunkTensor::Threshold),
                groups: None,
                orientation: shape.orientation,
            }
        };
        let shares = shapes.iter().zip(&places).map(share).collect();
        let vectors = all.iter().map(|(part, _)| part.is_vector()).collect();
        Ok(Slots { tensors, vectors, shares, places })
    }
}

impl Slots {
    /// The predictor of a layer over the neurons in the slots of this shape.
    pub(crate) fn predictor(
        &self,
        shape: usize,
        of: &Predictor<Tensor>,
        lists: &ChunkLists,
    ) -> Predictor<Tensor> {
        let at = |part| self.places[shape].of(part).expect("listed neurons come with their scores");
        let [scores, offset] =
            [ChunkTensor::Scores, ChunkTensor::Offset].map(|part| self.tensors[at(part)].clone());
        of.over(scores, offset, lists.slots())
    }
}

fn zeros(desc: TensorDesc) -> hal::Result<HostRows> {
    let len = desc.bytes().unwrap_or_default().0 as usize;
    HostRows::new(Source::Owned(Arc::new(vec![0u8; len])), desc.n_rows, desc.n_cols, desc.format)
}
