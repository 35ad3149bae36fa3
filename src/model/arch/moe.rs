//! Families with Qwen 3's layers and experts that a sigmoid scores: dots.llm1, MiniMax M2, MiMo 2,
//! Laguna.

use hal::op::{GateActivation, Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, Clamp, Error, GateKind, GlobalLayers, LayerReader, LocalRope, Mixer, NormSpan,
    Positions, QkNorm, RotaryLayers, Routing, RoutingKeys,
};

/// The first layers are dense.
pub(super) const DOTS1: ArchSpec = ArchSpec {
    name: "dots1",
    models: "dots.llm1 142B-A14B",
    qk_norm: Some(QkNorm::HEADS),
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..LLAMA
};

/// Queries and keys are normalised as whole rows.
pub(super) const MINIMAX_M2: ArchSpec = ArchSpec {
    name: "minimax-m2",
    models: "MiniMax M2 and M2.5",
    qk_norm: Some(QkNorm { over: NormSpan::Row, ..QkNorm::HEADS }),
    routing: Routing { renormalise: true, keys: RoutingKeys::Scoring, ..DOTS1.routing },
    ..DOTS1
};

/// Attention sinks, and head sizes that differ between keys and values.
pub(super) const MIMO2: ArchSpec = ArchSpec {
    name: "mimo2",
    models: "MiMo V2 Flash",
    mixer: without_value_scale,
    qk_norm: None,
    windows: true,
    local_rope: LocalRope::Unscaled { base: Some(10_000.0) },
    routing: Routing { renormalise: true, keys: RoutingKeys::None, ..DOTS1.routing },
    ..DOTS1
};

/// Gated attention, and a different number of heads in layers with a sliding window.
pub(super) const LAGUNA: ArchSpec = ArchSpec {
    name: "laguna",
    models: "Laguna XS and M",
    gate: GateKind::Matrix { activation: GateActivation::Softplus, optional: false },
    windows: true,
    global_layers: Some(GlobalLayers { period: 4, first: true }),
    local_rope: LocalRope::Unscaled { base: None },
    ..DOTS1
};

/// Different numbers of heads in layers with a sliding window, whose RoPE covers whole heads; limits
/// of the blocks' values in some layers.
pub(super) const STEP35: ArchSpec = ArchSpec {
    name: "step35",
    models: "Step 3.5 Flash 196B-A11B",
    qk_norm: Some(QkNorm { optional: true, ..QkNorm::HEADS }),
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: true },
    windows: true,
    half_rotary: true,
    local_rope: LocalRope::Unscaled { base: None },
    clamp: Clamp::Activated,
    ..DOTS1
};

/// RoPE only in layers with a sliding window; limits of the experts' values.
pub(super) const MAPLE: ArchSpec = ArchSpec {
    name: "maple",
    models: "Maple 20B",
    windows: true,
    rotary: RotaryLayers::Windowed,
    clamp: Clamp::Gate,
    routing: LLAMA.routing,
    ..DOTS1
};

/// Reads attention. A factor on the values is rejected.
fn without_value_scale(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const SCALE: &str = "attention.value_scale";
    match layer.keys().f32(SCALE)? {
        None | Some(0.0 | 1.0) => layer.attention(),
        Some(scale) => Err(layer.keys().wrong_key(SCALE, "1: no factor on the values", scale)),
    }
}
