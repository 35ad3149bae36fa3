//! OLMo: norms without weights (1), norms after both halves of a layer (2 and 3), and experts.
//! Queries and keys of OLMo 2 and OLMoE are normalised as whole rows.

use hal::op::{NormKind, Pairing};

use super::llama::LLAMA;
use crate::{ArchSpec, BlockKind, GlobalLayers, LocalRope, NormSpan, Positions, QkNorm, Routing};

pub(super) const OLMO: ArchSpec = ArchSpec {
    name: "olmo",
    models: "OLMo 1B and 7B",
    norm: NormKind::Layer,
    norm_weights: false,
    windows: false,
    clamps: true,
    ..LLAMA
};

pub(super) const OLMO2: ArchSpec = ArchSpec {
    name: "olmo2",
    models: "OLMo 2 and 3",
    block: BlockKind::PostNorm,
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    // Layers with a sliding window do not scale RoPE.
    local_rope: LocalRope::Unscaled { base: None },
    windows: true,
    ..OLMOE
};

pub(super) const OLMOE: ArchSpec = ArchSpec {
    name: "olmoe",
    models: "OLMoE 1B-7B",
    qk_norm: Some(QkNorm { over: NormSpan::Row, ..QkNorm::HEADS }),
    positions: Positions::Rotary(Pairing::Halves),
    windows: false,
    routing: Routing { renormalise: false, ..LLAMA.routing },
    ..LLAMA
};
