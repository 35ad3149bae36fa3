//! Kimi K3: Kimi Delta Attention beside gated latent attention, experts narrower than the residual, and
//! mixes of earlier residuals.

use super::Family;
use super::experts::{DEEPSEEK, SIGMOID, gating, leading_dense};
use super::hybrid::attention_or;
use super::kda::{KIMI_DELTA, KIMI_EXPERTS, KIMI_LATENT, full_layers};
use super::keys::{Build, Setting, count, flag, whole};
use super::latent::{LOW_RANK_QUERY, WHOLE_QUERY, part};
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, GATED, NORMS, UP_DOWN};
use super::table::LLAMA;
use crate::Error;
use gguf::{Array, Value};

/// Files have the product of the norm and the row of scores; see `computed.rs`.
const MIXES: &[Rule] = &[
    rule("layers.*.self_attention_res_norm", "", Transform::Drop),
    rule("layers.*.self_attention_res_proj", "", Transform::Drop),
    rule("layers.*.mlp_res_norm", "", Transform::Drop),
    rule("layers.*.mlp_res_proj", "", Transform::Drop),
    rule("output_attn_res_norm", "", Transform::Drop),
    rule("output_attn_res_proj", "", Transform::Drop),
];
const GATES: &[Rule] = &[
    same_name("layers.*.self_attn.f_a_proj", "blk.*.ssm_f_a"),
    same_name("layers.*.self_attn.f_b_proj", "blk.*.ssm_f_b"),
    same_name("layers.*.self_attn.g_proj", "blk.*.ssm_g"),
    // The checkpoint may have rates of more heads.
    rule("layers.*.self_attn.A_log", "blk.*.ssm_a=", Transform::FirstRows(|build| build.n_head()))
        .reshape(Reshape::Flat)
        .scale(Scale::NegExp),
];
const ATTENTION: &[Rule] = &[
    same_name("layers.*.self_attn.g_proj", "blk.*.attn_gate"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
const LATENT_EXPERTS: &[Rule] = &[
    same_name("layers.*.block_sparse_moe.routed_expert_down_proj", "blk.*.ffn_routed_down"),
    same_name("layers.*.block_sparse_moe.routed_expert_up_proj", "blk.*.ffn_routed_up"),
    same_name("layers.*.block_sparse_moe.routed_expert_norm", "blk.*.ffn_routed_norm").optional(),
];
const SETTINGS: &[Setting] = &[
    DEEPSEEK[0],
    DEEPSEEK[1],
    DEEPSEEK[4],
    flag("expert_weights_norm", &["moe_renormalize"]),
    whole("expert_latent_length", &["routed_expert_hidden_size"]),
    count("attn_res.block_size", &["attn_res_block_size"]),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "kimi-k3",
    classes: &["KimiK3ForConditionalGeneration"],
    activation: "",
    rules: &[EMBEDDINGS, NORMS, MIXES],
    some: &[
        (On::Recurrent, KIMI_DELTA),
        (On::Recurrent, GATES),
        (On::Attention, KIMI_LATENT),
        (On::Attention, ATTENTION),
        (On::WholeQuery, WHOLE_QUERY),
        (On::LowRankQuery, LOW_RANK_QUERY),
        (On::Dense, GATED),
        (On::Dense, UP_DOWN),
        (On::Experts, KIMI_EXPERTS),
        (On::Experts, LATENT_EXPERTS),
    ],
    settings: SETTINGS,
    keys: kimi_k3,
    ..LLAMA
}];

fn kimi_k3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    let wrong = |key: &str, expected: &str, found: String| {
        Err(config.wrong_value(key, &format!("{expected}, as in Kimi K3"), found))
    };
    for (key, usual) in [("hidden_act", "situ"), ("moe_router_activation_func", "sigmoid")] {
        if let Some(other) = config.text(&[key])?.filter(|found| found != usual) {
            return wrong(key, usual, other);
        }
    }
    if config.bool(&["mla_use_nope"])? != Some(true) {
        return wrong("mla_use_nope", "true", "false or none".to_owned());
    }
    for key in ["num_expert_group", "n_group"] {
        if let Some(n) = config.u32(&[key])?.filter(|&n| n > 1) {
            return wrong(key, "1", n.to_string());
        }
    }
    let delta = config.inner("linear_attn_config")?;
    let n_head = build.n_head()?;
    if let Some(other) = delta.u32(&["num_heads"])?.filter(|&n| n != n_head) {
        let expected = format!("{n_head}, as num_attention_heads");
        return wrong("linear_attn_config.num_heads", &expected, other.to_string());
    }
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    leading_dense(build)?;
    gating(build, SIGMOID)?;
    let is_recurrent = full_layers(build)?;
    attention_or(build, &is_recurrent)?;
    let kv = is_recurrent.iter().map(|&recurrent| i32::from(!recurrent)).collect();
    build.replace("attention.head_count_kv", Value::Array(Array::I32(kv)));
    let size = |key: &'static str| delta.count(&[key], "a size of Kimi Delta Attention");
    build.set("kda.head_dim", size("head_dim")?);
    build.set("ssm.conv_kernel", size("short_conv_kernel_size")?);
    if let Some(bound) = delta.f32(&["gate_lower_bound"])? {
        build.set("kda.gate_lower_bound", bound);
    }
    let (d_rope, d_nope) = (part(build, "qk_rope_head_dim")?, part(build, "qk_nope_head_dim")?);
    let (rank, d_value) = (part(build, "kv_lora_rank")?, part(build, "v_head_dim")?);
    build.set("attention.kv_lora_rank", rank);
    build.set("attention.key_length", rank + d_rope);
    build.set("attention.value_length", rank);
    build.set("attention.key_length_mla", d_nope + d_rope);
    build.set("attention.value_length_mla", d_value);
    // No part of a head has RoPE; the key says which columns of the latent vector come last.
    build.rope(d_rope)?;
    let query = config.u32(&["q_lora_rank"])?.filter(|&rank| rank > 0);
    if let Some(rank) = query {
        build.set("attention.q_lora_rank", rank);
    }
    build.layers_on(On::LowRankQuery, |layer| query.is_some() && !is_recurrent[layer as usize])?;
    build.layers_on(On::WholeQuery, |layer| query.is_none() && !is_recurrent[layer as usize])?;
    for (to, from) in [
        ("activation.situ_beta", "activation_situ_beta"),
        ("activation.situ_linear_beta", "activation_situ_linear_beta"),
    ] {
        build.set(to, config.need_f32(&[from], "a number of the activation")?);
    }
    Ok(())
}
