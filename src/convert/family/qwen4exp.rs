//! Qwen3.8-Flash-Next: the layers of Qwen 3.5 with experts, between residual streams, with indexers and
//! n-grams.

use super::Family;
use super::hybrid::{DELTA, QWEN35, delta_experts};
use super::keys::{Build, Setting, count};
use super::rope;
use super::rule::{On, Reshape, Rule, Transform, rule, same_name};
use super::rules::{EXPERTS, QK, QK_NORMS_PLUS_ONE, SHARED_EXPERT, VO};
use super::table::LLAMA;
use crate::Error;
use crate::change::Selection;
use gguf::{Array, Value};

/// All norms belong to a mix of streams.
const ENDS: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("lm_head", "output"),
    rule("hyper_connection_mixer.hc_norm", "output_hc_norm", Transform::PlusOne),
    same_name("hyper_connection_mixer.input_mix_weight_down", "output_hc_down"),
    same_name("hyper_connection_mixer.input_mix_weight_up", "output_hc_up"),
];
const STREAMS: &[Rule] = &[
    rule("layers.*.attn_hyper_connection.hc_norm", "blk.*.hc_attn_norm", Transform::PlusOne),
    same_name("layers.*.attn_hyper_connection.input_mix_weight_down", "blk.*.hc_attn_down"),
    same_name("layers.*.attn_hyper_connection.input_mix_weight_up", "blk.*.hc_attn_up"),
    same_name("layers.*.attn_hyper_connection.block_inject_weight", "blk.*.hc_attn_inject"),
    rule("layers.*.mlp_hyper_connection.hc_norm", "blk.*.hc_ffn_norm", Transform::PlusOne),
    same_name("layers.*.mlp_hyper_connection.input_mix_weight_down", "blk.*.hc_ffn_down"),
    same_name("layers.*.mlp_hyper_connection.input_mix_weight_up", "blk.*.hc_ffn_up"),
    same_name("layers.*.mlp_hyper_connection.block_inject_weight", "blk.*.hc_ffn_inject"),
];
/// One matrix has the rows of queries, then those of keys.
const INDEXER: &[Rule] = &[
    rule(
        "layers.*.self_attn.indexer.index_qk_proj",
        "blk.*.indexer.q_proj",
        Transform::Rows(|build| indexer_rows(build, false)),
    ),
    rule(
        "layers.*.self_attn.indexer.index_qk_proj",
        "blk.*.indexer.k_proj",
        Transform::Rows(|build| indexer_rows(build, true)),
    ),
    rule("layers.*.self_attn.indexer.q_layernorm", "blk.*.indexer.q_norm", Transform::PlusOne),
    rule("layers.*.self_attn.indexer.k_layernorm", "blk.*.indexer.k_norm", Transform::PlusOne),
];
/// The table of n-grams comes in parts. The numbers of the hash become keys.
const NGRAMS: &[Rule] = &[
    rule(
        "layers.*.ple.ple_embedding.ngram_embedding.shard_*",
        "per_layer_token_embd",
        Transform::Joined,
    ),
    rule("layers.*.ple.ple_embedding.layer_multipliers", "", Transform::Drop),
    rule("layers.*.ple.ple_embedding.ngram_heads_vocab_sizes", "", Transform::Drop),
    rule("layers.*.ple.ple_embedding.ngram_heads_offsets", "", Transform::Drop),
    same_name("layers.*.ple.key_proj", "blk.*.ple_key"),
    same_name("layers.*.ple.value_proj", "blk.*.ple_value"),
    rule("layers.*.ple.norm_key", "blk.*.ple_norm_key", Transform::PlusOne),
    rule("layers.*.ple.norm_query", "blk.*.ple_norm_query", Transform::PlusOne),
    rule("layers.*.ple.norm_conv", "blk.*.ple_norm_conv", Transform::PlusOne),
    same_name("layers.*.ple.conv1d", "blk.*.ple_conv1d").reshape(Reshape::Squeeze),
];
const SETTINGS: &[Setting] = &[
    DELTA[0],
    DELTA[1],
    DELTA[2],
    DELTA[3],
    DELTA[4],
    count("hyper_connection.count", &["hc_count"]),
    count("hyper_connection.low_rank", &["hc_lowrank"]),
    count("attention.indexer.head_count", &["indexer_n_heads"]),
    count("attention.indexer.key_length", &["indexer_head_dim"]),
    count("attention.indexer.top_k", &["indexer_budget"]),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "qwen4exp",
    classes: &["Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
    rules: &[ENDS, STREAMS, EXPERTS, SHARED_EXPERT],
    some: &[
        (On::Attention, QK),
        (On::Attention, QK_NORMS_PLUS_ONE),
        (On::Attention, VO),
        (On::Attention, INDEXER),
        (On::Recurrent, QWEN35),
        (On::Ngrams, NGRAMS),
    ],
    settings: SETTINGS,
    keys: qwen4exp,
    ..LLAMA
}];

/// Maximum number of rows of the indexer's joined matrix.
const MAX_ROWS: u32 = 1 << 24;

/// The rows of queries or keys in the indexer's joined matrix.
fn indexer_rows(build: &Build<'_>, keys: bool) -> Result<Selection, Error> {
    let size = |key: &'static str| build.config.count(&[key], "a size of the indexer");
    let (n_head, d_head) = (size("indexer_n_heads")?, size("indexer_head_dim")?);
    let n = n_head.saturating_mul(d_head);
    let all = n.saturating_add(d_head);
    if all > MAX_ROWS {
        let expected = format!("at most {MAX_ROWS} rows of queries and keys");
        return Err(build.config.wrong_value("indexer_n_heads", &expected, all));
    }
    Ok(Selection::join(if keys { n..all } else { 0..n }, all))
}

fn qwen4exp(build: &mut Build<'_>) -> Result<(), Error> {
    delta_experts(build)?;
    rope::set_sections(build, [11, 11, 10, 0])?;
    let config = build.config;
    let gate = config.text(&["output_gate_type"])?.unwrap_or_else(|| "none".to_owned());
    if gate != "sigmoid" {
        let expected = "sigmoid, as in Qwen3.8-Flash-Next";
        return Err(config.wrong_value("output_gate_type", expected, gate));
    }
    if let Some(other) = config.u32(&["indexer_kv_heads"])?.filter(|&n| n != 1) {
        return Err(config.wrong_value("indexer_kv_heads", "1", other));
    }
    if config.bool(&["norm_topk_prob"])? == Some(false) {
        return Err(config.wrong_value("norm_topk_prob", "true", false));
    }
    let ratio = config.count(&["indexer_compress_ratio"], "the positions of a block")? as i32;
    let attention = build.layers.get(&On::Attention).cloned().unwrap_or_default();
    let ratios = attention.iter().map(|&is_on| if is_on { ratio } else { 0 }).collect();
    build.set("attention.compress_ratios", Value::Array(Array::I32(ratios)));
    ngrams(build)
}

/// The keys of the n-grams; those of their hash come from the checkpoint.
fn ngrams(build: &mut Build<'_>) -> Result<(), Error> {
    const LAYERS: &str = "ple_layer_ids";
    let config = build.config;
    // From 1 on.
    let layers: Vec<u64> =
        config.list(LAYERS)?.into_iter().flatten().filter_map(serde_json::Value::as_u64).collect();
    let n_layer = build.n_layer()?;
    let layer = match layers[..] {
        [] => None,
        [layer] if (1..=u64::from(n_layer)).contains(&layer) => Some(layer as u32 - 1),
        _ => {
            let expected = format!("none or one layer from 1 to {n_layer}");
            return Err(config.wrong_value(LAYERS, &expected, format!("{layers:?}")));
        }
    };
    build.layers_on(On::Ngrams, |other| Some(other) == layer)?;
    let Some(layer) = layer else { return Ok(()) };
    let or = |key: &'static str, usual: u32| Ok::<_, Error>(config.u32(&[key])?.unwrap_or(usual));
    let (size, heads) = (or("ngram_size", 3)?, or("heads_per_ngram", 8)?);
    let width = or("ple_embed_dim", build.n_embd()?)?;
    let n_heads = size.saturating_sub(1).saturating_mul(heads);
    if n_heads == 0 || !width.is_multiple_of(n_heads) {
        let expected = format!("a multiple of the {n_heads} heads of the n-grams");
        return Err(config.wrong_value("ple_embed_dim", &expected, width));
    }
    let Some((_, eos)) = config.get(&["eos_token_id"]) else {
        return Err(config.missing("eos_token_id", "the token that n-grams do not cross"));
    };
    // The first of a list, as in the model's code.
    let eos = eos.as_u64().or_else(|| eos.as_array()?.first()?.as_u64());
    let Some(eos) = eos.and_then(|eos| u32::try_from(eos).ok()) else {
        return Err(config.wrong_value("eos_token_id", "the number of a token", "another value"));
    };
    build.set("ple.layers", Value::Array(Array::I32(vec![layer as i32])));
    build.set("ple.ngram_size", size);
    build.set("ple.heads_per_ngram", heads);
    build.set("ple.conv_kernel", or("ple_conv_kernel_size", 4)?);
    build.set("ple.eos_token_id", eos);
    if let Some(image) = config.u32(&["image_token_id"])? {
        build.set("ple.image_token_id", image);
    }
    build.set("embedding_length_per_layer_input", width / n_heads);
    Ok(())
}
