//! Families with Kimi Delta Attention beside latent attention. Their files hold latent attention in its
//! absorbed form, with a matrix per head for keys and one for values, because llama.cpp reads no other.

use super::Family;
use super::experts::{DEEPSEEK, SHARED, SIGMOID, gating, leading_dense};
use super::hybrid::attention_or;
use super::keys::{Build, count, flag, whole};
use super::latent::{key_rows, n_head, part, value_rows};
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, NORMS, UP_DOWN};
use super::table::LLAMA;
use crate::Error;
use gguf::{Array, Value};

/// Rules of Kimi Delta Attention and of latent attention, whose tensors of the checkpoint start with
/// `layers.*.` and `$of`.
macro_rules! rules {
    ($of:literal, $delta:ident, $latent:ident) => {
        pub(super) const $delta: &[Rule] = &[
            same_name(concat!("layers.*.", $of, ".q_proj"), "blk.*.attn_q"),
            same_name(concat!("layers.*.", $of, ".k_proj"), "blk.*.attn_k"),
            same_name(concat!("layers.*.", $of, ".v_proj"), "blk.*.attn_v"),
            same_name(concat!("layers.*.", $of, ".q_conv1d"), "blk.*.ssm_conv1d_q")
                .reshape(Reshape::Filters),
            same_name(concat!("layers.*.", $of, ".k_conv1d"), "blk.*.ssm_conv1d_k")
                .reshape(Reshape::Filters),
            same_name(concat!("layers.*.", $of, ".v_conv1d"), "blk.*.ssm_conv1d_v")
                .reshape(Reshape::Filters),
            same_name(concat!("layers.*.", $of, ".b_proj"), "blk.*.ssm_beta"),
            same_name(concat!("layers.*.", $of, ".dt_bias"), "blk.*.ssm_dt.bias=")
                .reshape(Reshape::Flat),
            same_name(concat!("layers.*.", $of, ".o_norm"), "blk.*.ssm_norm"),
            same_name(concat!("layers.*.", $of, ".o_proj"), "blk.*.attn_output"),
        ];
        pub(super) const $latent: &[Rule] = &[
            same_name(concat!("layers.*.", $of, ".kv_a_proj_with_mqa"), "blk.*.attn_kv_a_mqa"),
            same_name(concat!("layers.*.", $of, ".kv_a_layernorm"), "blk.*.attn_kv_a_norm"),
            rule(
                concat!("layers.*.", $of, ".kv_b_proj"),
                "blk.*.attn_k_b",
                Transform::FirstRowsTransposed(key_rows),
            )
            .reshape(Reshape::Stack(n_head)),
            rule(
                concat!("layers.*.", $of, ".kv_b_proj"),
                "blk.*.attn_v_b",
                Transform::Rows(value_rows),
            )
            .reshape(Reshape::Stack(n_head)),
        ];
    };
}
rules!("self_attn", KIMI_DELTA, KIMI_LATENT);
rules!("attention", LING_DELTA, LING_LATENT);

/// The matrices of decay and gate, each as a product of two.
pub(super) const KIMI_LOW_RANK: &[Rule] = &[
    same_name("layers.*.self_attn.f_a_proj", "blk.*.ssm_f_a"),
    same_name("layers.*.self_attn.f_b_proj", "blk.*.ssm_f_b"),
    same_name("layers.*.self_attn.g_a_proj", "blk.*.ssm_g_a"),
    same_name("layers.*.self_attn.g_b_proj", "blk.*.ssm_g_b"),
];
const KIMI_RATES: &[Rule] = &[same_name("layers.*.self_attn.A_log", "blk.*.ssm_a=")
    .reshape(Reshape::Column)
    .scale(Scale::NegExp)];
const KIMI_ATTENTION: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
pub(super) const KIMI_EXPERTS: &[Rule] = &[
    same_name("layers.*.block_sparse_moe.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.block_sparse_moe.gate.e_score_correction_bias", "blk.*.exp_probs_b"),
    same_name("layers.*.block_sparse_moe.experts.*.w1", "blk.*.ffn_gate_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.w2", "blk.*.ffn_down_exps"),
    same_name("layers.*.block_sparse_moe.experts.*.w3", "blk.*.ffn_up_exps"),
    same_name("layers.*.block_sparse_moe.shared_experts.gate_proj", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.block_sparse_moe.shared_experts.up_proj", "blk.*.ffn_up_shexp"),
    same_name("layers.*.block_sparse_moe.shared_experts.down_proj", "blk.*.ffn_down_shexp"),
];

const LING_ENDS: &[Rule] = &[
    same_name("word_embeddings", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output"),
];
const LING_GATES: &[Rule] = &[
    // The name in checkpoints of `transformers`.
    same_name("layers.*.attention.dense", "blk.*.attn_output"),
    same_name("layers.*.attention.f_proj", "blk.*.ssm_f_a"),
    same_name("layers.*.attention.g_proj", "blk.*.ssm_g_a"),
    same_name("layers.*.attention.A_log", "blk.*.ssm_a=")
        .reshape(Reshape::Column)
        .scale(Scale::Exp),
];
const LING_ATTENTION: &[Rule] = &[
    same_name("layers.*.attention.g_proj", "blk.*.attn_gate"),
    same_name("layers.*.attention.dense", "blk.*.attn_output"),
];
const LING_WHOLE_QUERY: &[Rule] = &[same_name("layers.*.attention.q_proj", "blk.*.attn_q")];
const LING_LOW_RANK_QUERY: &[Rule] = &[
    same_name("layers.*.attention.q_a_proj", "blk.*.attn_q_a"),
    same_name("layers.*.attention.q_a_layernorm", "blk.*.attn_q_a_norm"),
    same_name("layers.*.attention.q_b_proj", "blk.*.attn_q_b"),
];
const LING_BIAS: &[Rule] = &[same_name("layers.*.mlp.gate.expert_bias", "blk.*.exp_probs_b.bias=")];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "kimi-linear",
        classes: &["KimiLinearForCausalLM", "KimiLinearModel"],
        rules: &[EMBEDDINGS, NORMS],
        some: &[
            (On::Recurrent, KIMI_DELTA),
            (On::Recurrent, KIMI_LOW_RANK),
            (On::Recurrent, KIMI_RATES),
            (On::Attention, KIMI_LATENT),
            (On::Attention, KIMI_ATTENTION),
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, KIMI_EXPERTS),
        ],
        settings: &[DEEPSEEK[0], DEEPSEEK[1], DEEPSEEK[4]],
        keys: kimi,
        ..LLAMA
    },
    Family {
        arch: "bailingmoe3",
        classes: &["BailingMoeV3ForCausalLM", "BailingHybridForCausalLM"],
        rules: &[LING_ENDS, NORMS],
        some: &[
            (On::Recurrent, LING_DELTA),
            (On::Recurrent, LING_GATES),
            (On::Attention, LING_LATENT),
            (On::Attention, LING_ATTENTION),
            (On::WholeQuery, LING_WHOLE_QUERY),
            (On::LowRankQuery, LING_LOW_RANK_QUERY),
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
            (On::Experts, EXPERTS),
            (On::Experts, LING_BIAS),
            (On::Experts, SHARED),
        ],
        settings: &[
            DEEPSEEK[0],
            DEEPSEEK[1],
            DEEPSEEK[3],
            DEEPSEEK[4],
            // The class of `transformers` stores them under other names.
            whole("expert_group_count", &["n_group", "num_expert_group"]),
            flag("expert_weights_norm", &["norm_topk_prob", "moe_renormalize"]),
            count("ssm.conv_kernel", &["short_conv_kernel_size"]),
            // `transformers` stores another size as `head_dim`.
            count("kda.head_dim", &["linear_head_dim", "head_dim"]),
            whole("expert_shared_feed_forward_length", &["moe_shared_expert_intermediate_size"]),
        ],
        keys: ling,
        ..LLAMA
    },
];

/// Sets the keys that both families share; `is_recurrent` says which layers have Kimi Delta Attention.
fn shared(build: &mut Build<'_>, is_recurrent: &[bool]) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    leading_dense(build)?;
    gating(build, SIGMOID)?;
    attention_or(build, is_recurrent)?;
    let kv = is_recurrent.iter().map(|&recurrent| i32::from(!recurrent)).collect();
    build.replace("attention.head_count_kv", Value::Array(Array::I32(kv)));
    let (d_rope, d_nope) = (part(build, "qk_rope_head_dim")?, part(build, "qk_nope_head_dim")?);
    let (rank, d_value) = (part(build, "kv_lora_rank")?, part(build, "v_head_dim")?);
    build.set("attention.kv_lora_rank", rank);
    build.set("attention.key_length", rank + d_rope);
    build.set("attention.key_length_mla", d_nope + d_rope);
    build.set("attention.value_length_mla", d_value);
    build.rope(d_rope)
}

/// For each layer, whether it has Kimi Delta Attention; a list has the others.
pub(super) fn full_layers(build: &Build<'_>) -> Result<Vec<bool>, Error> {
    let delta = build.config.inner("linear_attn_config")?;
    let Some(full) = delta.list("full_attn_layers")? else {
        let expected = "the layers with attention, from 1 on";
        return Err(build.config.missing("linear_attn_config.full_attn_layers", expected));
    };
    let is_listed = |layer: u32| full.iter().any(|n| n.as_u64() == Some(u64::from(layer)));
    Ok((1..=build.n_layer()?).map(|layer| !is_listed(layer)).collect())
}

fn kimi(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let delta = config.inner("linear_attn_config")?;
    let is_recurrent = full_layers(build)?;
    let wrong = |key: &str, expected: &str, found: String| {
        Err(config.wrong_value(key, &format!("{expected}, as in Kimi Linear 48B-A3B"), found))
    };
    let n_head = build.n_head()?;
    if let Some(other) = delta.u32(&["num_heads"])?.filter(|&n| n != n_head) {
        let expected = format!("{n_head}, as num_attention_heads");
        return wrong("linear_attn_config.num_heads", &expected, other.to_string());
    }
    for (key, usual) in [("mla_use_nope", true), ("moe_renormalize", true)] {
        if let Some(other) = config.bool(&[key])?.filter(|&found| found != usual) {
            return wrong(key, "true", other.to_string());
        }
    }
    if let Some(other) = config.text(&["moe_router_activation_func"])?.filter(|f| f != "sigmoid") {
        return wrong("moe_router_activation_func", "sigmoid", other);
    }
    if let Some(rank) = config.u32(&["q_lora_rank"])?.filter(|&rank| rank > 0) {
        return wrong("q_lora_rank", "null", rank.to_string());
    }
    for key in ["num_expert_group", "n_group"] {
        if let Some(n) = config.u32(&[key])?.filter(|&n| n > 1) {
            return wrong(key, "1", n.to_string());
        }
    }
    shared(build, &is_recurrent)?;
    let size = |key: &'static str| delta.count(&[key], "a size of Kimi Delta Attention");
    build.set("kda.head_dim", size("head_dim")?);
    build.set("ssm.conv_kernel", size("short_conv_kernel_size")?);
    Ok(())
}

fn ling(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    // The class of `transformers` has only this form, so its settings do not state it.
    let is_stated = config.text(&["model_type"])?.as_deref() != Some("bailing_hybrid");
    for (key, needed) in [("no_kda_lora", is_stated), ("kda_safe_gate", true)] {
        if !config.bool(&[key])?.unwrap_or(!needed) {
            return Err(config.wrong_value(key, "true, as in Ling 3.0", "false or none"));
        }
    }
    const GATES: &str = "gated_attention_proj_granularity_type";
    let gates = config.text(&[GATES])?;
    if gates.as_deref().is_some_and(|kind| kind != "head_wise") || gates.is_none() && is_stated {
        let found = gates.unwrap_or_default();
        return Err(config.wrong_value(GATES, "head_wise, as in Ling 3.0", found));
    }
    let group = config.count(&["layer_group_size"], "the layers up to one with attention")?;
    let n_layer = build.n_layer()?;
    let whole = n_layer / group * group;
    let is_recurrent: Vec<bool> = match build.kinds("layer_types")? {
        Some(kinds) => kinds.iter().map(|kind| kind == "linear_attention").collect(),
        None => {
            (0..n_layer).map(|layer| layer < whole && !(layer + 1).is_multiple_of(group)).collect()
        }
    };
    shared(build, &is_recurrent)?;
    build.set("kda.safe_gate", true);
    let bound = config.need_f32(&["kda_lower_bound"], "the bound of the logarithm of the decay")?;
    build.set("kda.gate_lower_bound", bound);
    let rank = config.u32(&["q_lora_rank"])?.filter(|&rank| rank > 0);
    if let Some(rank) = rank {
        build.set("attention.q_lora_rank", rank);
    }
    build.layers_on(On::LowRankQuery, |layer| rank.is_some() && !is_recurrent[layer as usize])?;
    build.layers_on(On::WholeQuery, |layer| rank.is_none() && !is_recurrent[layer as usize])?;
    limits(build, "swiglu_clamp_exp", "expert_swiglu_limit_list")?;
    limits(build, "swiglu_clamp_shexp", "share_expert_swiglu_limit_list")
}

/// Sets the limits of the neurons' values per layer, 0 for no limit, if the settings have such a
/// list.
fn limits(build: &mut Build<'_>, to: &str, from: &'static str) -> Result<(), Error> {
    let Some(list) = build.config.list(from)? else { return Ok(()) };
    let limit = |value: &serde_json::Value| {
        if value.is_null() { Some(0.0) } else { value.as_f64().map(|limit| limit as f32) }
    };
    let limits: Option<Vec<f32>> = list.iter().map(limit).collect();
    let Some(mut limits) = limits else {
        return Err(build.config.wrong_value(from, "numbers or null", "another value"));
    };
    limits.resize(build.n_layer()? as usize, 0.0);
    build.set(to, Value::Array(Array::F32(limits)));
    Ok(())
}
