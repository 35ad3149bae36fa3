//! DeepSeek-V4: attention with one KV head over a sliding window and compressed keys, hash routing in
//! the first layers, and several residual streams that all blocks mix.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, Clamp, Error, KvKind, LayerReader, LocalRope, Mixer, Positions, Routing, RoutingKeys,
    StreamEndKind,
};

pub(super) const DEEPSEEK4: ArchSpec = ArchSpec {
    name: "deepseek4",
    models: "DeepSeek V4 and V4 Flash",
    mixer,
    kv: KvKind::Single,
    positions: Positions::Rotary(Pairing::Adjacent),
    windows: false,
    local_rope: LocalRope::Unscaled { base: None },
    hyper_connections: Some(StreamEndKind::Weighted),
    hash_routing: true,
    clamp: Clamp::Gate,
    routing: Routing {
        scoring: Scoring::SqrtSoftplus,
        renormalise: true,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..LLAMA
};

fn mixer(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const SCORING: &str = "expert_gating_func";
    let keys = layer.keys();
    match keys.metadata.u32(&keys.name(SCORING))? {
        None | Some(4) => {}
        Some(other) => return Err(keys.wrong_key(SCORING, "4: sqrt(softplus)", other)),
    }
    // Biases for tokens of images, in files of the vision model.
    layer.skip("exp_probs_b_vl.bias");
    layer.single_kv()
}
