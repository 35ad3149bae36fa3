//! Dense families whose code is in the models' own repositories, not in `transformers`.

use super::dense::{TIED_HEAD, rms};
use super::keys::{Build, EPS, Setting, number};
use super::rule::{On, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, GATED, NORMS, ROPE_QK, UP_DOWN, VO};
use super::table::LLAMA;
use super::{Family, rope};
use crate::Error;
use crate::change::{RowMap, Selection};
use gguf::{Array, Value};

const EXAONE: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("ln_f", "output_norm"),
    same_name("lm_head", "output"),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
    same_name("h.*.attn.attention.q_proj", "blk.*.attn_q"),
    same_name("h.*.attn.attention.k_proj", "blk.*.attn_k"),
    same_name("h.*.attn.attention.v_proj", "blk.*.attn_v"),
    same_name("h.*.attn.attention.out_proj", "blk.*.attn_output"),
    same_name("h.*.mlp.c_fc_0", "blk.*.ffn_gate"),
    same_name("h.*.mlp.c_fc_1", "blk.*.ffn_up"),
    same_name("h.*.mlp.c_proj", "blk.*.ffn_down"),
];
const QWEN: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("ln_f", "output_norm"),
    same_name("lm_head", "output"),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
    same_name("h.*.attn.c_attn", "blk.*.attn_qkv"),
    same_name("h.*.attn.c_proj", "blk.*.attn_output"),
    // The activation is applied to the second matrix.
    same_name("h.*.mlp.w1", "blk.*.ffn_up"),
    same_name("h.*.mlp.w2", "blk.*.ffn_gate"),
    same_name("h.*.mlp.c_proj", "blk.*.ffn_down"),
];
/// Queries, keys and values are thirds of one matrix.
const BAICHUAN: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output").scale(Scale::UnitRows(normalises_head)),
    rule("layers.*.self_attn.W_pack", "blk.*.attn_q", Transform::Rows(|b| third(b, 0))),
    rule("layers.*.self_attn.W_pack", "blk.*.attn_k", Transform::Rows(|b| third(b, 1))),
    rule("layers.*.self_attn.W_pack", "blk.*.attn_v", Transform::Rows(|b| third(b, 2))),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
/// One matrix has the queries of each key head, then its key and its value.
const INTERNLM2: &[Rule] = &[
    same_name("tok_embeddings", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("output", "output"),
    same_name("layers.*.attention_norm", "blk.*.attn_norm"),
    same_name("layers.*.ffn_norm", "blk.*.ffn_norm"),
    rule("layers.*.attention.wqkv", "blk.*.attn_q", Transform::Rows(|b| grouped(b, Head::Query))),
    rule("layers.*.attention.wqkv", "blk.*.attn_k", Transform::Rows(|b| grouped(b, Head::Key))),
    rule("layers.*.attention.wqkv", "blk.*.attn_v", Transform::Rows(|b| grouped(b, Head::Value))),
    same_name("layers.*.attention.wo", "blk.*.attn_output"),
    same_name("layers.*.feed_forward.w1", "blk.*.ffn_gate"),
    same_name("layers.*.feed_forward.w2", "blk.*.ffn_down"),
    same_name("layers.*.feed_forward.w3", "blk.*.ffn_up"),
];
const CODESHELL: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("ln_f", "output_norm"),
    same_name("lm_head", "output"),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
    same_name("h.*.attn.c_attn", "blk.*.attn_qkv"),
    same_name("h.*.attn.c_proj", "blk.*.attn_output"),
    same_name("h.*.mlp.c_fc", "blk.*.ffn_up"),
    same_name("h.*.mlp.c_proj", "blk.*.ffn_down"),
];
const REFACT: &[Rule] = &[
    same_name("wte", "token_embd"),
    same_name("ln_f", "output_norm"),
    same_name("lm_head", "output"),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
    same_name("h.*.attn.q", "blk.*.attn_q"),
    rule("h.*.attn.kv", "blk.*.attn_k", Transform::FirstHalf),
    rule("h.*.attn.kv", "blk.*.attn_v", Transform::SecondHalf),
    same_name("h.*.attn.c_proj", "blk.*.attn_output"),
    rule("h.*.mlp.gate_up_proj", "blk.*.ffn_gate", Transform::FirstHalf),
    rule("h.*.mlp.gate_up_proj", "blk.*.ffn_up", Transform::SecondHalf),
    same_name("h.*.mlp.c_proj", "blk.*.ffn_down"),
];
const DECI_ATTENTION: &[Rule] = &[same_name("layers.*.input_layernorm", "blk.*.attn_norm")];
const DECI_DENSE: &[Rule] = &[same_name("layers.*.post_attention_layernorm", "blk.*.ffn_norm")];

const MINICPM_SCALES: &[Setting] = &[number("embedding_scale", &["scale_emb"])];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "exaone",
        classes: &["ExaoneForCausalLM"],
        rules: &[EXAONE],
        keys: exaone,
        ..LLAMA
    },
    Family { arch: "qwen", classes: &["QWenLMHeadModel"], rules: &[QWEN], keys: qwen, ..LLAMA },
    Family {
        arch: "baichuan",
        classes: &["BaichuanForCausalLM", "BaiChuanForCausalLM"],
        rules: &[BAICHUAN, NORMS, GATED, UP_DOWN],
        keys: baichuan,
        ..LLAMA
    },
    Family {
        arch: "internlm2",
        classes: &["InternLM2ForCausalLM"],
        rules: &[INTERNLM2],
        keys: internlm2,
        ..LLAMA
    },
    Family {
        arch: "codeshell",
        classes: &["CodeShellForCausalLM"],
        activation: "gelu",
        rules: &[CODESHELL],
        keys: codeshell,
        ..LLAMA
    },
    Family {
        arch: "refact",
        classes: &["GPTRefactForCausalLM"],
        // `config.json` names the activation of another class.
        activation: "",
        rules: &[REFACT],
        keys: refact,
        ..LLAMA
    },
    Family {
        arch: "deci",
        classes: &["DeciLMForCausalLM"],
        rules: &[EMBEDDINGS],
        some: &[
            (On::Attention, DECI_ATTENTION),
            (On::Attention, ROPE_QK),
            (On::Attention, VO),
            (On::Dense, DECI_DENSE),
            (On::Dense, GATED),
            (On::Dense, UP_DOWN),
        ],
        keys: deci,
        ..LLAMA
    },
    Family {
        arch: "minicpm",
        classes: &["MiniCPMForCausalLM"],
        rules: &[TIED_HEAD, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        settings: MINICPM_SCALES,
        keys: minicpm,
        ..LLAMA
    },
];

/// The epsilon of RMS norms under the name of LayerNorm's.
fn rms_by_other_name(build: &mut Build<'_>) -> Result<(), Error> {
    let eps = build.config.need_f32(EPS, "the epsilon of the norm layers")?;
    build.set("attention.layer_norm_rms_epsilon", eps);
    Ok(())
}

fn exaone(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    rms_by_other_name(build)?;
    build.heads()?;
    build.rope(rope::n_rotated(build, 1.0)?)
}

fn qwen(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.feed_forward()?;
    rms_by_other_name(build)?;
    for key in ["use_dynamic_ntk", "use_logn_attn"] {
        if config.bool(&[key])? == Some(true) {
            build.notes.push(format!("GGUF has no key for {key}: the converted model does not scale positions beyond its trained context"));
        }
    }
    build.rope(build.d_head()?)
}

/// Baichuan 2 divides each row of its output matrix by its norm; only its settings have `z_loss_weight`.
fn normalises_head(build: &Build<'_>) -> Result<bool, Error> {
    Ok(build.config.get(&["z_loss_weight"]).is_some())
}

fn baichuan(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let keys = &["max_position_embeddings", "model_max_length"];
    build.set("context_length", config.count(keys, "the context length")?);
    build.shape()?;
    build.feed_forward()?;
    build.rms()?;
    // llama.cpp's files have it for the layout of the first Llama.
    build.set("tensor_data_layout", "Meta AI original pth");
    let n_layer = build.n_layer()?;
    if n_layer != 32 && n_layer != 40 {
        // Files do not say whether the model has RoPE or ALiBi, so readers derive it from the
        // number of layers.
        let expected = "32 (RoPE) or 40 (ALiBi), as in Baichuan 7B and 13B";
        return Err(config.wrong_value("num_hidden_layers", expected, n_layer));
    }
    build.rope(build.d_head()?)
}

/// The rows of queries, keys or values in Baichuan's joined matrix.
fn third(build: &Build<'_>, part: u32) -> Result<Selection, Error> {
    let (n, d_head) = (build.n_embd()?, build.d_head()?);
    let rows = (0..n).map(|row| part * n + if part < 2 { paired(row, d_head) } else { row });
    Ok(Selection::join(rows, n.saturating_mul(3)))
}

/// The source of a row of queries or keys, reordered so that the values of a RoPE pair are
/// adjacent.
fn paired(row: u32, d_head: u32) -> u32 {
    let d_head = d_head as usize;
    RowMap::Rope { d_head, n_rot: d_head }.source(row as usize, 0) as u32
}

#[derive(Clone, Copy)]
enum Head {
    Query,
    Key,
    Value,
}

/// The rows of queries, keys or values in InternLM's joined matrix.
fn grouped(build: &Build<'_>, head: Head) -> Result<Selection, Error> {
    let (n_head, n_kv, d_head) = (build.n_head()?, build.n_head_kv()?, build.d_head()?);
    let per_kv = n_head / n_kv;
    let size = n_head.saturating_add(2 * n_kv).saturating_mul(d_head);
    if size > 1 << 24 {
        return Err(build.config.wrong_value("num_attention_heads", "at most 2^24 rows", size));
    }
    let (first, n) = match head {
        Head::Query => (0, per_kv),
        Head::Key => (per_kv, 1),
        Head::Value => (per_kv + 1, 1),
    };
    let is_rotated = !matches!(head, Head::Value);
    let heads = (0..n_kv).flat_map(move |kv| (0..n).map(move |i| kv * (per_kv + 2) + first + i));
    let rows = heads.flat_map(move |head| {
        let within = move |row| if is_rotated { paired(row, d_head) } else { row };
        (0..d_head).map(move |row| head * d_head + within(row))
    });
    Ok(Selection::join(rows, size))
}

fn internlm2(build: &mut Build<'_>) -> Result<(), Error> {
    if build.config.bool(&["bias"])? == Some(true) {
        return Err(build.config.wrong_value("bias", "false, as in InternLM 2 and 2.5", true));
    }
    rms(build, 1.0)
}

fn codeshell(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    let n_embd = build.n_embd()?;
    let n_ff = config.u32(&["n_inner"])?.unwrap_or(n_embd.saturating_mul(4));
    build.set("feed_forward_length", n_ff);
    build.layer_norm()?;
    let groups = config.count(&["num_query_groups"], "the number of key and value heads")?;
    build.replace("attention.head_count_kv", groups);
    if config.text(&["position_embedding_type"])?.is_some_and(|kind| kind != "rope") {
        return Err(config.wrong_value("position_embedding_type", "rope", "another"));
    }
    build.rope(build.d_head()?)?;
    if !build.has("rope.freq_base") {
        build.set("rope.freq_base", 10_000.0_f32);
    }
    Ok(())
}

fn refact(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.replace("attention.head_count_kv", 1_u32);
    // Two thirds of four times the width, in whole multiples of 256.
    let n_ff = u64::from(build.n_embd()?) * 8 / 3;
    build.set("feed_forward_length", n_ff.next_multiple_of(256) as u32);
    let eps = config.f32(EPS)?.unwrap_or(1e-5);
    build.set("attention.layer_norm_rms_epsilon", eps);
    Ok(())
}

fn minicpm(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let number = |key: &'static str| config.need_f32(&[key], "a factor of MiniCPM");
    let (depth, base) = (number("scale_depth")?, number("dim_model_base")?);
    if base <= 0.0 {
        return Err(config.wrong_value("dim_model_base", "a positive number", base));
    }
    build.set("residual_scale", depth / (build.n_layer()? as f32).sqrt());
    build.set("logit_scale", build.n_embd()? as f32 / base);
    build.rope(build.d_head()?)
}

/// Settings of a layer of Deci's models: key heads (0 without attention) and neurons.
fn deci_layer(build: &Build<'_>, layer: &serde_json::Value) -> Result<(u32, u32), Error> {
    let config = build.config;
    let wrong = |found: &dyn std::fmt::Display| {
        let expected = "n_heads_in_group or no attention without linear attention, and ffn_mult";
        config.wrong_value("block_configs", expected, found)
    };
    let part = |kind: &str, key: &str| layer.get(kind).and_then(|part| part.get(key));
    let is_on = |kind: &str, key: &str| {
        part(kind, key).and_then(serde_json::Value::as_bool).unwrap_or(false)
    };
    if is_on("attention", "replace_with_linear") || is_on("ffn", "replace_with_linear") {
        return Err(wrong(&"replace_with_linear"));
    }
    let n_kv = match part("attention", "n_heads_in_group").and_then(serde_json::Value::as_u64) {
        None => 0,
        Some(0) => return Err(wrong(&0)),
        Some(n) => build.n_head()? / u32::try_from(n).unwrap_or(u32::MAX),
    };
    let n_ff = match part("ffn", "ffn_mult").and_then(serde_json::Value::as_f64) {
        None => 0,
        Some(factor) if factor > 0.0 && factor < 1e6 => {
            let n = (2.0 * factor * f64::from(build.n_embd()?) / 3.0) as u64;
            u32::try_from(n.next_multiple_of(256)).unwrap_or(u32::MAX)
        }
        Some(other) => return Err(wrong(&other)),
    };
    Ok((n_kv, n_ff))
}

fn deci(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    build.sizes()?;
    build.rms()?;
    let n_layer = build.n_layer()? as usize;
    let list = |numbers: Vec<u32>| {
        let numbers = numbers.into_iter().map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        Value::Array(Array::I32(numbers.collect()))
    };
    if let Some(blocks) = config.list("block_configs")? {
        if blocks.len() != n_layer {
            let expected = format!("an object for each of the {n_layer} layers");
            let found = format!("a list of {}", blocks.len());
            return Err(config.wrong_value("block_configs", &expected, found));
        }
        let sizes: Vec<(u32, u32)> =
            blocks.iter().map(|layer| deci_layer(build, layer)).collect::<Result<_, _>>()?;
        build.layers_on(On::Attention, |layer| sizes[layer as usize].0 > 0)?;
        build.layers_on(On::Dense, |layer| sizes[layer as usize].1 > 0)?;
        let n_head = build.n_head()?;
        build.per_layer("attention.head_count", On::Attention, n_head);
        build.replace("attention.head_count_kv", list(sizes.iter().map(|of| of.0).collect()));
        build.set("feed_forward_length", list(sizes.iter().map(|of| of.1).collect()));
        let d_head = build.d_head()?;
        build.set("attention.key_length", d_head);
        build.set("attention.value_length", d_head);
    } else {
        build.feed_forward()?;
        if let Some(heads) = config.list("num_key_value_heads_per_layer")? {
            let number = |n: &serde_json::Value| u32::try_from(n.as_u64()?).ok();
            let heads: Option<Vec<u32>> = heads.iter().map(number).collect();
            let heads = heads.filter(|heads| heads.len() == n_layer).ok_or_else(|| {
                config.missing("num_key_value_heads_per_layer", "a number for each layer")
            })?;
            build.replace("attention.head_count_kv", list(heads));
        }
    }
    build.rope(build.d_head()?)
}
