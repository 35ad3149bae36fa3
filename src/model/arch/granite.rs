//! Granite: a Llama with scales of embeddings, layer outputs, attention scores and logits. Models
//! are dense, have experts, or have Mamba-2 in most layers.

use super::llama::LLAMA;
use super::mamba2::mamba2;
use crate::{ArchSpec, Error, LayerReader, Mixer, ScaleKeys, ScaleRules};

pub(super) const GRANITE: ArchSpec = ArchSpec {
    name: "granite",
    models: "Granite 3 and 4, dense",
    mixer: attention,
    windows: false,
    scales: ScaleRules { keys: ScaleKeys::All, ..ScaleRules::NONE },
    ..LLAMA
};

/// Granite 3 with experts, always with RoPE.
pub(super) const GRANITEMOE: ArchSpec = ArchSpec {
    name: "granitemoe",
    models: "Granite 3 with experts",
    mixer: LLAMA.mixer,
    ..GRANITE
};

/// Granite 4 hybrids, dense or with experts and a shared expert.
pub(super) const GRANITEHYBRID: ArchSpec = ArchSpec {
    name: "granitehybrid",
    models: "Granite 4 hybrids (dense and with experts), Bamba",
    mixer: hybrid,
    ..GRANITE
};

/// Granite with attention sinks, and a sliding window in some layers.
pub(super) const GRANITE_SWA: ArchSpec = ArchSpec {
    name: "granite_swa",
    models: "Granite with a sliding window",
    mixer: by_pattern,
    windows: true,
    ..GRANITE
};

/// Reads attention, with RoPE in the layers that the file lists.
fn by_pattern(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const PATTERN: &str = "attention.rope_pattern";
    let keys = layer.keys();
    let is_list = keys.metadata.get(&keys.name(PATTERN)).is_some_and(|v| v.as_array().is_some());
    let rotates = if is_list { keys.flags(PATTERN, layer.n_listed())? } else { None };
    let mut mixer = layer.attention()?;
    if let (Mixer::Attention(attention), Some(rotates)) = (&mut mixer, rotates) {
        attention.rope = attention.rope.take().filter(|_| rotates[layer.index()]);
    }
    Ok(mixer)
}

/// Reads Mamba-2 in a layer without KV heads, and attention in the others.
fn hybrid(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    match layer.sizes().n_head_kv {
        0 => mamba2(layer),
        _ => attention(layer),
    }
}

/// Reads attention, without RoPE if `rope.scaling.finetuned` is false.
fn attention(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    let keys = layer.keys();
    let rotates = keys.metadata.bool(&keys.name("rope.scaling.finetuned"))?;
    let mut mixer = layer.attention()?;
    if let (Mixer::Attention(attention), Some(false)) = (&mut mixer, rotates) {
        attention.rope = None;
    }
    Ok(mixer)
}
