//! Muse Glimmer: normalised embeddings, gated attention, and norms before and after both halves of
//! a layer.

use hal::op::GateActivation;

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, EmbeddingNorm, GateKind, GlobalLayers, QkNorm, RotaryLayers, ScaleKeys,
    ScaleRules,
};

pub(super) const MUSE_GLIMMER: ArchSpec = ArchSpec {
    name: "muse-glimmer",
    models: "Muse Glimmer 30B",
    block: BlockKind::Sandwich,
    qk_norm: Some(QkNorm::HEADS),
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: false },
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    rotary: RotaryLayers::Windowed,
    scales: ScaleRules { keys: ScaleKeys::Logits, ..ScaleRules::NONE },
    embedding_norm: EmbeddingNorm::Plain,
    // Files do not state it.
    post_norm_eps: Some(1e-8),
    ..LLAMA
};
