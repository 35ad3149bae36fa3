//! StableLM. In the 12B model, attention and feed-forward block share a norm, and each head of
//! queries and keys has a norm with weights of its own.

use hal::op::{NormKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, NormSpan, Positions, QkNorm};

pub(super) const STABLELM: ArchSpec = ArchSpec {
    name: "stablelm",
    models: "StableLM 3B, StableLM 2 1.6B and 12B",
    norm: NormKind::Layer,
    block: BlockKind::ParallelWithoutNorm,
    qk_norm: Some(QkNorm { over: NormSpan::HeadWeights, optional: true, ..QkNorm::HEADS }),
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ..LLAMA
};
