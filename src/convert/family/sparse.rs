//! More families with experts: Ling 2, MiMo 2, Laguna, Command A with experts, DBRX.

use super::dense::{TIED_HEAD, rms};
use super::experts::{
    DEEPSEEK, SHARED, SIGMOID, SOFTMAX, gating, leading_dense, set_dense_by_kind,
};
use super::keys::{Build, Setting, count, number, whole};
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, MIXTRAL, NORMS, QK, QK_NORMS, UP_DOWN, VO};
use super::table::LLAMA;
use super::{Family, rope, table, window};
use crate::Error;
use gguf::{Array, Value};

const BAILING: &[Rule] = &[
    same_name("word_embeddings", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output"),
    same_name("layers.*.attention.query_key_value", "blk.*.attn_qkv"),
    same_name("layers.*.attention.query_layernorm", "blk.*.attn_q_norm"),
    same_name("layers.*.attention.key_layernorm", "blk.*.attn_k_norm"),
    same_name("layers.*.attention.dense", "blk.*.attn_output"),
];
const BAILING_BIAS: &[Rule] =
    &[same_name("layers.*.mlp.gate.expert_bias", "blk.*.exp_probs_b.bias=").optional()];
const MIMO_KEY_VALUE: &[Rule] = &[
    same_name("layers.*.self_attn.k_proj", "blk.*.attn_k"),
    // The file has no factor on values; it is linear, so the matrix takes it.
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v").scale(Scale::Times(value_scale)),
];
const MIMO_SINKS: &[Rule] =
    &[same_name("layers.*.self_attn.attention_sink_bias", "blk.*.attn_sinks.weight=")];
const MIMO: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
const SELECTION: &[Rule] =
    &[same_name("layers.*.mlp.gate.e_score_correction_bias", "blk.*.exp_probs_b")];
/// Layers with and without a window have different numbers of heads.
const LAGUNA_HEADS: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
    same_name("layers.*.self_attn.g_proj", "blk.*.attn_gate"),
];
const LAGUNA: &[Rule] = &[
    same_name("layers.*.self_attn.k_proj", "blk.*.attn_k"),
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v"),
];
const LAGUNA_EXPERTS: &[Rule] = &[
    same_name("layers.*.mlp.experts.e_score_correction_bias", "blk.*.exp_probs_b"),
    same_name("layers.*.mlp.shared_expert.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.mlp.shared_expert.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.mlp.shared_expert.down_proj", "blk.*.ffn_down_shexp"),
];
const COHERE_NORM: &[Rule] = &[same_name("layers.*.input_layernorm", "blk.*.attn_norm")];
/// Rows of all experts follow each other in one matrix.
const DBRX: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("norm_f", "output_norm"),
    same_name("lm_head", "output"),
    same_name("blocks.*.norm_attn_norm.norm_1", "blk.*.attn_norm"),
    same_name("blocks.*.norm_attn_norm.norm_2", "blk.*.attn_output_norm"),
    same_name("blocks.*.norm_attn_norm.attn.Wqkv", "blk.*.attn_qkv"),
    same_name("blocks.*.norm_attn_norm.attn.out_proj", "blk.*.attn_output"),
    same_name("blocks.*.ffn.router.layer", "blk.*.ffn_gate_inp"),
    same_name("blocks.*.ffn.experts.mlp.w1", "blk.*.ffn_gate_exps")
        .reshape(Reshape::Stack(dbrx_experts)),
    same_name("blocks.*.ffn.experts.mlp.v1", "blk.*.ffn_up_exps")
        .reshape(Reshape::Stack(dbrx_experts)),
    rule("blocks.*.ffn.experts.mlp.w2", "blk.*.ffn_down_exps", Transform::Columns)
        .reshape(Reshape::Stack(dbrx_experts)),
];

/// A block of neurons for each chunk of experts.
const GROVE_CHUNKS: &[Rule] = &[
    same_name("layers.*.mlp.chunk_experts.*.gate_proj", "blk.*.ffn_gate_chexps"),
    same_name("layers.*.mlp.chunk_experts.*.up_proj", "blk.*.ffn_up_chexps"),
    same_name("layers.*.mlp.chunk_experts.*.down_proj", "blk.*.ffn_down_chexps"),
    // The model's code does not use it.
    rule("layers.*.mlp.expert_bias", "", Transform::Drop),
];

const MIMO_SETTINGS: &[Setting] = &[
    count("expert_feed_forward_length", &["moe_intermediate_size"]),
    count("attention.value_length", &["v_head_dim"]),
];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "bailingmoe2",
        classes: &["BailingMoeV2ForCausalLM"],
        rules: &[BAILING, NORMS],
        some: &[
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, BAILING_BIAS),
            (On::Experts, SHARED),
        ],
        settings: DEEPSEEK,
        keys: bailing,
        ..LLAMA
    },
    Family {
        arch: "mimo2",
        classes: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, MIMO],
        some: &[
            (On::Local, MIMO_KEY_VALUE),
            (On::Global, MIMO_KEY_VALUE),
            (On::LocalKey, MIMO_SINKS),
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, SELECTION),
        ],
        settings: MIMO_SETTINGS,
        keys: mimo,
        ..LLAMA
    },
    Family {
        arch: "laguna",
        classes: &["LagunaForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, LAGUNA, QK_NORMS],
        some: &[
            (On::Local, LAGUNA_HEADS),
            (On::Global, LAGUNA_HEADS),
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, LAGUNA_EXPERTS),
        ],
        settings: &[
            count("expert_feed_forward_length", &["moe_intermediate_size"]),
            count("expert_shared_feed_forward_length", &["shared_expert_intermediate_size"]),
            number("expert_weights_scale", &["moe_routed_scaling_factor"]),
        ],
        keys: laguna,
        ..LLAMA
    },
    Family {
        arch: "cohere2moe",
        classes: &["Cohere2MoeForCausalLM"],
        rules: &[TIED_HEAD, COHERE_NORM, QK, VO],
        some: &[
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, SHARED),
        ],
        settings: &[
            number("logit_scale", &["logit_scale"]),
            count("expert_feed_forward_length", &["intermediate_size"]),
            whole("expert_shared_count", &["num_shared_experts"]),
        ],
        keys: cohere,
        ..LLAMA
    },
    Family {
        arch: "grovemoe",
        classes: &["GroveMoeForCausalLM", "modeling_grove_moe.GroveMoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, EXPERTS, GROVE_CHUNKS],
        keys: grovemoe,
        ..LLAMA
    },
    Family {
        arch: "phimoe",
        classes: &["PhiMoEForCausalLM", "PhimoeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, MIXTRAL],
        keys: phimoe,
        ..LLAMA
    },
    Family { arch: "dbrx", classes: &["DbrxForCausalLM"], rules: &[DBRX], keys: dbrx, ..LLAMA },
];

fn bailing(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 0.5)?;
    leading_dense(build)?;
    gating(build, SIGMOID)?;
    let config = build.config;
    for key in ["use_bias", "use_qkv_bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false, as in Ling 2.0", true));
        }
    }
    let n_ff = config.count(&["moe_intermediate_size"], "the number of neurons in an expert")?;
    let n_shared = config.u32(&["num_shared_experts"])?.unwrap_or(0);
    let shared = config.u32(&["moe_shared_expert_intermediate_size"])?;
    let shared = shared.unwrap_or(n_ff.saturating_mul(n_shared));
    build.set("expert_shared_feed_forward_length", shared);
    Ok(())
}

fn value_scale(build: &Build<'_>) -> Result<f32, Error> {
    Ok(build.config.f32(&["attention_value_scale"])?.unwrap_or(1.0))
}

/// The layers with a sliding window: by kind, or 1 in the list of the model's own code.
fn local_layers(build: &Build<'_>) -> Result<Option<Vec<bool>>, Error> {
    Ok(window::layer_types(build)?.or(window::layout(build, "hybrid_layer_pattern")?))
}

fn mimo(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.feed_forward()?;
    let eps = config.f32(&["layernorm_epsilon", "rms_norm_eps"])?.unwrap_or(1e-5);
    build.set("attention.layer_norm_rms_epsilon", eps);
    build.heads()?;
    // `copy` sets it to the size of a value.
    let Some(local) = local_layers(build)? else {
        return Err(config.missing("hybrid_layer_pattern", "1 for each layer with a window"));
    };
    for key in ["head_dim", "num_attention_heads", "v_head_dim"] {
        let (own, all) = (config.u32(&[&format!("swa_{key}")])?, config.u32(&[key])?);
        if own.is_some() && own != all {
            let expected = format!("the same as {key}, as in MiMo V2 Flash");
            return Err(config.wrong_value(&format!("swa_{key}"), &expected, "another"));
        }
    }
    let n_kv = build.n_head_kv()?;
    let n_local = config.u32(&["swa_num_key_value_heads"])?.unwrap_or(2 * n_kv);
    let heads = local.iter().map(|&local| (if local { n_local } else { n_kv }) as i32).collect();
    build.replace("attention.head_count_kv", Value::Array(Array::I32(heads)));
    let window = config.count(&["sliding_window", "sliding_window_size"], "the window's size")?;
    build.set("attention.sliding_window", window);
    build.set("attention.sliding_window_pattern", Value::Array(Array::Bool(local.clone())));
    build.layers_on(On::Local, |layer| local[layer as usize])?;
    build.layers_on(On::Global, |layer| !local[layer as usize])?;
    let flag = |key: &'static str, usual| Ok::<_, Error>(config.bool(&[key])?.unwrap_or(usual));
    let (sinks, in_all) =
        (flag("add_swa_attention_sink_bias", true)?, flag("add_full_attention_sink_bias", false)?);
    build.layers_on(On::LocalKey, |layer| if local[layer as usize] { sinks } else { in_all })?;
    mimo_experts(build)?;
    rope::set_window_base(build)?;
    if let Some(base) = config.f32(&["swa_rope_theta"])? {
        build.replace("rope.freq_base_swa", base);
    }
    build.rope(rope::n_rotated(build, 0.334)?)
}

fn mimo_experts(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, usual) in [("n_group", 1), ("topk_group", 1)] {
        if let Some(other) = config.u32(&[key])?.filter(|&n| n != usual) {
            return Err(config.wrong_value(key, "1, as in MiMo V2 Flash", other));
        }
    }
    if let Some(other) = config.f32(&["routed_scaling_factor"])?.filter(|&scale| scale != 1.0) {
        return Err(config.wrong_value("routed_scaling_factor", "1, as in MiMo V2 Flash", other));
    }
    if config.bool(&["norm_topk_prob"])? == Some(false) {
        return Err(config.wrong_value("norm_topk_prob", "true, as in MiMo V2 Flash", false));
    }
    let sparse = match (build.kinds("mlp_layer_types")?, config.list("moe_layer_freq")?) {
        (Some(kinds), _) => kinds.iter().map(|kind| kind == "sparse").collect(),
        (None, Some(_)) => window::layout(build, "moe_layer_freq")?.unwrap_or_default(),
        (None, None) => return Err(config.missing("moe_layer_freq", "1 for layers with experts")),
    };
    build.layers_on(On::Experts, |layer| sparse[layer as usize])?;
    build.layers_on(On::Dense, |layer| !sparse[layer as usize])?;
    gating(build, SIGMOID)
}

fn laguna(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    rms(build, 1.0)?;
    let cap = config.f32(&["moe_router_logit_softcapping"])?.unwrap_or(0.0);
    if cap != 0.0 {
        let expected = "0, as in Laguna XS and M";
        return Err(config.wrong_value("moe_router_logit_softcapping", expected, cap));
    }
    if config.bool(&["moe_apply_router_weight_on_input"])? == Some(true) {
        return Err(config.wrong_value("moe_apply_router_weight_on_input", "false", true));
    }
    let local = window::layer_types(build)?.unwrap_or_default();
    let is_local = |layer: u32| local.get(layer as usize).copied().unwrap_or(false);
    build.layers_on(On::Local, is_local)?;
    build.layers_on(On::Global, |layer| !is_local(layer))?;
    if local.contains(&true) {
        window::set_layers(build, Some(local), |_| false)?;
        rope::set_window_base(build)?;
        let own = config.inner("rope_parameters")?.inner("sliding_attention")?;
        let share = own.f32(&["partial_rotary_factor"])?.unwrap_or(1.0);
        let n_rot = (build.d_head()? as f32 * share) as u32;
        build.set("rope.dimension_count_swa", n_rot);
    }
    if let Some(heads) = config.list("num_attention_heads_per_layer")? {
        let number = |n: &serde_json::Value| i32::try_from(n.as_u64()?).ok();
        let heads: Option<Vec<i32>> = heads.iter().map(number).collect();
        let n_layer = build.n_layer()? as usize;
        let heads = heads.filter(|heads| heads.len() == n_layer).ok_or_else(|| {
            config.missing("num_attention_heads_per_layer", "a number for each layer")
        })?;
        build.replace("attention.head_count", Value::Array(Array::I32(heads)));
    }
    build.set("leading_dense_block_count", 0_u32);
    set_dense_by_kind(build)?;
    build.set("expert_weights_norm", true);
    gating(build, SIGMOID)
}

fn cohere(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    let keys = &["prefix_dense_intermediate_size", "intermediate_size"];
    build.set("feed_forward_length", config.count(keys, "the number of neurons in a layer")?);
    if let Some(eps) = config.f32(&["rms_norm_eps"])? {
        let expected = "null: the published models have a LayerNorm";
        return Err(config.wrong_value("rms_norm_eps", expected, eps));
    }
    build.layer_norm()?;
    build.heads()?;
    window::set_listed(build, 4)?;
    leading_dense(build)?;
    set_dense_by_kind(build)?;
    let has_dense = build.layers.get(&On::Dense).is_some_and(|layers| layers.contains(&true));
    let pattern = config.u32(&["prefix_dense_sliding_window_pattern"])?.unwrap_or(1);
    if has_dense && pattern != 1 {
        let key = "prefix_dense_sliding_window_pattern";
        return Err(config.wrong_value(key, "1: dense layers have RoPE", pattern));
    }
    let selection = config.text(&["expert_selection_fn"])?;
    let function = match selection.as_deref() {
        Some("softmax") => SOFTMAX,
        Some("sigmoid") => SIGMOID,
        other => {
            let found = other.unwrap_or("missing").to_owned();
            return Err(config.wrong_value("expert_selection_fn", "softmax or sigmoid", found));
        }
    };
    // The softmax is over the chosen experts.
    let normed = function == SOFTMAX || config.bool(&["norm_topk_prob"])?.unwrap_or(false);
    build.set("expert_weights_norm", normed);
    build.set("expert_gating_func", function);
    build.experts()?;
    let n_shared = config.u32(&["num_shared_experts"])?.unwrap_or(0);
    if n_shared > 0 {
        let key = "shared_expert_combination_strategy";
        if let Some(other) = config.text(&[key])?.filter(|how| how != "average") {
            return Err(config.wrong_value(key, "average", other));
        }
        let n_ff = config.count(&["intermediate_size"], "the number of neurons in an expert")?;
        build.set("expert_shared_feed_forward_length", n_ff.saturating_mul(n_shared));
    }
    build.rope(build.d_head()?)
}

/// llama.cpp's files cannot say what the model computes; see `docs/convert.md`.
fn phimoe(build: &mut Build<'_>) -> Result<(), Error> {
    table::phi3(build)?;
    build.experts()?;
    let scaling = rope::settings(build.config)?;
    let (short, long) = (scaling.f32(&["short_mscale"])?, scaling.f32(&["long_mscale"])?);
    if let (Some(short), Some(long)) = (short, long) {
        if short != long {
            let expected = format!("{long}, as long_mscale: a file has one magnitude");
            return Err(scaling.wrong_value("rope_scaling.short_mscale", &expected, short));
        }
        build.replace("rope.scaling.attn_factor", long);
    }
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    if let Some(original) = build.config.u32(&["original_max_position_embeddings"])?
        && !build.has(ORIGINAL)
    {
        build.set(ORIGINAL, original);
    }
    build.notes.push("the results differ from those of PyTorch: files of the architecture `phimoe` mean RMS norms and weights of experts with the sum 1, as llama.cpp computes them, but the model has LayerNorm and weighs its two experts one after the other (SparseMixer)".to_owned());
    Ok(())
}

fn grovemoe(build: &mut Build<'_>) -> Result<(), Error> {
    table::qwen_moe(build)?;
    // These three are numbers in the model's code.
    let n_ff = build.config.u32(&["head_dim"])?.unwrap_or(128);
    build.set("expert_chunk_feed_forward_length", n_ff);
    build.set("experts_per_group", 2_u32);
    build.set("expert_group_scale", 0.05_f32);
    Ok(())
}

fn dbrx_experts(build: &Build<'_>) -> Result<u32, Error> {
    build.config.inner("ffn_config")?.count(&["moe_num_experts"], "the number of experts")
}

fn dbrx(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let (attention, ffn) = (config.inner("attn_config")?, config.inner("ffn_config")?);
    build.set("context_length", config.count(&["max_seq_len"], "the context length")?);
    build.shape()?;
    let n_kv = attention.count(&["kv_n_heads"], "the number of key and value heads")?;
    build.replace("attention.head_count_kv", n_kv);
    let n_ff = ffn.count(&["ffn_hidden_size"], "the number of neurons in an expert")?;
    build.set("feed_forward_length", n_ff);
    // The norms have no setting.
    build.set("attention.layer_norm_epsilon", 1e-5_f32);
    let limit = attention.need_f32(&["clip_qkv"], "the limit of queries, keys and values")?;
    build.set("attention.clamp_kqv", limit);
    if let Some(other) = ffn.f32(&["moe_normalize_expert_weights"])?.filter(|&norm| norm != 1.0) {
        return Err(ffn.wrong_value("moe_normalize_expert_weights", "1, as in DBRX", other));
    }
    build.set("expert_count", dbrx_experts(build)?);
    build.set("expert_used_count", ffn.count(&["moe_top_k"], "the experts per token")?);
    build.rope(build.d_head()?)?;
    if let Some(base) = attention.f32(&["rope_theta"])? {
        build.replace("rope.freq_base", base);
    }
    Ok(())
}
