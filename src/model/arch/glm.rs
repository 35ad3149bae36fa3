//! ChatGLM 3, GLM-4 and GLM-Z1, and GLM-4.5 to 4.7 with experts.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use super::sections::consecutive;
use crate::{ArchSpec, BlockKind, Positions, QkNorm, Routing, RoutingKeys};

pub(super) const CHATGLM: ArchSpec =
    ArchSpec { name: "chatglm", models: "ChatGLM 3, GLM-4 9B, GLM-Edge", windows: false, ..LLAMA };

pub(super) const GLM4: ArchSpec = ArchSpec {
    name: "glm4",
    models: "GLM-4-0414 and GLM-Z1 9B and 32B, GLM-4.1V (text)",
    block: BlockKind::Sandwich,
    mixer: consecutive,
    ..CHATGLM
};

/// The first layers are dense.
pub(super) const GLM4MOE: ArchSpec = ArchSpec {
    name: "glm4moe",
    models: "GLM-4.5, 4.6 and 4.7, GLM-4.5 Air and 4.5V (text)",
    block: BlockKind::Sequential,
    qk_norm: Some(QkNorm { optional: true, ..QkNorm::HEADS }),
    positions: Positions::Rotary(Pairing::Halves),
    ffn_norm: "post_attention_norm",
    routing: Routing {
        scoring: Scoring::Sigmoid,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..GLM4
};
