//! The table of families.

use super::keys::Build;
use super::rules::*;
use super::{
    Family, custom, deepseek4, dense, embeddings, encoders, experts, gemma, glm5_next, granite,
    hrm, hybrid, kda, kimi_k3, latent, llama_like, mamba, nemotron, older, plamo, qwen4exp,
    ranking, rope, rwkv, sparse, talkie, window, windowed,
};
use crate::Error;

pub(super) const ALL: &[&[Family]] = &[
    // Before the families that share their classes.
    embeddings::FAMILIES,
    ranking::FAMILIES,
    FIRST,
    dense::FAMILIES,
    llama_like::FAMILIES,
    older::FAMILIES,
    granite::FAMILIES,
    experts::FAMILIES,
    latent::FAMILIES,
    deepseek4::FAMILIES,
    gemma::FAMILIES,
    hybrid::FAMILIES,
    kda::FAMILIES,
    kimi_k3::FAMILIES,
    glm5_next::FAMILIES,
    qwen4exp::FAMILIES,
    hrm::FAMILIES,
    talkie::FAMILIES,
    mamba::FAMILIES,
    nemotron::FAMILIES,
    custom::FAMILIES,
    sparse::FAMILIES,
    windowed::FAMILIES,
    rwkv::FAMILIES,
    plamo::FAMILIES,
    ENCODERS,
];

const FIRST: &[Family] = &[
    Family {
        classes: &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "SparseLlamaForCausalLM",
            "LlamaModel",
            "MistralForCausalLM",
            "MistralModel",
        ],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        power_infer: true,
        ..LLAMA
    },
    Family {
        classes: &["MixtralForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, MIXTRAL, EXPERTS],
        keys: mixtral,
        ..LLAMA
    },
    Family {
        arch: "bamboo",
        classes: &["BambooForCausalLM"],
        activation: "",
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        power_infer: true,
        ..LLAMA
    },
    Family {
        arch: "arcee",
        classes: &["ArceeForCausalLM"],
        activation: "relu2",
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, UP_DOWN],
        ..LLAMA
    },
    Family {
        arch: "falcon",
        classes: &["FalconForCausalLM", "RWForCausalLM"],
        activation: "gelu_erf",
        rules: &[FALCON],
        keys: falcon,
        power_infer: true,
        ..LLAMA
    },
    Family {
        arch: "opt",
        classes: &["OPTForCausalLM"],
        activation: "relu",
        rules: &[OPT],
        keys: opt,
        power_infer: true,
        ..LLAMA
    },
    Family {
        arch: "nemotron",
        classes: &["NemotronForCausalLM"],
        activation: "relu2",
        rules: &[EMBEDDINGS_PLUS_ONE, NORMS_PLUS_ONE, QK, VO, UP_DOWN],
        keys: nemotron,
        ..LLAMA
    },
    Family {
        arch: "jais2",
        classes: &["Jais2ForCausalLM"],
        activation: "relu2",
        rules: &[EMBEDDINGS, NORMS, QK, VO, UP_DOWN],
        keys: jais2,
        ..LLAMA
    },
    Family {
        arch: "plm",
        classes: &["PLMForCausalLM"],
        activation: "relu2",
        rules: &[EMBEDDINGS, NORMS, MLA, UP_DOWN],
        keys: plm,
        ..LLAMA
    },
    Family {
        arch: "smallthinker",
        classes: &["SmallThinkerForCausalLM"],
        activation: "relu",
        rules: &[EMBEDDINGS, NORMS, QK, VO, SMALLTHINKER],
        keys: smallthinker,
        ..LLAMA
    },
    Family {
        arch: "qwen2",
        classes: &["Qwen2ForCausalLM", "Qwen2Model"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, GATED, UP_DOWN],
        keys: qwen,
        ..LLAMA
    },
    Family {
        arch: "qwen3",
        classes: &["Qwen3ForCausalLM", "Qwen3Model"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: qwen,
        ..LLAMA
    },
    Family {
        arch: "qwen2moe",
        classes: &["Qwen2MoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, EXPERTS, SHARED_EXPERT],
        keys: qwen_moe,
        ..LLAMA
    },
    Family {
        arch: "qwen3moe",
        classes: &["Qwen3MoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, EXPERTS],
        keys: qwen_moe,
        ..LLAMA
    },
    Family {
        arch: "phi3",
        classes: &["Phi3ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, FUSED],
        keys: phi3,
        ..LLAMA
    },
    Family {
        arch: "gemma",
        classes: &["GemmaForCausalLM"],
        activation: "gelu",
        rules: &[TIED_PLUS_ONE, NORMS_PLUS_ONE, QK, VO, GATED, UP_DOWN],
        keys: gemma,
        space_prefix: Some(false),
        ..LLAMA
    },
    Family {
        arch: "gemma2",
        classes: &["Gemma2ForCausalLM"],
        activation: "gelu",
        rules: &[TIED_PLUS_ONE, FOUR_NORMS_PLUS_ONE, QK, VO, GATED, UP_DOWN],
        keys: gemma2,
        space_prefix: Some(false),
        ..LLAMA
    },
    GEMMA3,
    Family {
        arch: "gpt-oss",
        classes: &["GptOssForCausalLM"],
        activation: "",
        rules: &[EMBEDDINGS, QK, VO, GPT_OSS],
        keys: gpt_oss,
        ..LLAMA
    },
    Family {
        arch: "apertus",
        classes: &["ApertusForCausalLM"],
        activation: "",
        rules: &[EMBEDDINGS, QK, QK_NORMS, VO, UP_DOWN, APERTUS],
        ..LLAMA
    },
    Family {
        arch: "arctic",
        classes: &["ArcticForCausalLM"],
        rules: &[EMBEDDINGS, ROPE_QK, VO, MIXTRAL, ARCTIC],
        keys: mixtral,
        ..LLAMA
    },
];

const ENCODERS: &[Family] = &[
    encoders::BERT,
    encoders::BERT_RANKER,
    encoders::ROBERTA,
    encoders::ROBERTA_RANKER,
    encoders::NOMIC_BERT,
    encoders::MODERN_BERT,
    encoders::MODERN_BERT_RANKER,
    encoders::GEMMA_EMBEDDING,
];

pub(super) const GEMMA3: Family = Family {
    arch: "gemma3",
    classes: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    activation: "gelu",
    rules: &[TIED_PLUS_ONE, FOUR_NORMS_PLUS_ONE, QK, QK_NORMS_PLUS_ONE, VO, GATED, UP_DOWN],
    keys: gemma3,
    defaults: &[
        ("num_attention_heads", 8),
        ("num_key_value_heads", 4),
        ("head_dim", 256),
        ("query_pre_attn_scalar", 256),
        ("sliding_window", 4096),
    ],
    space_prefix: Some(false),
    ..LLAMA
};

/// Defaults shared by most families.
pub(super) const LLAMA: Family = Family {
    arch: "llama",
    classes: &[],
    when: |_| true,
    activation: "silu",
    rules: &[],
    some: &[],
    settings: &[],
    keys: llama,
    space_prefix: None,
    vocab: None,
    power_infer: false,
    defaults: &[],
};

pub(super) fn llama(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    window::set(build, |_| true)?;
    build.rope(build.d_head()?)
}

pub(super) fn mixtral(build: &mut Build<'_>) -> Result<(), Error> {
    llama(build)?;
    build.experts()
}

fn falcon(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for key in ["alibi", "bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false, as in Falcon 7B and 40B", true));
        }
    }
    // `config.json` of the published models does not state the context size.
    let n_ctx = config.u32(&["max_position_embeddings"])?.unwrap_or(2048);
    build.set("context_length", n_ctx);
    build.shape()?;
    let n_embd = build.n_embd()?;
    build.set("feed_forward_length", config.u32(&["ffn_hidden_size"])?.unwrap_or(4 * n_embd));
    build.set("tensor_data_layout", "jploski");
    build.layer_norm()?;
    rope::set(build, build.d_head()?)
}

fn opt(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["do_layer_norm_before"])? == Some(false) {
        return Err(config.wrong_value(
            "do_layer_norm_before",
            "true (only opt-350m has false)",
            false,
        ));
    }
    build.sizes()?;
    build.feed_forward()?;
    // `config.json` of the published models has no epsilon; 1e-5 is PyTorch's default.
    build.set("attention.layer_norm_epsilon", config.f32(super::keys::EPS)?.unwrap_or(1e-5));
    Ok(())
}

fn nemotron(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.heads()?;
    build.rope(rope::n_rotated(build, 0.5)?)
}

fn jais2(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.heads()?;
    build.rope(build.d_head()?)
}

fn plm(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let config = build.config;
    let rank = config.count(&["kv_lora_rank"], "the rank of the latent keys and values")?;
    let d_rope = config.count(&["qk_rope_head_dim"], "the number of values per head with RoPE")?;
    let d_nope =
        config.count(&["qk_nope_head_dim"], "the number of values per head without RoPE")?;
    let value = config.count(&["v_head_dim"], "the size of a value head")?;
    build.set("attention.kv_lora_rank", rank);
    build.set("attention.key_length", d_rope + d_nope);
    build.set("attention.value_length", value);
    build.rope(d_rope)
}

fn smallthinker(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.rms()?;
    build.heads()?;
    build.experts()?;
    let config = build.config;
    let n_ff = config.count(&["moe_ffn_hidden_size"], "the number of neurons in an expert")?;
    build.set("expert_feed_forward_length", n_ff);
    build.set("feed_forward_length", n_ff);
    let softmax = config.bool(&["moe_primary_router_apply_softmax"])?.unwrap_or(false);
    // 1 is softmax, 2 is the sigmoid.
    build.set("expert_gating_func", if softmax { 1_u32 } else { 2 });
    let windowed = window::layout(build, "sliding_window_layout")?;
    let windowed = windowed.filter(|layers| layers.contains(&true));
    let with_rope = window::layout(build, "rope_layout")?;
    // If there is a window, RoPE is applied in the layers that have it, otherwise in all layers.
    let n_layer = build.n_layer()? as usize;
    let expected = windowed.clone().unwrap_or_else(|| vec![true; n_layer]);
    if with_rope.is_some_and(|with_rope| with_rope != expected) {
        let expected = "1 for the layers with a window, or 1 for all layers if none has a window";
        return Err(config.wrong_value("rope_layout", expected, "a different list"));
    }
    if windowed.is_some() {
        window::set_layers(build, windowed, |i| i % 4 != 0)?;
    }
    build.rope(build.d_head()?)
}

pub(super) fn qwen(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    qwen_window(build)?;
    build.rope(build.d_head()?)
}

/// If `use_sliding_window` is true, sets the layers with a window: those in `layer_types`, or
/// from `max_window_layers` on.
fn qwen_window(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let listed = window::layer_types(build)?;
    if config.bool(&["use_sliding_window"])? != Some(true) {
        return if listed.is_some_and(|layers| layers.contains(&true)) {
            Err(config.wrong_value("use_sliding_window", "true, as in layer_types", "false"))
        } else {
            Ok(())
        };
    }
    if listed.is_none() && build.arch.ends_with("moe") {
        return Err(config.missing("layer_types", "a list of the layers with a sliding window"));
    }
    let (first, n_layer) = (config.u32(&["max_window_layers"])?.unwrap_or(28), build.n_layer()?);
    let layers = listed.unwrap_or_else(|| (0..n_layer).map(|layer| layer >= first).collect());
    window::set_layers(build, Some(layers), |_| true)
}

pub(super) fn qwen_moe(build: &mut Build<'_>) -> Result<(), Error> {
    qwen(build)?;
    experts_of(build)
}

/// Qwen's keys of experts.
pub(super) fn experts_of(build: &mut Build<'_>) -> Result<(), Error> {
    build.experts()?;
    let config = build.config;
    let n_ff = config.count(&["moe_intermediate_size"], "the number of neurons in an expert")?;
    build.set("expert_feed_forward_length", n_ff);
    if let Some(shared) = config.u32(&["shared_expert_intermediate_size"])? {
        build.set("expert_shared_feed_forward_length", shared);
    }
    if let Some(normed) = config.bool(&["norm_topk_prob"])? {
        build.set("expert_weights_norm", normed);
    }
    Ok(())
}

pub(super) fn phi3(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    window::set(build, |_| true)?;
    if !build.has("attention.sliding_window") {
        // 0 means no window.
        build.set("attention.sliding_window", 0_u32);
    }
    build.rope(rope::n_rotated(build, 1.0)?)
}

fn gemma(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    rope::set(build, build.d_head()?)
}

fn gemma2(build: &mut Build<'_>) -> Result<(), Error> {
    gemma(build)?;
    window::set(build, |i| i % 2 == 0)?;
    scale(build)?;
    softcaps(build)
}

/// Sets the scale of the attention scores if it does not follow from the head size.
fn scale(build: &mut Build<'_>) -> Result<(), Error> {
    let d_head = build.d_head()? as f32;
    match build.config.f32(&["query_pre_attn_scalar"])? {
        Some(scalar) if scalar > 0.0 && scalar != d_head => {
            build.set("attention.scale", scalar.powf(-0.5));
            Ok(())
        }
        Some(_) | None => Ok(()),
    }
}

fn softcaps(build: &mut Build<'_>) -> Result<(), Error> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(cap) = build.config.f32(&[key])? {
            build.set(key, cap);
        }
    }
    Ok(())
}

pub(super) fn gemma3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    // Some published `config.json` files rely on the defaults of `transformers`.
    build.set("context_length", config.u32(&["max_position_embeddings"])?.unwrap_or(131_072));
    build.shape()?;
    build.feed_forward()?;
    build
        .set("attention.layer_norm_rms_epsilon", config.f32(super::keys::RMS_EPS)?.unwrap_or(1e-6));
    build.heads()?;
    window::set_period(build, 6)?;
    scale(build)?;
    softcaps(build)?;
    rope::set_window_base(build)?;
    rope::set(build, build.d_head()?)?;
    if !build.has("rope.freq_base") {
        build.set("rope.freq_base", 1_000_000.0_f32);
    }
    Ok(())
}

fn gpt_oss(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    window::set(build, |i| i % 2 == 0)?;
    build.experts()?;
    let n_ff = build.config.count(&["intermediate_size"], "the number of neurons in an expert")?;
    build.set("expert_feed_forward_length", n_ff);
    build.rope(build.d_head()?)
}
