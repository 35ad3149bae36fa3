//! Cohere's Command models: attention and feed-forward block share a LayerNorm without bias, and
//! the logits have a factor.

use hal::op::{NormKind, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, Error, GlobalLayers, LayerReader, Mixer, NormSpan, QkNorm, RotaryLayers,
    Routing, RoutingKeys, ScaleKeys, ScaleRules,
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

/// With experts, whose output is averaged with that of a shared expert.
pub(super) const COHERE2MOE: ArchSpec = ArchSpec {
    name: "cohere2moe",
    models: "Command A with experts (30B-A3B)",
    mixer: rotated_dense_layers,
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        averages: true,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..COHERE2
};

/// Reads attention, which also has RoPE in the dense first layers.
fn rotated_dense_layers(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const DENSE: &str = "leading_dense_block_count";
    let keys = layer.keys();
    let n_dense = keys.metadata.u32(&keys.name(DENSE))?.unwrap_or(0);
    let mut mixer = layer.attention()?;
    if let Mixer::Attention(attention) = &mut mixer
        && layer.index() < n_dense as usize
    {
        attention.rope.get_or_insert_with(|| layer.global_rope());
    }
    Ok(mixer)
}
