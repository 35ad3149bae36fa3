//! Families with state spaces (Mamba), alone or beside attention.

use super::dense::GRANITE_SCALES;
use super::experts::GRANITE_BLOCKS;
use super::hybrid::attention_or;
use super::keys::{Build, Setting, WIDTH, count};
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, NORMS, QK, ROPE_QK, VO};
use super::table::LLAMA;
use super::{Family, granite, rope};
use crate::Error;

pub(super) const MAMBA_ENDS: &[Rule] = &[
    same_name("embeddings", "token_embd"),
    // Of older checkpoints.
    same_name("embedding", "token_embd"),
    same_name("norm_f", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
    same_name("layers.*.norm", "blk.*.attn_norm"),
];
const MAMBA: &[Rule] = &[
    same_name("layers.*.mixer.in_proj", "blk.*.ssm_in"),
    same_name("layers.*.mixer.conv1d", "blk.*.ssm_conv1d").reshape(Reshape::Squeeze),
    same_name("layers.*.mixer.x_proj", "blk.*.ssm_x"),
    same_name("layers.*.mixer.dt_proj", "blk.*.ssm_dt"),
    same_name("layers.*.mixer.A_log", "blk.*.ssm_a=").scale(Scale::NegExp),
    same_name("layers.*.mixer.D", "blk.*.ssm_d="),
    same_name("layers.*.mixer.out_proj", "blk.*.ssm_out"),
];
const JAMBA: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("final_layernorm", "output_norm"),
    same_name("lm_head", "output"),
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.pre_ff_layernorm", "blk.*.ffn_norm"),
];
const PARTIAL_ROPE_QK: &[Rule] = &[
    rule("layers.*.self_attn.q_proj", "blk.*.attn_q", Transform::RopeFirst(bamba_rotated)),
    rule("layers.*.self_attn.k_proj", "blk.*.attn_k", Transform::RopeFirst(bamba_rotated)),
];
const JAMBA_MAMBA: &[Rule] = &[
    same_name("layers.*.mamba.in_proj", "blk.*.ssm_in"),
    same_name("layers.*.mamba.conv1d", "blk.*.ssm_conv1d").reshape(Reshape::Squeeze),
    same_name("layers.*.mamba.x_proj", "blk.*.ssm_x"),
    same_name("layers.*.mamba.dt_proj", "blk.*.ssm_dt"),
    same_name("layers.*.mamba.dt_layernorm", "blk.*.ssm_dt_norm"),
    same_name("layers.*.mamba.b_layernorm", "blk.*.ssm_b_norm"),
    same_name("layers.*.mamba.c_layernorm", "blk.*.ssm_c_norm"),
    same_name("layers.*.mamba.A_log", "blk.*.ssm_a=").scale(Scale::NegExp),
    same_name("layers.*.mamba.D", "blk.*.ssm_d="),
    same_name("layers.*.mamba.out_proj", "blk.*.ssm_out"),
];
const JAMBA_DENSE: &[Rule] = &[
    same_name("layers.*.feed_forward.gate_proj", "blk.*.ffn_gate"),
    same_name("layers.*.feed_forward.up_proj", "blk.*.ffn_up"),
    same_name("layers.*.feed_forward.down_proj", "blk.*.ffn_down"),
];
const JAMBA_EXPERTS: &[Rule] = &[
    same_name("layers.*.feed_forward.router", "blk.*.ffn_gate_inp"),
    same_name("layers.*.feed_forward.experts.*.gate_proj", "blk.*.ffn_gate_exps"),
    same_name("layers.*.feed_forward.experts.*.up_proj", "blk.*.ffn_up_exps"),
    same_name("layers.*.feed_forward.experts.*.down_proj", "blk.*.ffn_down_exps"),
];

/// The tensors of Mamba-2, whose module has name `$of`.
macro_rules! mamba2 {
    ($of:literal) => {
        &[
            same_name(concat!("layers.*.", $of, ".in_proj"), "blk.*.ssm_in"),
            same_name(concat!("layers.*.", $of, ".conv1d"), "blk.*.ssm_conv1d")
                .reshape(Reshape::Squeeze),
            same_name(concat!("layers.*.", $of, ".dt_bias"), "blk.*.ssm_dt"),
            same_name(concat!("layers.*.", $of, ".A_log"), "blk.*.ssm_a=")
                .reshape(Reshape::Column)
                .scale(Scale::NegExp),
            same_name(concat!("layers.*.", $of, ".D"), "blk.*.ssm_d=").reshape(Reshape::Column),
            same_name(concat!("layers.*.", $of, ".norm"), "blk.*.ssm_norm")
                .reshape(Reshape::Groups(n_group)),
            same_name(concat!("layers.*.", $of, ".out_proj"), "blk.*.ssm_out"),
        ]
    };
}

pub(super) const MIXER: &[Rule] = mamba2!("mixer");
const GRANITE_MAMBA: &[Rule] = mamba2!("mamba");

/// Falcon H1 multiplies most matrices by a setting.
const FALCON_H1: &[Rule] = &[
    same_name("embed_tokens", "token_embd")
        .scale(Scale::Times(|b| factor(b, "embedding_multiplier"))),
    same_name("final_layernorm", "output_norm"),
    same_name("lm_head", "output").scale(Scale::Times(|b| factor(b, "lm_head_multiplier"))),
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    // llama.cpp's name in this family has no ending.
    same_name("layers.*.pre_ff_layernorm", "blk.*.ffn_norm="),
    rule("layers.*.self_attn.q_proj", "blk.*.attn_q", Transform::Same)
        .scale(Scale::Times(|b| factor(b, "attention_in_multiplier"))),
    rule("layers.*.self_attn.k_proj", "blk.*.attn_k", Transform::Same).scale(Scale::Times(|b| {
        Ok(factor(b, "attention_in_multiplier")? * factor(b, "key_multiplier")?)
    })),
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v")
        .scale(Scale::Times(|b| factor(b, "attention_in_multiplier"))),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output")
        .scale(Scale::Times(|b| factor(b, "attention_out_multiplier"))),
    same_name("layers.*.feed_forward.gate_proj", "blk.*.ffn_gate")
        .scale(Scale::Times(|b| listed(b, "mlp_multipliers", 0))),
    same_name("layers.*.feed_forward.up_proj", "blk.*.ffn_up"),
    same_name("layers.*.feed_forward.down_proj", "blk.*.ffn_down")
        .scale(Scale::Times(|b| listed(b, "mlp_multipliers", 1))),
    same_name("layers.*.mamba.in_proj", "blk.*.ssm_in").scale(Scale::RowTimes(input_factors)),
    same_name("layers.*.mamba.conv1d", "blk.*.ssm_conv1d").reshape(Reshape::Squeeze),
    same_name("layers.*.mamba.dt_bias", "blk.*.ssm_dt"),
    same_name("layers.*.mamba.A_log", "blk.*.ssm_a=").reshape(Reshape::Column).scale(Scale::NegExp),
    same_name("layers.*.mamba.D", "blk.*.ssm_d=").reshape(Reshape::Column),
    same_name("layers.*.mamba.norm", "blk.*.ssm_norm").reshape(Reshape::Groups(n_group)).optional(),
    same_name("layers.*.mamba.out_proj", "blk.*.ssm_out")
        .scale(Scale::Times(|b| factor(b, "ssm_out_multiplier"))),
];

const GROUPS: &[&str] = &["n_groups", "mamba_n_groups"];
pub(super) const KERNEL: Setting = count("ssm.conv_kernel", &["conv_kernel", "mamba_d_conv"]);
pub(super) const STATE: Setting =
    count("ssm.state_size", &["state_size", "ssm_state_size", "mamba_d_state"]);
pub(super) const HEADS: Setting =
    count("ssm.time_step_rank", &["num_heads", "mamba_num_heads", "mamba_n_heads"]);
pub(super) const GROUP: Setting = count("ssm.group_count", GROUPS);
/// State spaces have no limit; this is llama.cpp's number for none.
const NO_LIMIT: u32 = 1 << 20;

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "mamba",
        classes: &["MambaForCausalLM", "FalconMambaForCausalLM"],
        activation: "",
        rules: &[MAMBA_ENDS, MAMBA],
        settings: &[KERNEL, STATE, count("ssm.time_step_rank", &["time_step_rank"])],
        keys: mamba,
        ..LLAMA
    },
    Family {
        arch: "mamba2",
        classes: &["Mamba2ForCausalLM"],
        activation: "",
        rules: &[MAMBA_ENDS, MIXER],
        settings: &[KERNEL, STATE, HEADS, GROUP],
        keys: mamba2,
        ..LLAMA
    },
    BAMBA,
    Family {
        arch: "granitehybrid",
        classes: &["GraniteMoeHybridForCausalLM"],
        when: granite::has_mamba,
        rules: &[EMBEDDINGS, NORMS],
        some: &[
            (On::Attention, ROPE_QK),
            (On::Attention, VO),
            (On::Recurrent, GRANITE_MAMBA),
            GRANITE_BLOCKS[0],
            GRANITE_BLOCKS[1],
        ],
        settings: &[
            GRANITE_SCALES[0],
            GRANITE_SCALES[1],
            GRANITE_SCALES[2],
            GRANITE_SCALES[3],
            KERNEL,
            STATE,
            HEADS,
            GROUP,
        ],
        keys: granite_hybrid,
        ..LLAMA
    },
    Family {
        arch: "falcon-h1",
        classes: &["FalconH1ForCausalLM"],
        rules: &[FALCON_H1],
        settings: &[KERNEL, STATE, HEADS, GROUP, count("ssm.inner_size", &["mamba_d_ssm"])],
        keys: falcon_h1,
        ..LLAMA
    },
    Family {
        arch: "jamba",
        classes: &["JambaForCausalLM"],
        rules: &[JAMBA],
        some: &[
            (On::Attention, QK),
            (On::Attention, VO),
            (On::Recurrent, JAMBA_MAMBA),
            (On::Dense, JAMBA_DENSE),
            (On::Experts, JAMBA_EXPERTS),
        ],
        settings: &[KERNEL, STATE, count("ssm.time_step_rank", &["mamba_dt_rank"])],
        keys: jamba,
        ..LLAMA
    },
];

/// Bamba: RoPE on a part of each head, in the layers with attention.
const BAMBA: Family = Family {
    arch: "granitehybrid",
    classes: &["BambaForCausalLM"],
    rules: &[JAMBA, JAMBA_DENSE],
    some: &[(On::Attention, PARTIAL_ROPE_QK), (On::Attention, VO), (On::Recurrent, GRANITE_MAMBA)],
    settings: &[KERNEL, STATE, HEADS, GROUP],
    keys: bamba,
    ..LLAMA
};

fn n_group(build: &Build<'_>) -> Result<u32, Error> {
    build.config.count(GROUPS, "the number of groups")
}

fn factor(build: &Build<'_>, key: &'static str) -> Result<f32, Error> {
    Ok(build.config.f32(&[key])?.unwrap_or(1.0))
}

fn listed(build: &Build<'_>, key: &'static str, i: usize) -> Result<f32, Error> {
    let Some(list) = build.config.list(key)? else { return Ok(1.0) };
    let number = list.get(i).and_then(serde_json::Value::as_f64);
    number.map(|number| number as f32).ok_or_else(|| {
        build.config.wrong_value(key, "a list of factors", format!("a list of {}", list.len()))
    })
}

/// Falcon H1's factors of gates, inputs, the two state matrices, and time steps.
fn input_factors(build: &Build<'_>) -> Result<Vec<f32>, Error> {
    let size = |keys: &'static [&'static str]| {
        Ok::<_, Error>(build.config.count(keys, "a size of the state spaces")? as usize)
    };
    let (d_inner, n_head) = (size(&["mamba_d_ssm"])?, size(&["mamba_n_heads"])?);
    let d_state = size(GROUPS)?.saturating_mul(size(&["mamba_d_state"])?);
    if d_state > 1 << 24 {
        return Err(build.config.wrong_value("mamba_d_state", "at most 2^24 with groups", d_state));
    }
    let all = factor(build, "ssm_in_multiplier")?;
    let mut rows = Vec::new();
    for (i, n) in [d_inner, d_inner, d_state, d_state, n_head].into_iter().enumerate() {
        let number = all * listed(build, "ssm_multipliers", i)?;
        rows.resize(rows.len() + n, number);
    }
    Ok(rows)
}

/// Keys of a model without attention.
fn without_attention(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let n_embd = config.count(WIDTH, "the embedding size")?;
    build.set("context_length", NO_LIMIT);
    build.set("embedding_length", n_embd);
    build.set("block_count", build.n_layer()?);
    // llama.cpp requires both keys.
    build.set("feed_forward_length", 0_u32);
    build.set("attention.head_count", 0_u32);
    let eps = config.f32(&["layer_norm_epsilon", "rms_norm_eps"])?.unwrap_or(1e-5);
    build.set("attention.layer_norm_rms_epsilon", eps);
    let expand = config.u32(&["expand"])?.unwrap_or(2);
    let inner = config.u32(&["intermediate_size"])?;
    build.set("ssm.inner_size", inner.unwrap_or(n_embd.saturating_mul(expand)));
    if config.bool(&["use_bias"])? == Some(true) {
        return Err(config.wrong_value("use_bias", "false, as in Mamba", true));
    }
    Ok(())
}

fn mamba(build: &mut Build<'_>) -> Result<(), Error> {
    without_attention(build)?;
    let config = build.config;
    // Falcon Mamba normalises time steps and the two state matrices.
    let normalises = config.text(&["model_type"])?.as_deref() == Some("falcon_mamba");
    build.set("ssm.dt_b_c_rms", normalises);
    Ok(())
}

fn mamba2(build: &mut Build<'_>) -> Result<(), Error> {
    without_attention(build)?;
    let config = build.config;
    let d_head = config.count(&["head_dim"], "the size of a head")?;
    let n_head = config.count(&["num_heads"], "the number of heads")?;
    build.replace("ssm.inner_size", d_head.saturating_mul(n_head));
    Ok(())
}

/// Inner size of Mamba-2: heads of the stated size.
pub(super) fn set_inner(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let n_head =
        config.count(&["mamba_n_heads", "mamba_num_heads"], "the number of state heads")?;
    let d_head = config.count(&["mamba_d_head", "mamba_head_dim"], "the size of a state head")?;
    build.set("ssm.inner_size", n_head.saturating_mul(d_head));
    for key in ["mamba_proj_bias", "use_bias", "mlp_bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false", true));
        }
    }
    Ok(())
}

fn granite_hybrid(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    set_inner(build)?;
    let config = build.config;
    let Some(kinds) = build.kinds("layer_types")? else {
        return Err(config.missing("layer_types", "the kind of each layer"));
    };
    let is_mamba: Vec<bool> =
        kinds.iter().map(|kind| matches!(kind.as_str(), "mamba" | "linear_attention")).collect();
    attention_or(build, &is_mamba)?;
    let n_head_kv = build.n_head_kv()?;
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    let has_experts = config.u32(&["num_local_experts"])?.is_some_and(|n| n > 0);
    build.layers_on(On::Experts, |_| has_experts)?;
    build.layers_on(On::Dense, |_| !has_experts)?;
    let shared = config.u32(&["shared_intermediate_size"])?;
    if has_experts {
        build.experts()?;
        if let Some(shared) = shared {
            build.set("expert_shared_feed_forward_length", shared);
        }
    } else if let Some(shared) = shared {
        build.replace("feed_forward_length", shared);
    }
    granite::rope(build).map(|_| ())
}

fn bamba_rotated(build: &Build<'_>) -> Result<u32, Error> {
    match build.config.u32(&["attn_rotary_emb"])? {
        Some(n) => Ok(n),
        None => rope::n_rotated(build, 0.5),
    }
}

fn bamba(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    set_inner(build)?;
    let config = build.config;
    let listed = config.list("attn_layer_indices")?.cloned().unwrap_or_default();
    let is_attention =
        |layer: u32| listed.iter().any(|index| index.as_u64() == Some(u64::from(layer)));
    let is_mamba: Vec<bool> = (0..build.n_layer()?).map(|layer| !is_attention(layer)).collect();
    attention_or(build, &is_mamba)?;
    let n_head_kv = build.n_head_kv()?;
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    build.set("rope.scaling.finetuned", true);
    build.rope(bamba_rotated(build)?)
}

fn falcon_h1(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    let config = build.config;
    for key in ["mamba_proj_bias", "mlp_bias", "attention_bias", "projectors_bias"] {
        if config.bool(&[key])? == Some(true) {
            return Err(config.wrong_value(key, "false, as in Falcon H1", true));
        }
    }
    if config.bool(&["tie_word_embeddings"])? == Some(true) {
        // The embedding and the output have different factors.
        return Err(config.wrong_value("tie_word_embeddings", "false, as in Falcon H1", true));
    }
    if config.bool(&["mamba_rms_norm"])? == Some(true)
        && config.bool(&["mamba_norm_before_gate"])? == Some(false)
    {
        return Err(config.wrong_value("mamba_norm_before_gate", "true", false));
    }
    build.rope(build.d_head()?)
}

fn jamba(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let config = build.config;
    if config.bool(&["mamba_proj_bias"])? == Some(true) {
        return Err(config.wrong_value("mamba_proj_bias", "false, as in Jamba", true));
    }
    let expand = config.u32(&["mamba_expand"])?.unwrap_or(2);
    build.set("ssm.inner_size", build.n_embd()?.saturating_mul(expand));
    let every = |period: &'static str, offset: &'static str| {
        let period = config.count(&[period], "the distance between such layers")?;
        let offset = config.u32(&[offset])?.unwrap_or(0);
        Ok::<_, Error>(move |layer: u32| layer >= offset && (layer - offset).is_multiple_of(period))
    };
    let has_attention = every("attn_layer_period", "attn_layer_offset")?;
    let has_experts = every("expert_layer_period", "expert_layer_offset")?;
    let n_expert = config.u32(&["num_experts"])?.unwrap_or(0);
    build.layers_on(On::Attention, has_attention)?;
    build.layers_on(On::Recurrent, |layer| !has_attention(layer))?;
    build.layers_on(On::Experts, |layer| n_expert > 1 && has_experts(layer))?;
    build.layers_on(On::Dense, |layer| n_expert <= 1 || !has_experts(layer))?;
    let n_head_kv = build.n_head_kv()?;
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    if n_expert > 1 { build.experts() } else { Ok(()) }
}
