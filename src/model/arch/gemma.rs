//! Gemma 1 to 3. Norm weights are stored with their 1 added.

use hal::op::{Activation, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, GlobalLayers, Positions};

pub(super) const GEMMA: ArchSpec = ArchSpec {
    name: "gemma",
    models: "Gemma 1, CodeGemma",
    positions: Positions::Rotary(Pairing::Halves),
    scaled_embedding: true,
    activation: Activation::Gelu,
    ..LLAMA
};

pub(super) const GEMMA2: ArchSpec = ArchSpec {
    name: "gemma2",
    models: "Gemma 2",
    block: BlockKind::Sandwich,
    window: Some(4096),
    global_layers: Some(GlobalLayers { period: 2, first: false }),
    attn_softcap: 50.0,
    logit_softcap: 30.0,
    // 27B.
    width_scaled: Some(46),
    ..GEMMA
};

pub(super) const GEMMA3: ArchSpec = ArchSpec {
    name: "gemma3",
    models: "Gemma 3 (text)",
    block: BlockKind::Sandwich,
    qk_norm: true,
    global_layers: Some(GlobalLayers { period: 6, first: false }),
    local_base: Some(10_000.0),
    // 27B.
    width_scaled: Some(62),
    ..GEMMA
};
