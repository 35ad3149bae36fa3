//! Nemotron-H: a layer is a Mamba-2 block, attention without RoPE, or a feed-forward block with a
//! squared ReLU.

use super::mamba2::mamba2;
use super::relu2::ARCEE;
use crate::{ArchSpec, Error, LayerReader, Mixer, Positions};

pub(super) const NEMOTRON_H: ArchSpec = ArchSpec {
    name: "nemotron_h",
    models: "Nemotron-H, Nemotron Nano 2 (squared ReLU)",
    mixer,
    positions: Positions::None,
    // Each layer has a single norm, with this name.
    ffn_norm: "attn_norm",
    ..ARCEE
};

/// Reads the mixer of a layer; a layer with neurons has none.
fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    match (layer.n_ff(), layer.sizes().n_head_kv) {
        (0, 0) => mamba2(layer),
        (0, _) => layer.attention(),
        _ => Ok(Mixer::None),
    }
}
