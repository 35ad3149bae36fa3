//! gpt-oss: attention with sinks, a sliding window in every other layer, a clamped SwiGLU, and
//! biases on all matrices.

use hal::op::{Activation, Pairing, Scoring};

use super::llama::LLAMA;
use crate::{ArchSpec, GlobalLayers, Positions, Routing};

pub(super) const GPT_OSS: ArchSpec = ArchSpec {
    name: "gpt-oss",
    models: "gpt-oss 20B and 120B",
    positions: Positions::Rotary(Pairing::Halves),
    global_layers: Some(GlobalLayers { period: 2, first: false }),
    activation: Activation::SwigluOai { alpha: 1.702, limit: 7.0 },
    ffn_norm: "post_attention_norm",
    routing: Routing { scoring: Scoring::SoftmaxChosen, renormalise: false, ..LLAMA.routing },
    ..LLAMA
};
