//! DeepSeek: the first layers are dense, the others have experts and a shared expert. From version
//! 2 on with latent attention. From version 3.2 on, attention is sparse.

use hal::op::{Pairing, Scoring};

use super::llama::LLAMA;
use crate::{
    ArchSpec, Error, KvKind, LayerReader, Mixer, Routing, RoutingKeys, TemperatureKeys, YarnLog,
};

pub(super) const DEEPSEEK: ArchSpec = ArchSpec {
    name: "deepseek",
    models: "DeepSeek MoE 16B",
    windows: false,
    routing: Routing { renormalise: false, ..LLAMA.routing },
    ..LLAMA
};

pub(super) const DEEPSEEK2: ArchSpec = ArchSpec {
    name: "deepseek2",
    models: "DeepSeek V2 to V3.1 and R1, Kimi K2, GLM-4.7-Flash, Mistral Large 3",
    mixer: latent,
    kv: KvKind::Latent,
    yarn_log: YarnLog::Scores,
    temperature: TemperatureKeys::Length,
    routing: Routing {
        scoring: Scoring::Softmax,
        renormalise: false,
        keys: RoutingKeys::Both,
        ..LLAMA.routing
    },
    ..DEEPSEEK
};

pub(super) const DEEPSEEK32: ArchSpec = ArchSpec {
    name: "deepseek32",
    models: "DeepSeek V3.2",
    mixer: |layer| layer.sparse(layer.attention()?, Pairing::Halves, true),
    temperature: TemperatureKeys::None,
    ..DEEPSEEK2
};

pub(super) const GLM_DSA: ArchSpec = ArchSpec {
    name: "glm-dsa",
    models: "GLM-5, 5.1 and 5.2",
    mixer: |layer| layer.sparse(layer.attention()?, Pairing::Adjacent, layer.has_indexer()?),
    routing: Routing { scoring: Scoring::Sigmoid, ..DEEPSEEK2.routing },
    ..DEEPSEEK32
};

/// Reads latent attention. Files without the scoring of GLM-4.7-Flash are rejected.
fn latent(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    const SCORING: &str = "expert_gating_func";
    const GLM_VOCABULARY: u32 = 154_880;
    let keys = layer.keys();
    let n_vocab = keys.metadata.u32(&keys.name("vocab_size"))?;
    if n_vocab == Some(GLM_VOCABULARY) && keys.positive(SCORING)?.is_none() {
        let expected = "2 (sigmoid): the file was converted by an old version of llama.cpp";
        return Err(keys.wrong_key(SCORING, expected, "no such key"));
    }
    layer.attention()
}
