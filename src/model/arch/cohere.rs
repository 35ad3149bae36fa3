//! Cohere's Command models: attention and feed-forward block share a LayerNorm without bias, and
//! the logits have a factor.

use hal::op::NormKind;

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, GlobalLayers, NormSpan, QkNorm, RotaryLayers, ScaleKeys, ScaleRules,
};

pub(super) const COMMAND_R: ArchSpec = ArchSpec {
    name: "command-r",
    models: "Command R and R+, Aya 23 and Expanse",
    norm: NormKind::Layer,
    block: BlockKind::Parallel,
    qk_norm: Some(QkNorm { over: NormSpan::HeadWeights, optional: true, ..QkNorm::HEADS }),
    windows: false,
    scales: ScaleRules { keys: ScaleKeys::Logits, ..ScaleRules::NONE },
    ..LLAMA
};

/// RoPE is applied only in layers with a sliding window.
pub(super) const COHERE2: ArchSpec = ArchSpec {
    name: "cohere2",
    models: "Command R7B, Command A",
    qk_norm: None,
    windows: true,
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    rotary: RotaryLayers::Windowed,
    ..COMMAND_R
};
