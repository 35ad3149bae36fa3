//! Families with a dense feed-forward block in each layer.

use super::keys::{Build, Setting, flag, number};
use super::rule::{Rule, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, GATED, NORMS, QK, QK_NORMS, ROPE_QK, UP_DOWN, VO};
use super::table::LLAMA;
use super::{Family, rope, table, window};
use crate::Error;

/// Norms before attention, and before the feed-forward block under the name of its other place.
pub(super) const NORM_AND_POST: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
];
/// Norms after attention and after the feed-forward block.
const POST_NORMS: &[Rule] = &[
    same_name("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    same_name("layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm"),
];
const ONE_NORM: &[Rule] = &[same_name("layers.*.input_layernorm", "blk.*.attn_norm")];
/// A norm for each head, in the larger models.
pub(super) const OPTIONAL_QK_NORMS: &[Rule] = &[
    same_name("layers.*.self_attn.q_norm", "blk.*.attn_q_norm").optional(),
    same_name("layers.*.self_attn.k_norm", "blk.*.attn_k_norm").optional(),
];
pub(super) const HUNYUAN_QK_NORMS: &[Rule] = &[
    same_name("layers.*.self_attn.query_layernorm", "blk.*.attn_q_norm"),
    same_name("layers.*.self_attn.key_layernorm", "blk.*.attn_k_norm"),
];
/// Norms without weights.
const OLMO: &[Rule] = &[same_name("embed_tokens", "token_embd"), same_name("lm_head", "output")];
const STARCODER2: &[Rule] = &[
    same_name("layers.*.mlp.c_fc", "blk.*.ffn_up"),
    same_name("layers.*.mlp.c_proj", "blk.*.ffn_down"),
];
/// The larger models have a norm for each head, and parallel blocks with one norm.
const STABLELM: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm").optional(),
    same_name("layers.*.self_attn.q_layernorm.norms.*", "blk.*.attn_q_norm").optional(),
    same_name("layers.*.self_attn.k_layernorm.norms.*", "blk.*.attn_k_norm").optional(),
];
const PHI2: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("final_layernorm", "output_norm"),
    same_name("lm_head", "output"),
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v"),
    same_name("layers.*.self_attn.dense", "blk.*.attn_output"),
    same_name("layers.*.mlp.fc1", "blk.*.ffn_up"),
    same_name("layers.*.mlp.fc2", "blk.*.ffn_down"),
];
const GLM4: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_self_attn_layernorm", "blk.*.post_attention_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
    same_name("layers.*.post_mlp_layernorm", "blk.*.post_ffw_norm"),
];
/// Gates and the up projection in one matrix, which the file has, too.
const FUSED_GATE: &[Rule] = &[
    same_name("layers.*.mlp.gate_up_proj", "blk.*.ffn_up"),
    same_name("layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
pub(super) const TIED_HEAD: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
];

/// Granite's factors.
pub(super) const GRANITE_SCALES: &[Setting] = &[
    number("attention.scale", &["attention_multiplier"]),
    number("embedding_scale", &["embedding_multiplier"]),
    number("residual_scale", &["residual_multiplier"]),
    number("logit_scale", &["logits_scaling"]),
];
const COHERE: &[Setting] = &[number("logit_scale", &["logit_scale"])];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "granite",
        classes: &["GraniteForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        settings: GRANITE_SCALES,
        ..LLAMA
    },
    Family {
        arch: "olmo",
        classes: &["OlmoForCausalLM"],
        rules: &[OLMO, ROPE_QK, VO, GATED, UP_DOWN],
        settings: &[number("attention.clamp_kqv", &["clip_qkv"])],
        keys: olmo,
        ..LLAMA
    },
    Family {
        arch: "olmo2",
        classes: &["Olmo2ForCausalLM", "Olmo3ForCausalLM"],
        rules: &[EMBEDDINGS, POST_NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: windowed,
        ..LLAMA
    },
    Family {
        arch: "smollm3",
        classes: &["SmolLM3ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        keys: smollm3,
        ..LLAMA
    },
    Family {
        arch: "seed_oss",
        classes: &["SeedOssForCausalLM"],
        rules: &[EMBEDDINGS, NORM_AND_POST, QK, VO, GATED, UP_DOWN],
        ..LLAMA
    },
    Family {
        arch: "exaone4",
        classes: &["Exaone4ForCausalLM"],
        rules: &[EMBEDDINGS, POST_NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: windowed,
        ..LLAMA
    },
    Family {
        arch: "command-r",
        classes: &["CohereForCausalLM"],
        rules: &[TIED_HEAD, ONE_NORM, QK, OPTIONAL_QK_NORMS, VO, GATED, UP_DOWN],
        settings: COHERE,
        keys: layer_norm,
        ..LLAMA
    },
    Family {
        arch: "cohere2",
        classes: &["Cohere2ForCausalLM"],
        rules: &[TIED_HEAD, ONE_NORM, QK, VO, GATED, UP_DOWN],
        settings: COHERE,
        keys: cohere2,
        ..LLAMA
    },
    Family {
        arch: "starcoder2",
        classes: &["Starcoder2ForCausalLM"],
        activation: "gelu",
        rules: &[EMBEDDINGS, NORMS, QK, VO, STARCODER2],
        keys: starcoder2,
        ..LLAMA
    },
    Family {
        arch: "stablelm",
        classes: &["StableLmForCausalLM", "StableLMEpochForCausalLM"],
        rules: &[EMBEDDINGS, STABLELM, QK, VO, GATED, UP_DOWN],
        settings: &[flag("use_parallel_residual", &["use_parallel_residual"])],
        keys: stablelm,
        ..LLAMA
    },
    Family {
        arch: "phi2",
        classes: &["PhiForCausalLM"],
        activation: "gelu",
        rules: &[PHI2, ONE_NORM, QK],
        keys: phi2,
        ..LLAMA
    },
    Family {
        arch: "ernie4_5",
        classes: &["Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, GATED, UP_DOWN],
        ..LLAMA
    },
    Family {
        arch: "hunyuan-dense",
        classes: &["HunYuanDenseV1ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, HUNYUAN_QK_NORMS, VO, GATED, UP_DOWN],
        keys: hunyuan,
        ..LLAMA
    },
    Family {
        arch: "glm4",
        classes: &["Glm4ForCausalLM"],
        rules: &[EMBEDDINGS, GLM4, QK, VO, FUSED_GATE],
        keys: |build| rms(build, 0.5),
        ..LLAMA
    },
    Family {
        arch: "chatglm",
        classes: &["GlmForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, FUSED_GATE],
        keys: |build| rms(build, 0.5),
        ..LLAMA
    },
    Family {
        arch: "mistral3",
        classes: &["Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"],
        when: |config| config.text(&["model_type"]).ok().flatten().as_deref() != Some("mistral4"),
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        keys: mistral3,
        ..LLAMA
    },
    Family {
        arch: "qwen2vl",
        classes: &["Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, GATED, UP_DOWN],
        keys: |build| {
            table::qwen(build)?;
            rope::set_sections(build, [16, 24, 24, 0])
        },
        ..LLAMA
    },
    Family {
        arch: "qwen3vl",
        classes: &["Qwen3VLForConditionalGeneration"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: |build| {
            table::qwen(build)?;
            qwen3vl(build)
        },
        ..LLAMA
    },
];

/// RMS norms, and RoPE on a fraction of each head.
pub(super) fn rms(build: &mut Build<'_>, share: f32) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    build.rope(rope::n_rotated(build, share)?)
}

fn layer_norm(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.heads()?;
    build.rope(build.d_head()?)
}

fn olmo(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    // The norms have neither weights nor a setting.
    build.set("attention.layer_norm_epsilon", 1e-5_f32);
    build.rope(build.d_head()?)
}

/// Every fourth layer has global attention, if there is a window.
fn windowed(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    rope::set_window_base(build)?;
    window::set_listed(build, 4)
}

fn smollm3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["use_sliding_window"])? == Some(true) {
        return Err(config.wrong_value("use_sliding_window", "false, as in SmolLM3 3B", true));
    }
    rms(build, 1.0)?;
    let with_rope = window::layout(build, "no_rope_layers")?;
    let is_usual = |layers: &Vec<bool>| layers.iter().zip(1..).all(|(&has, i)| has == (i % 4 != 0));
    if with_rope.is_some_and(|layers| !is_usual(&layers)) {
        let expected = "RoPE in all layers but every fourth";
        return Err(config.wrong_value("no_rope_layers", expected, "a different list"));
    }
    Ok(())
}

fn cohere2(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.heads()?;
    window::set_listed(build, 4)?;
    if !build.has("attention.sliding_window") {
        return Err(build.config.missing("sliding_window", "the size of the sliding window"));
    }
    build.rope(rope::n_rotated(build, 1.0)?)
}

fn starcoder2(build: &mut Build<'_>) -> Result<(), Error> {
    layer_norm(build)?;
    window::set(build, |_| true)
}

fn stablelm(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.set("use_parallel_residual", false);
    build.rope(rope::n_rotated(build, 0.25)?)
}

fn phi2(build: &mut Build<'_>) -> Result<(), Error> {
    if build.config.bool(&["qk_layernorm"])? == Some(true) {
        return Err(build.config.wrong_value("qk_layernorm", "false, as in Phi 1 to 2", true));
    }
    build.sizes()?;
    build.feed_forward()?;
    build.layer_norm()?;
    build.rope(rope::n_rotated(build, 0.5)?)
}

/// The base of RoPE grows with `alpha`, so that the trained context is the stated one.
pub(super) fn hunyuan(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    let scaling = rope::settings(build.config)?;
    let base = build.config.f32(&["rope_theta"])?.or(scaling.f32(&["rope_theta"])?);
    let d_head = build.d_head()? as f32;
    if let Some(alpha) = scaling.f32(&["alpha"])?.filter(|&alpha| alpha != 0.0)
        && d_head > 2.0
    {
        if alpha < 0.0 {
            return Err(scaling.wrong_value("rope_scaling.alpha", "a positive number", alpha));
        }
        let base = base.unwrap_or(10_000.0) * alpha.powf(d_head / (d_head - 2.0));
        build.replace("rope.freq_base", base);
        build.notes.clear();
    }
    Ok(())
}

/// The sections of RoPE, and the number of layers that receive features of a picture.
pub(super) fn qwen3vl(build: &mut Build<'_>) -> Result<(), Error> {
    rope::set_sections(build, [24, 20, 20, 0])?;
    let vision = build.config.inner("vision_config")?;
    let n = vision.list("deepstack_visual_indexes")?.map_or(0, Vec::len);
    build.set("n_deepstack_layers", n as u32);
    Ok(())
}

/// Ministral 3 scales queries by their position; Mistral Small has neither that nor YaRN.
fn mistral3(build: &mut Build<'_>) -> Result<(), Error> {
    table::llama(build)?;
    let scaling = rope::settings(build.config)?;
    if let Some(beta) = scaling.f32(&["llama_4_scaling_beta"])? {
        build.set("attention.temperature_scale", beta);
    }
    rope::set_log(build, 1.0)
}
