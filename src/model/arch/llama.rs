//! Llama 1 to 3, CodeLlama, Mistral, Mixtral, TinyLlama, and their ReLU variants (ReluLLaMA,
//! ProSparse).

use hal::op::{Activation, FfnKind, NormKind, Pairing, Scoring};

use crate::{
    ArchSpec, BlockKind, Error, KvKind, LayerReader, Mixer, Positions, PredictorInput, RouterInput,
    Routing,
};

/// The base of most other families, which change a few fields.
pub(super) const LLAMA: ArchSpec = ArchSpec {
    name: "llama",
    models: "Llama 1 to 3.x, CodeLlama, Mistral with its window, Mixtral, TinyLlama; ReLU: ReluLLaMA, ProSparse",
    norm: NormKind::Rms,
    eps: None,
    block: BlockKind::Sequential,
    mixer: attention,
    attention: true,
    kv: KvKind::Direct,
    qk_norm: false,
    v_norm: false,
    keys_as_values: false,
    gated_attention: false,
    positions: Positions::Rotary(Pairing::Adjacent),
    window: None,
    global_layers: None,
    global_rotary: true,
    local_base: None,
    scaled_embedding: false,
    scale_keys: false,
    attn_scale: None,
    attn_softcap: 0.0,
    logit_softcap: 0.0,
    width_scaled: None,
    feed_forward: true,
    ffn: FfnKind::Gated,
    activation: Activation::Silu,
    sparse_activation: Activation::Relu,
    predictor_input: PredictorInput::Residual,
    ffn_norm: "ffn_norm",
    output_norm: "output_norm",
    dense_beside_experts: false,
    rank_softmax: false,
    routing: Routing { input: RouterInput::Ffn, scoring: Scoring::Softmax, renormalise: true },
};

fn attention(layer: &LayerReader<'_>) -> Result<Mixer, Error> {
    layer.attention()
}
