//! Mellum 2: experts, and a sliding window in three of four layers.

use super::qwen::QWEN3MOE;
use crate::{ArchSpec, GlobalLayers, LocalRope};

pub(super) const MELLUM: ArchSpec = ArchSpec {
    name: "mellum",
    models: "Mellum 2",
    global_layers: Some(GlobalLayers { period: 4, first: false }),
    local_rope: LocalRope::Unscaled { base: None },
    ..QWEN3MOE
};
