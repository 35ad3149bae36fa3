//! SmallThinker: experts with a ReLU, selected before attention; no RoPE in global-attention
//! layers.

use hal::op::{Activation, Pairing, Scoring};

use super::llama::LLAMA;
use crate::{ArchSpec, GlobalLayers, Positions, RotaryLayers, RouterInput, Routing, RoutingKeys};

pub(super) const SMALLTHINKER: ArchSpec = ArchSpec {
    name: "smallthinker",
    models: "SmallThinker 4B-A0.6B and 21B-A3B",
    positions: Positions::Rotary(Pairing::Halves),
    global_layers: Some(GlobalLayers { period: 4, first: true }),
    rotary: RotaryLayers::Windowed,
    activation: Activation::Relu,
    routing: Routing {
        input: RouterInput::Layer,
        scoring: Scoring::Sigmoid,
        renormalise: true,
        keys: RoutingKeys::Scoring,
        ..LLAMA.routing
    },
    ..LLAMA
};
