//! Gemma 1 to 3 and EmbeddingGemma. GGUF files store the norm weights with 1 added, as llama.cpp expects.

use hal::op::{Activation, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, Factor, GlobalLayers, LocalRope, Positions, QkNorm, ScaleRules};

pub(super) const GEMMA: ArchSpec = ArchSpec {
    name: "gemma",
    models: "Gemma 1, CodeGemma",
    positions: Positions::Rotary(Pairing::Halves),
    scales: ScaleRules { embedding: Factor::RootWidth, ..ScaleRules::NONE },
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
    // Number of layers of the 27B model.
    width_scaled: Some(46),
    ..GEMMA
};

pub(super) const GEMMA3: ArchSpec = ArchSpec {
    name: "gemma3",
    models: "Gemma 3 (text)",
    block: BlockKind::Sandwich,
    qk_norm: Some(QkNorm::HEADS),
    global_layers: Some(GlobalLayers { period: 6, first: false }),
    local_rope: LocalRope::Unscaled { base: Some(10_000.0) },
    // Number of layers of the 27B model.
    width_scaled: Some(62),
    ..GEMMA
};

/// The last of every six layers is global, as in Gemma 3.
pub(super) const GEMMA_EMBEDDING: ArchSpec = ArchSpec {
    name: "gemma-embedding",
    models: "EmbeddingGemma 300M",
    encoder: true,
    width_scaled: None,
    ..GEMMA3
};
