//! The first generation of families: LayerNorm, biases, one matrix for queries, keys and values.

use super::Family;
use super::keys::{Build, EPS, Setting, flag};
use super::rope;
use super::rule::{Rule, Transform, rule, same_name};
use super::table::LLAMA;
use crate::Error;

const GPT2: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("wpe", "position_embd"),
    same_name("ln_f", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
];
/// GPT-2 stores its matrices transposed.
const GPT2_COLUMNS: &[Rule] = &[
    rule("h.*.attn.c_attn", "blk.*.attn_qkv", Transform::Columns),
    rule("h.*.attn.c_proj", "blk.*.attn_output", Transform::Columns),
    rule("h.*.mlp.c_fc", "blk.*.ffn_up", Transform::Columns),
    rule("h.*.mlp.c_proj", "blk.*.ffn_down", Transform::Columns),
];
const STARCODER: &[Rule] = &[
    same_name("h.*.attn.c_attn", "blk.*.attn_qkv"),
    same_name("h.*.attn.c_proj", "blk.*.attn_output"),
    same_name("h.*.mlp.c_fc", "blk.*.ffn_up"),
    same_name("h.*.mlp.c_proj", "blk.*.ffn_down"),
];
const GPT_NEOX: &[Rule] = &[
    same_name("embed_in", "token_embd"),
    same_name("final_layer_norm", "output_norm"),
    same_name("embed_out", "output"),
    // Masks of older checkpoints.
    rule("layers.*.attention.bias", "", Transform::Drop),
    rule("layers.*.attention.masked_bias", "", Transform::Drop),
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
    rule("layers.*.attention.query_key_value", "blk.*.attn_qkv", Transform::FalconQkv),
    same_name("layers.*.attention.dense", "blk.*.attn_output"),
    same_name("layers.*.mlp.dense_h_to_4h", "blk.*.ffn_up"),
    same_name("layers.*.mlp.dense_4h_to_h", "blk.*.ffn_down"),
];
const BLOOM: &[Rule] = &[
    same_name("word_embeddings", "token_embd"),
    same_name("word_embeddings_layernorm", "token_embd_norm"),
    same_name("ln_f", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("h.*.input_layernorm", "blk.*.attn_norm"),
    same_name("h.*.post_attention_layernorm", "blk.*.ffn_norm"),
    rule("h.*.self_attention.query_key_value", "blk.*.attn_qkv", Transform::FalconQkv),
    same_name("h.*.self_attention.dense", "blk.*.attn_output"),
    same_name("h.*.mlp.dense_h_to_4h", "blk.*.ffn_up"),
    same_name("h.*.mlp.dense_4h_to_h", "blk.*.ffn_down"),
];
const MPT: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("norm_f", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("blocks.*.norm_1", "blk.*.attn_norm"),
    same_name("blocks.*.norm_2", "blk.*.ffn_norm"),
    same_name("blocks.*.attn.Wqkv", "blk.*.attn_qkv"),
    same_name("blocks.*.attn.out_proj", "blk.*.attn_output"),
    same_name("blocks.*.ffn.up_proj", "blk.*.ffn_up"),
    same_name("blocks.*.ffn.down_proj", "blk.*.ffn_down"),
];
const PARALLEL: &[Setting] = &[flag("use_parallel_residual", &["use_parallel_residual"])];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "gpt2",
        classes: &["GPT2LMHeadModel"],
        activation: "gelu",
        rules: &[GPT2, GPT2_COLUMNS],
        keys: gpt2,
        ..LLAMA
    },
    Family {
        arch: "starcoder",
        classes: &["GPTBigCodeForCausalLM"],
        activation: "gelu",
        rules: &[GPT2, STARCODER],
        keys: starcoder,
        ..LLAMA
    },
    Family {
        arch: "gptneox",
        classes: &["GPTNeoXForCausalLM"],
        activation: "gelu",
        rules: &[GPT_NEOX],
        settings: PARALLEL,
        keys: gpt_neox,
        ..LLAMA
    },
    Family {
        arch: "bloom",
        classes: &["BloomForCausalLM"],
        activation: "gelu",
        rules: &[BLOOM],
        keys: bloom,
        ..LLAMA
    },
    Family {
        arch: "mpt",
        classes: &["MPTForCausalLM", "MptForCausalLM"],
        activation: "",
        rules: &[MPT],
        keys: mpt,
        ..LLAMA
    },
];

/// Sizes, and a feed-forward block that is four times as wide unless stated.
fn sizes(build: &mut Build<'_>) -> Result<(), Error> {
    build.shape()?;
    let n_ff = build.config.u32(&["n_inner", "intermediate_size", "ffn_hidden_size"])?;
    let n_ff = n_ff.unwrap_or(build.n_embd()?.saturating_mul(4));
    build.set("feed_forward_length", n_ff);
    build.set("attention.layer_norm_epsilon", build.config.f32(EPS)?.unwrap_or(1e-5));
    Ok(())
}

fn gpt2(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, usual) in [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ] {
        if let Some(other) = config.bool(&[key])?.filter(|&found| found != usual) {
            return Err(config.wrong_value(key, &usual.to_string(), other));
        }
    }
    let n_ctx = config.count(&["n_positions", "n_ctx"], "the context length")?;
    build.set("context_length", n_ctx);
    sizes(build)
}

fn starcoder(build: &mut Build<'_>) -> Result<(), Error> {
    if build.config.bool(&["multi_query"])? == Some(false) {
        let expected = "true, as in StarCoder and SantaCoder";
        return Err(build.config.wrong_value("multi_query", expected, false));
    }
    let n_ctx = build.config.count(&["n_positions"], "the context length")?;
    build.set("context_length", n_ctx);
    sizes(build)?;
    build.replace("attention.head_count_kv", 1_u32);
    Ok(())
}

fn gpt_neox(build: &mut Build<'_>) -> Result<(), Error> {
    let n_ctx = build.config.count(super::keys::CONTEXT, "the context length")?;
    build.set("context_length", n_ctx);
    sizes(build)?;
    build.set("use_parallel_residual", true);
    build.rope(rope::n_rotated(build, 0.25)?)
}

fn bloom(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["apply_residual_connection_post_layernorm"])? == Some(true) {
        let key = "apply_residual_connection_post_layernorm";
        return Err(config.wrong_value(key, "false, as in BLOOM and BLOOMZ", true));
    }
    // ALiBi has no limit; 2048 is the length of the training.
    let n_ctx = config.u32(&["seq_length"])?.unwrap_or(2048);
    build.set("context_length", n_ctx);
    sizes(build)
}

fn mpt(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let attention = config.inner("attn_config")?;
    for (key, usual) in [("qk_ln", false), ("prefix_lm", false)] {
        if let Some(other) = attention.bool(&[key])?.filter(|&found| found != usual) {
            return Err(attention.wrong_value(key, &usual.to_string(), other));
        }
    }
    if let Some(scale) = attention.f32(&["softmax_scale"])? {
        return Err(attention.wrong_value("softmax_scale", "null, as in MPT", scale));
    }
    let n_ctx = config.count(&["max_seq_len"], "the context length")?;
    build.set("context_length", n_ctx);
    build.shape()?;
    let ratio = config.u32(&["expansion_ratio"])?.unwrap_or(4);
    build.set("feed_forward_length", build.n_embd()?.saturating_mul(ratio));
    build.set("attention.layer_norm_epsilon", config.f32(EPS)?.unwrap_or(1e-5));
    if let Some(limit) = attention.f32(&["clip_qkv"])? {
        build.set("attention.clamp_kqv", limit);
    }
    if attention.bool(&["alibi"])? == Some(false) {
        build.set("attention.max_alibi_bias", 0.0_f32);
    } else {
        build.set("attention.max_alibi_bias", attention.f32(&["alibi_bias_max"])?.unwrap_or(8.0));
    }
    Ok(())
}
