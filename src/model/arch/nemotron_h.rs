//! Nemotron-H: a layer is a Mamba-2 block, attention without RoPE, or a feed-forward block with a
//! squared ReLU.

use hal::op::Scoring;

use super::mamba2::mamba2;
use super::relu2::ARCEE;
use crate::{ArchSpec, Error, LayerReader, Mixer, Positions, Routing, RoutingKeys};

pub(super) const NEMOTRON_H: ArchSpec = ArchSpec {
    name: "nemotron_h",
    models: "Nemotron-H, Nemotron Nano 2 (squared ReLU)",
    mixer,
    positions: Positions::None,
    windows: false,
    // Each layer has a single norm, with this name.
    ffn_norm: "attn_norm",
    ..ARCEE
};

/// With experts and a shared expert in the feed-forward layers.
pub(super) const NEMOTRON_H_MOE: ArchSpec = ArchSpec {
    name: "nemotron_h_moe",
    models: "Nemotron 3 Nano 30B-A3B, Nemotron 3 Super 120B-A12B (squared ReLU)",
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Norm,
        ..NEMOTRON_H.routing
    },
    ..NEMOTRON_H
};

/// Reads the mixer of a layer; a layer with neurons has none.
fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    match (layer.has_ffn(), layer.sizes().n_head_kv) {
        (true, _) => Ok(Mixer::None),
        (false, 0) => mamba2(layer),
        (false, _) => layer.attention(),
    }
}
