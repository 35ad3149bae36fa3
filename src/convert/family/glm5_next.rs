//! GLM-5.3-Flash: Kimi Delta Attention beside sparse latent attention, between residual streams.

use super::Family;
use super::experts::{
    DEEPSEEK, SELECTION_BIAS, SHARED, SIGMOID, gating, leading_dense, set_dense_by_kind,
};
use super::hybrid::attention_or;
use super::kda::{KIMI_DELTA, KIMI_LATENT, KIMI_LOW_RANK};
use super::keys::{Build, Setting, count};
use super::latent::{INDEXER, LOW_RANK_QUERY, part};
use super::rule::{On, Reshape, Rule, Scale, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, NORMS, UP_DOWN};
use super::table::LLAMA;
use crate::Error;
use gguf::{Array, Value};

pub(super) const STREAMS: &[Rule] = &[
    same_name("layers.*.hc_attn_fn", "blk.*.hc_attn_fn"),
    same_name("layers.*.hc_attn_base", "blk.*.hc_attn_base"),
    same_name("layers.*.hc_attn_scale", "blk.*.hc_attn_scale"),
    same_name("layers.*.hc_ffn_fn", "blk.*.hc_ffn_fn"),
    same_name("layers.*.hc_ffn_base", "blk.*.hc_ffn_base"),
    same_name("layers.*.hc_ffn_scale", "blk.*.hc_ffn_scale"),
];
const RATES: &[Rule] = &[same_name("layers.*.self_attn.A_log", "blk.*.ssm_a=")
    .reshape(Reshape::Flat)
    .scale(Scale::NegExp)];
const OUTPUT: &[Rule] = &[same_name("layers.*.self_attn.o_proj", "blk.*.attn_output")];
/// An indexer scores the means of positions, weighted by gates.
const POOLED: &[Rule] = &[
    same_name(
        "layers.*.self_attn.indexer.index_kpool_compress_gate",
        "blk.*.indexer_compressor_gate",
    ),
    same_name(
        "layers.*.self_attn.indexer.index_kpool_compress_ape",
        "blk.*.indexer_compressor_ape",
    ),
];
const SETTINGS: &[Setting] = &[
    DEEPSEEK[0],
    DEEPSEEK[1],
    DEEPSEEK[4],
    DEEPSEEK[5],
    count("attention.indexer.head_count", &["index_n_heads"]),
    count("attention.indexer.key_length", &["index_head_dim"]),
    count("attention.indexer.top_k", &["index_topk"]),
    count("attention.indexer.kpool", &["index_kpool"]),
    count("hyper_connection.count", &["hc_mult"]),
    count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"]),
    count("attention.q_lora_rank", &["q_lora_rank"]),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "glm5-next",
    classes: &["Glm5NextForConditionalGeneration"],
    rules: &[EMBEDDINGS, NORMS, STREAMS],
    some: &[
        (On::Recurrent, KIMI_DELTA),
        (On::Recurrent, KIMI_LOW_RANK),
        (On::Recurrent, RATES),
        (On::Attention, KIMI_LATENT),
        (On::Attention, LOW_RANK_QUERY),
        (On::Attention, OUTPUT),
        (On::Indexer, INDEXER),
        (On::Indexer, POOLED),
        (On::Dense, GATED),
        (On::Dense, UP_DOWN),
        (On::Experts, EXPERTS),
        (On::Experts, SELECTION_BIAS),
        (On::Experts, SHARED),
    ],
    settings: SETTINGS,
    keys: glm5_next,
    ..LLAMA
}];

fn glm5_next(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for key in ["n_group", "topk_group"] {
        if let Some(n) = config.u32(&[key])?.filter(|&n| n != 1) {
            return Err(config.wrong_value(key, "1, as in GLM-5.3-Flash", n));
        }
    }
    for key in ["mhc", "mla_use_nope"] {
        if config.bool(&[key])? == Some(false) {
            return Err(config.wrong_value(key, "true, as in GLM-5.3-Flash", false));
        }
    }
    if let Some(n) = config.u32(&["qk_rope_head_dim"])?.filter(|&n| n > 0) {
        return Err(config.wrong_value("qk_rope_head_dim", "0: attention has no RoPE", n));
    }
    if config.bool(&["attention_bias"])? == Some(true) {
        return Err(config.wrong_value("attention_bias", "false, as in GLM-5.3-Flash", true));
    }
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    // That of the indexer's norm.
    build.set("attention.layer_norm_epsilon", 1e-6_f32);
    leading_dense(build)?;
    set_dense_by_kind(build)?;
    gating(build, SIGMOID)?;
    let Some(kinds) = build.kinds("layer_types")? else {
        return Err(config.missing("layer_types", "the kind of each layer"));
    };
    let known = ["linear_attention", "indexed_attention", "full_attention"];
    if let Some(kind) = kinds.iter().find(|kind| !known.contains(&kind.as_str())) {
        return Err(config.wrong_value("layer_types", &known.join(", "), kind));
    }
    let is_recurrent: Vec<bool> = kinds.iter().map(|kind| kind == "linear_attention").collect();
    attention_or(build, &is_recurrent)?;
    let kv = is_recurrent.iter().map(|&recurrent| i32::from(!recurrent)).collect();
    build.replace("attention.head_count_kv", Value::Array(Array::I32(kv)));
    let (d_key, d_value) = (part(build, "qk_nope_head_dim")?, part(build, "v_head_dim")?);
    let rank = part(build, "kv_lora_rank")?;
    build.set("attention.kv_lora_rank", rank);
    build.set("attention.key_length", rank);
    build.set("attention.value_length", rank);
    build.set("attention.key_length_mla", d_key);
    build.set("attention.value_length_mla", d_value);
    build.set("rope.dimension_count", 0_u32);
    delta(build)?;
    indexers(build, &is_recurrent)?;
    let eps = config.need_f32(&["hc_eps"], "the smallest sum of a row of a mix")?;
    build.set("hyper_connection.epsilon", eps);
    if let Some(limit) = config.f32(&["swiglu_limit"])? {
        let limits = vec![limit; is_recurrent.len()];
        build.set("swiglu_clamp_exp", Value::Array(Array::F32(limits.clone())));
        build.set("swiglu_clamp_shexp", Value::Array(Array::F32(limits)));
    }
    Ok(())
}

/// The keys of Kimi Delta Attention, from an object of their own or from settings of the model.
fn delta(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let own = config.inner("linear_attn_config")?;
    let size = |own_key: &'static str, key: &'static str| match own.get(&[own_key]) {
        Some(_) => own.count(&[own_key], "a size of Kimi Delta Attention"),
        None => config.count(&[key], "a size of Kimi Delta Attention"),
    };
    let (n_head, heads) = (build.n_head()?, size("num_heads", "linear_num_heads")?);
    if heads != n_head {
        let expected = format!("{n_head}, as num_attention_heads");
        return Err(config.wrong_value("linear_attn_config.num_heads", &expected, heads));
    }
    build.set("kda.head_dim", size("head_dim", "linear_head_dim")?);
    build.set("ssm.conv_kernel", size("short_conv_kernel_size", "linear_conv_kernel_dim")?);
    let stated = own.f32(&["gate_lower_bound"])?.or(config.f32(&["linear_lower_bound"])?);
    // `transformers` has this bound unless the settings say that there is none.
    let has_none = own.bool(&["safe_gate"])? == Some(false);
    if let Some(bound) = stated.or((!has_none).then_some(-5.0)) {
        build.set("kda.gate_lower_bound", bound);
    }
    Ok(())
}

/// The layers with an indexer; others with attention use the positions that an earlier one selected.
fn indexers(build: &mut Build<'_>, is_recurrent: &[bool]) -> Result<(), Error> {
    const TYPES: &str = "indexer_types";
    let config = build.config;
    let kinds = build.kinds(TYPES)?;
    if kinds.is_none() {
        let every = config.u32(&["index_topk_freq"])?.filter(|&every| every > 1);
        if let Some((key, _)) = config.get(&["index_topk_pattern"]) {
            return Err(config.wrong_value(key, "a list `indexer_types` instead", "a pattern"));
        }
        if let Some(every) = every {
            return Err(config.wrong_value("index_topk_freq", "1, or indexer_types", every));
        }
    }
    if let Some(kind) =
        kinds.iter().flatten().find(|kind| !["full", "shared"].contains(&kind.as_str()))
    {
        return Err(config.wrong_value(TYPES, "`full` or `shared` for each layer", kind));
    }
    let full: Vec<bool> = match &kinds {
        Some(kinds) => kinds.iter().map(|kind| kind == "full").collect(),
        None => vec![true; is_recurrent.len()],
    };
    if kinds.is_some() {
        build.set("attention.indexer.types", Value::Array(Array::Bool(full.clone())));
    }
    let tail = config.bool(&["index_kpool_always_select_tail"])?.unwrap_or(true);
    build.set("attention.indexer.kpool_select_tail", tail);
    build.layers_on(On::Indexer, |layer| full[layer as usize] && !is_recurrent[layer as usize])
}
