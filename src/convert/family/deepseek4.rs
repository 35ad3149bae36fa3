//! DeepSeek V4: attention with one KV head over a window and compressed keys of blocks, experts from a table
//! in the first layers, and several residual streams.

use super::experts::DEEPSEEK;
use super::glm5_next::STREAMS;
use super::keys::{Build, Setting, count};
use super::rule::{On, Rule, Transform, rule, same_name};
use super::table::LLAMA;
use super::{Family, rope};
use crate::Error;
use crate::config::Json;
use gguf::{Array, Value};

/// Names of the published checkpoints, and those that `transformers` stores.
const ENDS: &[Rule] = &[
    same_name("embed", "token_embd"),
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("head", "output"),
    same_name("lm_head", "output"),
    same_name("hc_head_fn", "output_hc_fn"),
    same_name("hc_head_base", "output_hc_base"),
    same_name("hc_head_scale", "output_hc_scale"),
    same_name("hc_head.hc_fn", "output_hc_fn"),
    same_name("hc_head.hc_base", "output_hc_base"),
    same_name("hc_head.hc_scale", "output_hc_scale"),
];
const ATTENTION: &[Rule] = &[
    same_name("layers.*.attn_norm", "blk.*.attn_norm"),
    same_name("layers.*.attn.wq_a", "blk.*.attn_q_a"),
    same_name("layers.*.attn.q_norm", "blk.*.attn_q_a_norm"),
    same_name("layers.*.attn.wq_b", "blk.*.attn_q_b"),
    same_name("layers.*.attn.wkv", "blk.*.attn_kv"),
    same_name("layers.*.attn.kv_norm", "blk.*.attn_kv_a_norm"),
    // `transformers` stores the norm under this name.
    same_name("layers.*.attn.norm", "blk.*.attn_kv_a_norm"),
    same_name("layers.*.attn.wo_a", "blk.*.attn_output_a"),
    same_name("layers.*.attn.wo_b", "blk.*.attn_output_b"),
    same_name("layers.*.attn.attn_sink", "blk.*.attn_sinks"),
];
/// A key for each block of positions; its width depends on the length of the blocks.
const COMPRESSOR: &[Rule] = &[
    same_name("layers.*.attn.compressor.wkv", "blk.*.attn_compressor_kv"),
    same_name("layers.*.attn.compressor.wgate", "blk.*.attn_compressor_gate"),
    same_name("layers.*.attn.compressor.ape", "blk.*.attn_compressor_ape"),
    same_name("layers.*.attn.compressor.norm", "blk.*.attn_compressor_norm"),
];
const INDEXER: &[Rule] = &[
    same_name("layers.*.attn.indexer.wq_b", "blk.*.indexer.attn_q_b"),
    same_name("layers.*.attn.indexer.weights_proj", "blk.*.indexer.proj"),
    same_name("layers.*.attn.indexer.compressor.wkv", "blk.*.indexer_compressor_kv"),
    same_name("layers.*.attn.indexer.compressor.wgate", "blk.*.indexer_compressor_gate"),
    same_name("layers.*.attn.indexer.compressor.ape", "blk.*.indexer_compressor_ape"),
    same_name("layers.*.attn.indexer.compressor.norm", "blk.*.indexer_compressor_norm"),
];
const EXPERTS: &[Rule] = &[
    same_name("layers.*.ffn_norm", "blk.*.ffn_norm"),
    same_name("layers.*.ffn.gate", "blk.*.ffn_gate_inp"),
    same_name("layers.*.ffn.experts.*.w1", "blk.*.ffn_gate_exps"),
    same_name("layers.*.ffn.experts.*.w2", "blk.*.ffn_down_exps"),
    same_name("layers.*.ffn.experts.*.w3", "blk.*.ffn_up_exps"),
    same_name("layers.*.ffn.shared_experts.w1", "blk.*.ffn_gate_shexp"),
    same_name("layers.*.ffn.shared_experts.w2", "blk.*.ffn_down_shexp"),
    same_name("layers.*.ffn.shared_experts.w3", "blk.*.ffn_up_shexp"),
    // For tokens of images.
    rule("layers.*.ffn.gate.bias_vl", "", Transform::Drop),
];
const SELECTION_BIAS: &[Rule] = &[same_name("layers.*.ffn.gate.bias", "blk.*.exp_probs_b.bias=")];
/// The table is in `computed.rs`. Experts from it need no bias, which some checkpoints have.
const TABLE: &[Rule] = &[
    rule("layers.*.ffn.gate.tid2eid", "", Transform::Drop),
    rule("layers.*.ffn.gate.bias", "", Transform::Drop),
];
const SETTINGS: &[Setting] = &[
    DEEPSEEK[0],
    DEEPSEEK[1],
    DEEPSEEK[4],
    count("attention.q_lora_rank", &["q_lora_rank"]),
    count("attention.output_lora_rank", &["o_lora_rank"]),
    count("attention.output_group_count", &["o_groups"]),
    count("attention.sliding_window", &["sliding_window"]),
    count("attention.indexer.head_count", &["index_n_heads"]),
    count("attention.indexer.key_length", &["index_head_dim"]),
    count("attention.indexer.top_k", &["index_topk"]),
    count("hyper_connection.count", &["hc_mult"]),
    count("hyper_connection.sinkhorn_iterations", &["hc_sinkhorn_iters"]),
];
/// The router's scores are sqrt(softplus(x)).
const SQRT_SOFTPLUS: u32 = 4;
/// Positions of a block in each kind of layer.
const KINDS: [(&str, u32); 3] = [
    ("sliding_attention", 0),
    ("compressed_sparse_attention", 4),
    ("heavily_compressed_attention", 128),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "deepseek4",
    classes: &["DeepseekV4ForCausalLM"],
    rules: &[ENDS, ATTENTION, STREAMS, EXPERTS],
    some: &[
        (On::Indexer, COMPRESSOR),
        (On::Indexer, INDEXER),
        (On::LongBlocks, COMPRESSOR),
        (On::Experts, SELECTION_BIAS),
        (On::ListedExperts, TABLE),
    ],
    settings: SETTINGS,
    keys: deepseek4,
    ..LLAMA
}];

fn deepseek4(build: &mut Build<'_>) -> Result<(), Error> {
    check_usual(build.config)?;
    let config = build.config;
    build.sizes()?;
    build.rms()?;
    let d_head = config.count(&["head_dim"], "the head size")?;
    build.set("attention.key_length", d_head);
    build.set("attention.value_length", d_head);
    build.experts()?;
    build.set("expert_gating_func", SQRT_SOFTPLUS);
    build.set("expert_weights_norm", true);
    let n_listed = listed(build)?;
    build.set("hash_layer_count", n_listed);
    build.layers_on(On::ListedExperts, |layer| layer < n_listed)?;
    build.layers_on(On::Experts, |layer| layer >= n_listed)?;
    let ratios = ratios(build)?;
    let has = |layer: u32, ratio: u32| ratios[layer as usize] == ratio;
    build.layers_on(On::Indexer, |layer| has(layer, KINDS[1].1))?;
    build.layers_on(On::LongBlocks, |layer| has(layer, KINDS[2].1))?;
    let limit = config.need_f32(&["swiglu_limit"], "the limit of values in feed-forward blocks")?;
    for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        build.set(key, Value::Array(Array::F32(vec![limit; ratios.len()])));
    }
    let ratios = ratios.iter().map(|&ratio| ratio as i32).collect();
    build.set("attention.compress_ratios", Value::Array(Array::I32(ratios)));
    let streams = config.count(&["hc_mult"], "the number of residual streams")?;
    build.set("embedding_length_out", build.n_embd()?.saturating_mul(streams));
    let eps = config.need_f32(&["hc_eps"], "the smallest sum of a row of a mix")?;
    build.set("hyper_connection.epsilon", eps);
    set_rope(build, d_head)
}

/// Refuses settings for which a file has no key.
fn check_usual(config: &Json) -> Result<(), Error> {
    let wrong = |key: &str, expected: &str, found: String| {
        Err(config.wrong_value(key, &format!("{expected}, as in DeepSeek V4"), found))
    };
    for key in ["n_group", "topk_group", "num_key_value_heads"] {
        if let Some(n) = config.u32(&[key])?.filter(|&n| n != 1) {
            return wrong(key, "1", n.to_string());
        }
    }
    for (key, usual) in [("norm_topk_prob", true), ("attention_bias", false), ("mlp_bias", false)] {
        if let Some(other) = config.bool(&[key])?.filter(|&found| found != usual) {
            return wrong(key, &usual.to_string(), other.to_string());
        }
    }
    if let Some(other) = config.text(&["scoring_func"])?.filter(|name| name != "sqrtsoftplus") {
        return wrong("scoring_func", "sqrtsoftplus", other);
    }
    let quantised = config.inner("quantization_config")?;
    let stated = config.text(&["expert_dtype"])?.or(quantised.text(&["expert_dtype"])?);
    let known = ["fp4", "fp8", "bf16"];
    if let Some(other) = stated.filter(|name| !known.contains(&name.as_str())) {
        return Err(config.wrong_value("expert_dtype", &known.join(", "), other));
    }
    // Files have the ratios themselves, of which readers know these.
    let rates = config.inner("compress_rates")?;
    for ((kind, usual), older) in
        KINDS.into_iter().skip(1).zip(["compress_rate_csa", "compress_rate_hca"])
    {
        let stated = rates.u32(&[kind])?.or(config.u32(&[older])?);
        if let Some(n) = stated.filter(|&n| n != usual) {
            return wrong(&format!("compress_rates.{kind}"), &usual.to_string(), n.to_string());
        }
    }
    Ok(())
}

/// The number of layers at the start whose experts are listed in a table.
fn listed(build: &Build<'_>) -> Result<u32, Error> {
    const COUNT: &str = "num_hash_layers";
    let (config, n_layer) = (build.config, build.n_layer()?);
    let Some(kinds) = build.kinds("mlp_layer_types")? else {
        return match config.u32(&[COUNT])? {
            None => Err(config.missing(COUNT, "the number of layers with a table of experts")),
            Some(n) if n > n_layer => {
                Err(config.wrong_value(COUNT, &format!("at most the {n_layer} layers"), n))
            }
            Some(n) => Ok(n),
        };
    };
    let n = kinds.iter().take_while(|kind| *kind == "hash_moe").count();
    if kinds[n..].iter().any(|kind| kind != "moe") {
        let expected = "hash_moe for the first layers, then moe";
        return Err(config.wrong_value("mlp_layer_types", expected, kinds.join(", ")));
    }
    Ok(n as u32)
}

/// The number of positions of a block in each layer; 0 in layers that attend to their window alone.
fn ratios(build: &Build<'_>) -> Result<Vec<u32>, Error> {
    const RATIOS: &str = "compress_ratios";
    let (config, n_layer) = (build.config, build.n_layer()? as usize);
    if let Some(kinds) = build.kinds("layer_types")? {
        let ratio = |kind: &String| {
            let known = KINDS.into_iter().find(|(name, _)| name == kind);
            known.map(|(_, ratio)| ratio).ok_or_else(|| {
                let names = KINDS.map(|(name, _)| name);
                config.wrong_value("layer_types", &names.join(", "), kind)
            })
        };
        return kinds.iter().map(ratio).collect();
    }
    let Some(list) = config.list(RATIOS)? else {
        return Err(config.missing(RATIOS, "the number of positions of a block in each layer"));
    };
    let known = |n: u64| KINDS.into_iter().map(|(_, ratio)| ratio).find(|&k| u64::from(k) == n);
    // The layers for multi-token prediction follow, which are not converted.
    let ratios = list.iter().take(n_layer).map(|ratio| known(ratio.as_u64()?)).collect();
    let ratios: Option<Vec<u32>> = ratios;
    ratios.filter(|ratios| ratios.len() == n_layer).ok_or_else(|| {
        let expected = format!("0, 4 or 128 for each of the {n_layer} layers");
        config.wrong_value(RATIOS, &expected, serde_json::Value::from(list.clone()))
    })
}

/// RoPE of layers with compressed keys has a base of its own and may be scaled; that of others is not.
fn set_rope(build: &mut Build<'_>, d_head: u32) -> Result<(), Error> {
    const THETA: &[&str] = &["rope_theta"];
    const ROTATED: &str = "qk_rope_head_dim";
    const FACTOR: &str = "attention_factor";
    let config = build.config;
    let both = config.inner("rope_parameters")?;
    let (main, own) = (both.inner("main")?, both.inner("compress")?);
    let is_split = own.entries().next().is_some();
    let scaling = if is_split { own.clone() } else { rope::settings(config)? };
    let kind = |settings: &Json| {
        Ok::<_, Error>(settings.text(rope::TYPE)?.unwrap_or_else(|| "default".to_owned()))
    };
    if let Some(other) = Some(kind(&main)?).filter(|kind| kind != "default") {
        let expected = "default: layers without compressed keys have no scaling";
        return Err(config.wrong_value("rope_parameters.main.rope_type", expected, other));
    }
    if let Some(other) = Some(kind(&scaling)?).filter(|kind| kind != "default" && kind != "yarn") {
        return Err(config.wrong_value("rope_scaling.type", "default or yarn", other));
    }
    if let Some(other) = scaling.f32(&[FACTOR])?.filter(|&factor| factor != 1.0) {
        return Err(config.wrong_value(FACTOR, "1: YaRN does not scale rotated values", other));
    }
    let (older, newer) = (config.f32(THETA)?, main.f32(THETA)?);
    let flat = if is_split { None } else { scaling.f32(THETA)? };
    let Some(base) = newer.or(older).or(flat) else {
        return Err(config.missing("rope_theta", "the base of RoPE"));
    };
    build.set("rope.freq_base", base);
    let compressed = match own.f32(THETA)? {
        Some(base) => base,
        None => config.need_f32(&["compress_rope_theta"], "the base for compressed keys")?,
    };
    build.set("attention.compress_rope_freq_base", compressed);
    let n_rot = match config.u32(&[ROTATED])? {
        Some(n) if n == 0 || n > d_head || !n.is_multiple_of(2) => {
            let expected = format!("an even number up to the head size, {d_head}");
            return Err(config.wrong_value(ROTATED, &expected, n));
        }
        Some(n) => n,
        None => rope::n_rotated(build, 0.125)?,
    };
    build.set("rope.dimension_count", n_rot);
    rope::scale(build, &scaling, Some(base), n_rot)?;
    // Readers do not scale rotated values in this architecture.
    build.keys.retain(|(key, _)| !key.ends_with(".rope.scaling.attn_factor"));
    Ok(())
}
