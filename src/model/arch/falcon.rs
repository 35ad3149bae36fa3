//! Falcon 7B (attention and feed-forward block share a norm; one KV head), Falcon 40B (two norms,
//! several KV heads), and ReluFalcon.

use hal::op::{Activation, FfnKind, NormKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, Positions};

pub(super) const FALCON: ArchSpec = ArchSpec {
    name: "falcon",
    models: "Falcon 7B, 40B and 180B; ReLU: ReluFalcon",
    norm: NormKind::Layer,
    block: BlockKind::Parallel,
    positions: Positions::Rotary(Pairing::Halves),
    ffn: FfnKind::Plain,
    activation: Activation::GeluErf,
    ..LLAMA
};
