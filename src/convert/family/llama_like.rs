//! Families that differ from Llama in names and little else: XVERSE, Orion, InternLM 3, DeepSeek MoE,
//! Ling 1, openPangu, Maincoder, Nanbeige, PLaMo 1 and 3, ChatGLM 3, Jais.

use super::Family;
use super::dense::rms;
use super::experts::{DEEPSEEK, SHARED, SOFTMAX, leading_dense};
use super::keys::{Build, EPS, Setting, flag, whole};
use super::rule::{On, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, NORMS, QK, QK_NORMS, ROPE_QK, UP_DOWN, VO};
use super::table::{self, LLAMA};
use crate::Error;
use crate::change::{RowMap, Selection};

const PLAMO_1: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output"),
    same_name("layers.layers.*.norm", "blk.*.attn_norm"),
    rule("layers.layers.*.self_attn.q_proj", "blk.*.attn_q", Transform::Rows(grouped_heads)),
    same_name("layers.layers.*.self_attn.k_proj", "blk.*.attn_k"),
    same_name("layers.layers.*.self_attn.v_proj", "blk.*.attn_v"),
    rule(
        "layers.layers.*.self_attn.o_proj",
        "blk.*.attn_output",
        Transform::ReorderColumns(grouped_heads),
    ),
    same_name("layers.layers.*.mlp.gate_proj", "blk.*.ffn_gate"),
    same_name("layers.layers.*.mlp.up_proj", "blk.*.ffn_up"),
    same_name("layers.layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
/// The checkpoint stores norm weights minus their initial value, as in PLaMo 2.
const PLAMO_3: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("norm", "output_norm", Transform::PlusOne),
    rule("lm_head", "output", Transform::Tied),
    rule("layers.layers.*.pre_mixer_norm", "blk.*.attn_norm", Transform::PlusOne),
    // llama.cpp's names have no ending here.
    same_name("layers.layers.*.post_mixer_norm", "blk.*.post_attention_norm=")
        .scale(Scale::Plus(super::plamo::AFTER_MIXER)),
    rule("layers.layers.*.pre_mlp_norm", "blk.*.ffn_norm", Transform::PlusOne),
    same_name("layers.layers.*.post_mlp_norm", "blk.*.post_ffw_norm=")
        .scale(Scale::Plus(super::plamo::AFTER_MLP)),
    rule("layers.layers.*.mixer.q_norm", "blk.*.attn_q_norm", Transform::PlusOne),
    rule("layers.layers.*.mixer.k_norm", "blk.*.attn_k_norm", Transform::PlusOne),
    same_name("layers.layers.*.mixer.qkv_proj", "blk.*.attn_qkv"),
    same_name("layers.layers.*.mixer.o_proj", "blk.*.attn_output"),
    same_name("layers.layers.*.mlp.gate_up_proj", "blk.*.ffn_up"),
    same_name("layers.layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
const CHATGLM: &[Rule] = &[
    same_name("embedding.word_embeddings", "token_embd"),
    same_name("encoder.final_layernorm", "output_norm"),
    same_name("output_layer", "output"),
    rule("rotary_pos_emb.inv_freq", "", Transform::Drop),
    same_name("encoder.layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("encoder.layers.*.post_attention_layernorm", "blk.*.ffn_norm"),
    same_name("encoder.layers.*.self_attention.query_key_value", "blk.*.attn_qkv"),
    same_name("encoder.layers.*.self_attention.dense", "blk.*.attn_output"),
    same_name("encoder.layers.*.mlp.dense_h_to_4h", "blk.*.ffn_up"),
    same_name("encoder.layers.*.mlp.dense_4h_to_h", "blk.*.ffn_down"),
];
const JAIS_LAYERS: &[Rule] = &[
    same_name("ln_f", "output_norm"),
    // The largest bias becomes a key; see `computed.rs`.
    rule("relative_pe.slopes", "", Transform::Drop),
    same_name("h.*.ln_1", "blk.*.attn_norm"),
    same_name("h.*.ln_2", "blk.*.ffn_norm"),
    rule("h.*.attn.c_attn", "blk.*.attn_qkv", Transform::Columns),
    rule("h.*.attn.c_proj", "blk.*.attn_output", Transform::Columns),
    rule("h.*.mlp.c_fc", "blk.*.ffn_up", Transform::Columns),
    rule("h.*.mlp.c_fc2", "blk.*.ffn_gate", Transform::Columns),
    rule("h.*.mlp.c_proj", "blk.*.ffn_down", Transform::Columns),
];
const JAIS_TIED: &[Rule] = &[
    same_name("wte", "token_embd").scale(Scale::Times(jais_embedding)),
    same_name("wte", "output").scale(Scale::Times(jais_output)),
    rule("lm_head", "", Transform::Drop),
];
const JAIS_UNTIED: &[Rule] = &[
    same_name("wte", "token_embd").scale(Scale::Times(jais_embedding)),
    same_name("lm_head", "output").scale(Scale::Times(jais_output)),
];
/// One matrix has queries, then keys, then values.
const LING_1: &[Rule] = &[
    same_name("word_embeddings", "token_embd"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output").scale(Scale::UnitRows(normalises_head)),
    rule("layers.*.attention.query_key_value", "blk.*.attn_q", Transform::Rows(|b| joined(b, 0))),
    rule("layers.*.attention.query_key_value", "blk.*.attn_k", Transform::Rows(|b| joined(b, 1))),
    rule("layers.*.attention.query_key_value", "blk.*.attn_v", Transform::Rows(|b| joined(b, 2))),
    same_name("layers.*.attention.dense", "blk.*.attn_output"),
];
const DENSE_THEN_EXPERTS: &[(On, &[Rule])] =
    &[(On::Dense, GATED), (On::Dense, UP_DOWN), (On::Experts, EXPERTS), (On::Experts, SHARED)];
const FIRST_EXPERTS: &[Setting] =
    &[DEEPSEEK[0], whole("expert_shared_count", &["n_shared_experts", "num_shared_experts"])];
const LING_EXPERTS: &[Setting] =
    &[FIRST_EXPERTS[0], FIRST_EXPERTS[1], flag("expert_weights_norm", &["norm_topk_prob"])];

const JAIS: Family = Family {
    arch: "jais",
    classes: &["JAISLMHeadModel"],
    when: is_tied,
    activation: "",
    rules: &[JAIS_TIED, JAIS_LAYERS],
    keys: jais,
    ..LLAMA
};

pub(super) const FAMILIES: &[Family] = &[
    Family {
        classes: &["InternLM3ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        ..LLAMA
    },
    Family {
        arch: "xverse",
        classes: &["XverseForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        keys: |build| rms(build, 1.0),
        ..LLAMA
    },
    Family {
        arch: "orion",
        classes: &["OrionForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, GATED, UP_DOWN],
        keys: orion,
        ..LLAMA
    },
    Family {
        arch: "pangu-embedded",
        classes: &["PanguEmbeddedForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, VO, GATED, UP_DOWN],
        keys: pangu,
        ..LLAMA
    },
    Family {
        arch: "maincoder",
        classes: &["MaincoderForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, GATED, UP_DOWN],
        keys: |build| rms(build, 1.0),
        ..LLAMA
    },
    Family {
        arch: "nanbeige",
        classes: &["NanbeigeForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GATED, UP_DOWN],
        keys: nanbeige,
        ..LLAMA
    },
    Family {
        arch: "deepseek",
        classes: &["DeepseekForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO],
        some: DENSE_THEN_EXPERTS,
        settings: FIRST_EXPERTS,
        keys: deepseek,
        ..LLAMA
    },
    Family {
        arch: "bailingmoe",
        classes: &["BailingMoeForCausalLM"],
        rules: &[LING_1, NORMS],
        some: DENSE_THEN_EXPERTS,
        settings: LING_EXPERTS,
        keys: first_experts,
        ..LLAMA
    },
    Family {
        arch: "plamo",
        classes: &["PlamoForCausalLM"],
        rules: &[PLAMO_1],
        keys: plamo_1,
        ..LLAMA
    },
    Family {
        arch: "plamo3",
        classes: &["Plamo3ForCausalLM", "PLaMo3ForCausalLM"],
        rules: &[PLAMO_3],
        keys: plamo_3,
        ..LLAMA
    },
    Family {
        arch: "chatglm",
        classes: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
        rules: &[CHATGLM],
        keys: chatglm,
        ..LLAMA
    },
    JAIS,
    Family { when: |config| !is_tied(config), rules: &[JAIS_UNTIED, JAIS_LAYERS], ..JAIS },
];

/// The setting is that of RMS norms, but the model has LayerNorm.
fn orion(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let keys = &["max_sequence_length", "max_position_embeddings", "model_max_length"];
    build.set("context_length", config.count(keys, "the context length")?);
    build.shape()?;
    build.feed_forward()?;
    let eps = config.need_f32(super::keys::RMS_EPS, "the epsilon of the norm layers")?;
    build.set("attention.layer_norm_epsilon", eps);
    build.rope(build.d_head()?)
}

fn pangu(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    let d_head = build.d_head()?;
    build.replace("attention.key_length", d_head);
    build.replace("attention.value_length", d_head);
    Ok(())
}

fn nanbeige(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if let Some(n) = config.u32(&["num_loops"])?.filter(|&n| n > 1) {
        let expected = "1: files with loops over layers do not run";
        return Err(config.wrong_value("num_loops", expected, n));
    }
    table::llama(build)?;
    build.set("num_loops", 1_u32);
    let skips = config.bool(&["skip_loop_final_norm"])?.unwrap_or(false);
    build.set("skip_loop_final_norm", skips);
    Ok(())
}

/// A softmax over all experts, and a shared expert.
fn first_experts(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    match config.text(&["scoring_func"])?.as_deref() {
        None => {}
        Some("softmax") => build.set("expert_gating_func", SOFTMAX),
        Some(other) => return Err(config.wrong_value("scoring_func", "softmax", other)),
    }
    for key in ["n_group", "num_expert_group"] {
        if let Some(n) = config.u32(&[key])?.filter(|&n| n > 1) {
            return Err(config.wrong_value(key, "1", n));
        }
    }
    rms(build, 1.0)?;
    leading_dense(build)?;
    build.set("expert_weights_scale", 1.0_f32);
    build.experts()
}

fn deepseek(build: &mut Build<'_>) -> Result<(), Error> {
    if build.config.bool(&["norm_topk_prob"])? == Some(true) {
        let expected = "false, as in DeepSeek MoE 16B";
        return Err(build.config.wrong_value("norm_topk_prob", expected, true));
    }
    first_experts(build)
}

/// Whether each row of the output matrix is divided by its length.
fn normalises_head(build: &Build<'_>) -> Result<bool, Error> {
    Ok(build.config.bool(&["norm_head"])?.unwrap_or(false))
}

/// The rows of queries (0), keys (1) or values (2) in Ling's joined matrix.
fn joined(build: &Build<'_>, part: u32) -> Result<Selection, Error> {
    let (n_head, n_kv, d_head) = (build.n_head()?, build.n_head_kv()?, build.d_head()?);
    let size = n_head.saturating_add(2 * n_kv).saturating_mul(d_head);
    if size > 1 << 24 {
        return Err(build.config.wrong_value("num_attention_heads", "at most 2^24 rows", size));
    }
    let (q, kv) = (n_head * d_head, n_kv * d_head);
    let (first, n) = [(0, q), (q, kv), (q + kv, kv)][part as usize];
    let map = RowMap::Rope { d_head: d_head as usize, n_rot: d_head as usize };
    let within = |row: u32| if part < 2 { map.source(row as usize, 0) as u32 } else { row };
    Ok(Selection::join((0..n).map(|row| first + within(row)), size))
}

/// The groups of query heads that share a key head: the checkpoint has the first head of each group,
/// then the second ones.
fn plamo_heads(build: &Build<'_>) -> Result<(u32, u32), Error> {
    let shared = build.config.u32(&["n_shared_head"])?.unwrap_or(8);
    let n_head = build.n_head()?;
    if shared == 0 || !n_head.is_multiple_of(shared) {
        let expected = format!("a divisor of the {n_head} heads");
        return Err(build.config.wrong_value("n_shared_head", &expected, shared));
    }
    Ok((shared, n_head / shared))
}

fn grouped_heads(build: &Build<'_>) -> Result<Selection, Error> {
    let ((per_group, n_group), d_head) = (plamo_heads(build)?, build.d_head()?);
    let heads = (0..n_group).flat_map(move |g| (0..per_group).map(move |i| i * n_group + g));
    let rows = heads.flat_map(move |head| (0..d_head).map(move |row| head * d_head + row));
    Ok(Selection::join(rows, build.n_embd()?))
}

fn plamo_1(build: &mut Build<'_>) -> Result<(), Error> {
    // The settings state no context; the models were trained with this one.
    build.set("context_length", build.config.u32(&["max_position_embeddings"])?.unwrap_or(4096));
    build.shape()?;
    let (_, n_kv) = plamo_heads(build)?;
    build.replace("attention.head_count_kv", n_kv);
    build.feed_forward()?;
    build.rms()
}

fn plamo_3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    rms(build, 1.0)?;
    if let Some(factor) = config.f32(&["rope_scaling_factor"])?.filter(|&factor| factor != 1.0) {
        build.set("rope.scaling.type", "yarn");
        build.set("rope.scaling.factor", factor);
        let original = config.count(&["initial_context_length"], "the context of the training")?;
        build.set("rope.scaling.original_context_length", original);
    }
    if let Some(window) = config.u32(&["window_size", "sliding_window"])? {
        build.replace("attention.sliding_window", window);
        let period = config.count(&["sliding_window_pattern"], "the layers up to a global one")?;
        build.replace("attention.sliding_window_pattern", period);
        if let Some(base) = config.f32(&["rope_local_theta"])? {
            build.set("rope.freq_base_swa", base);
        }
    }
    Ok(())
}

fn chatglm(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, usual) in [
        ("rmsnorm", true),
        ("post_layer_norm", true),
        ("add_bias_linear", false),
        ("original_rope", true),
    ] {
        if let Some(other) = config.bool(&[key])?.filter(|&found| found != usual) {
            let expected = format!("{usual}, as in ChatGLM 3");
            return Err(config.wrong_value(key, &expected, other));
        }
    }
    build.set("context_length", config.count(&["seq_length"], "the context length")?);
    build.shape()?;
    if config.bool(&["multi_query_attention"])? == Some(true) {
        let n = config.count(&["multi_query_group_num"], "the number of key and value heads")?;
        build.replace("attention.head_count_kv", n);
    }
    let n_ff = config.count(&["ffn_hidden_size"], "the number of neurons in a layer")?;
    build.set("feed_forward_length", n_ff);
    let eps = config.f32(&["layernorm_epsilon"])?.unwrap_or(1e-5);
    build.set("attention.layer_norm_rms_epsilon", eps);
    let d_head = match config.u32(&["kv_channels"])? {
        Some(d_head) => d_head,
        None => build.d_head()?,
    };
    // Half of each head has RoPE.
    build.set("rope.dimension_count", d_head / 2);
    build.set("rope.freq_base", 10_000.0 * config.f32(&["rope_ratio"])?.unwrap_or(1.0));
    Ok(())
}

fn is_tied(config: &crate::config::Json) -> bool {
    config.bool(&["tie_word_embeddings"]).ok().flatten().unwrap_or(true)
}

fn jais_embedding(build: &Build<'_>) -> Result<f32, Error> {
    build.config.need_f32(&["mup_embeddings_scale", "embeddings_scale"], "the embedding's factor")
}

fn jais_output(build: &Build<'_>) -> Result<f32, Error> {
    let config = build.config;
    match config.f32(&["mup_output_alpha"])? {
        Some(alpha) => Ok(alpha * config.need_f32(&["mup_width_scale"], "the output's factor")?),
        None => config.need_f32(&["width_scale"], "the output's factor"),
    }
}

fn jais(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    for (key, expected) in [("activation_function", "swiglu"), ("position_embedding_type", "alibi")]
    {
        if let Some(found) = config.text(&[key])?.filter(|found| found != expected) {
            return Err(config.wrong_value(key, &format!("{expected}, as in Jais"), found));
        }
    }
    const SCALE: &[&str] = &["mup_scale_qk_dot_by_d", "scale_qk_dot_by_d"];
    if config.bool(SCALE)? == Some(false) {
        let expected = "true: readers of the file divide scores by the head size";
        return Err(config.wrong_value(SCALE[0], expected, false));
    }
    build.set("context_length", config.count(&["n_positions"], "the context length")?);
    build.shape()?;
    let n_ff = config.count(&["n_inner"], "the number of neurons in a layer")?;
    build.set("feed_forward_length", n_ff);
    build.set("attention.layer_norm_epsilon", config.f32(EPS)?.unwrap_or(1e-5));
    Ok(())
}
