//! Llama 1 to 3, CodeLlama, Mistral, Mixtral, TinyLlama, and their ReLU variants (ReluLLaMA,
//! ProSparse).

use hal::op::{Activation, FfnKind, NormKind, Pairing, Scoring};

use crate::{
    Alibi, ArchSpec, BlockKind, Clamp, DenseBeside, EmbeddingNorm, Error, GateKind, KvKind,
    LayerReader, LocalRope, Mixer, Positions, PredictorInput, RankActivation, RotaryLayers,
    RouterInput, Routing, RoutingKeys, ScaleRules, ScoreScale, TemperatureKeys, YarnLog,
};

/// The base of most other families, which change a few fields.
pub(super) const LLAMA: ArchSpec = ArchSpec {
    name: "llama",
    models: "Llama 1 to 3.x, CodeLlama, Mistral with its window, Mixtral, TinyLlama; ReLU: ReluLLaMA, ProSparse",
    encoder: false,
    norm: NormKind::Rms,
    norm_weights: true,
    eps: None,
    block: BlockKind::Sequential,
    mixer: attention,
    attention: true,
    kv: KvKind::Direct,
    qk_norm: None,
    v_norm: false,
    keys_as_values: false,
    gate: GateKind::None,
    positions: Positions::Rotary(Pairing::Adjacent),
    windows: true,
    alibi: Alibi::None,
    window: None,
    chunk: None,
    global_layers: None,
    rotary: RotaryLayers::All,
    yarn_log: YarnLog::Ignored,
    half_rotary: false,
    local_rope: LocalRope::Scaled,
    scales: ScaleRules::NONE,
    halves: false,
    altup: false,
    gaussian_cut: None,
    clamps: false,
    temperature: TemperatureKeys::None,
    attn_scale: ScoreScale::PerRootHeadSize,
    attn_softcap: 0.0,
    logit_softcap: 0.0,
    width_scaled: None,
    half_n_ff: false,
    feed_forward: true,
    ffn: FfnKind::Gated,
    activation: Activation::Silu,
    clamp: Clamp::None,
    sparse_activation: Activation::Relu,
    predictor_input: PredictorInput::Residual,
    ffn_names: ["ffn_up", "ffn_down"],
    ffn_norm: "ffn_norm",
    embedding_norm: EmbeddingNorm::None,
    post_norm_eps: None,
    output_norm: "output_norm",
    dense_beside: DenseBeside::None,
    rank_activation: RankActivation::Tanh,
    rank_softmax: false,
    routing: Routing {
        input: RouterInput::Ffn,
        scoring: Scoring::Softmax,
        renormalise: true,
        scales_input: false,
        averages: false,
        keys: RoutingKeys::None,
    },
};

fn attention(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    layer.attention()
}
