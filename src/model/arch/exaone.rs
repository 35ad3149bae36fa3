//! EXAONE 3 (a Llama), EXAONE 4 (norms after both halves of a layer, and RoPE only in layers with
//! a sliding window), and K-EXAONE with experts.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, BlockKind, GlobalLayers, Positions, QkNorm, RotaryLayers, Routing, RoutingKeys,
};

pub(super) const EXAONE: ArchSpec = ArchSpec {
    name: "exaone",
    models: "EXAONE 3 and 3.5",
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    ..LLAMA
};

pub(super) const EXAONE4: ArchSpec = ArchSpec {
    name: "exaone4",
    models: "EXAONE 4 1.2B and 32B",
    block: BlockKind::PostNorm,
    qk_norm: Some(QkNorm::HEADS),
    windows: true,
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    rotary: RotaryLayers::Windowed,
    ..EXAONE
};

/// The first layers are dense.
pub(super) const EXAONE_MOE: ArchSpec = ArchSpec {
    name: "exaone-moe",
    models: "K-EXAONE 236B-A23B",
    block: BlockKind::Sequential,
    window: Some(128),
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..EXAONE.routing
    },
    ..EXAONE4
};
