//! Ling and Ring (Bailing): experts with a shared expert; in version 2 in groups.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use crate::{ArchSpec, Positions, QkNorm, Routing, RoutingKeys};

pub(super) const BAILINGMOE: ArchSpec = ArchSpec {
    name: "bailingmoe",
    models: "Ling Lite and Plus",
    windows: false,
    routing: Routing { renormalise: false, keys: RoutingKeys::Norm, ..LLAMA.routing },
    ..LLAMA
};

/// The first layers are dense.
pub(super) const BAILINGMOE2: ArchSpec = ArchSpec {
    name: "bailingmoe2",
    models: "Ling and Ring 2.0: mini, flash and 1T",
    qk_norm: Some(QkNorm::HEADS),
    positions: Positions::Rotary(Pairing::Halves),
    routing: Routing { scoring: Scoring::Sigmoid, keys: RoutingKeys::Both, ..BAILINGMOE.routing },
    ..BAILINGMOE
};
