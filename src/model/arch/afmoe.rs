//! AFMoE: gated attention, norms before and after both halves of a layer, and dense first layers.

use hal::op::{GateActivation, Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, Factor, GateKind, GlobalLayers, Positions, QkNorm, RotaryLayers, Routing,
    RoutingKeys, ScaleRules,
};

pub(super) const AFMOE: ArchSpec = ArchSpec {
    name: "afmoe",
    models: "Arcee Trinity Nano, Mini and Large",
    block: BlockKind::Sandwich,
    qk_norm: Some(QkNorm::HEADS),
    gate: GateKind::Matrix { activation: GateActivation::Sigmoid, optional: false },
    positions: Positions::Rotary(Pairing::Halves),
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    rotary: RotaryLayers::AllBut { period: 4 },
    scales: ScaleRules { embedding: Factor::RootWidth, ..ScaleRules::NONE },
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..LLAMA
};
