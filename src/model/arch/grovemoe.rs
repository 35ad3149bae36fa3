//! GroveMoE: Qwen 3 with experts, chunks of which share a small block after them.

use super::qwen::QWEN3MOE;
use crate::ArchSpec;

pub(super) const GROVEMOE: ArchSpec = ArchSpec {
    name: "grovemoe",
    models: "GroveMoE 33B-A3.2B",
    chunk_experts: true,
    windows: false,
    ..QWEN3MOE
};
