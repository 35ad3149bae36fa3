//! Qwen3.8-Flash-Next: the layers of Qwen 3.5 with experts, on several residual streams; attention to
//! selected blocks of positions; embeddings of n-grams.

use hal::op::GateActivation;

use super::qwen35::{self, QWEN35MOE};
use crate::{ArchSpec, Error, GatedDelta, LayerReader, Mixer};

pub(super) const QWEN4EXP: ArchSpec = ArchSpec {
    name: "qwen4exp",
    models: "Qwen3.8-Flash-Next",
    mixer,
    low_rank_hyper: true,
    ngrams: true,
    ..QWEN35MOE
};

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let mixer = qwen35::mixer(layer)?;
    if let Mixer::GatedDelta(by) = mixer {
        return Ok(Mixer::GatedDelta(GatedDelta { gate: GateActivation::Sigmoid, ..by }));
    }
    layer.pooled_sparse(mixer)
}
