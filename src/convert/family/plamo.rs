//! PLaMo 2: Mamba in every second layer, norms on both sides of both halves of a layer.

use super::Family;
use super::hybrid::attention_or;
use super::keys::Build;
use super::rule::{On, Reshape, Rule, Scale, Transform, rule, same_name};
use super::table::LLAMA;
use crate::Error;

/// The checkpoint stores norm weights minus the value with which training began: 1, or less for norms
/// after a half of a layer.
pub(super) const AFTER_MIXER: f32 = 1.0 / 5.0;
/// 5^-1.5.
pub(super) const AFTER_MLP: f32 = 0.089_442_72;

const PLAMO2: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    rule("norm", "output_norm", Transform::PlusOne),
    rule("lm_head", "output", Transform::Tied),
    rule("layers.layers.*.pre_mixer_norm", "blk.*.attn_norm", Transform::PlusOne),
    // llama.cpp's names have no ending here.
    same_name("layers.layers.*.post_mixer_norm", "blk.*.post_attention_norm=")
        .scale(Scale::Plus(AFTER_MIXER)),
    rule("layers.layers.*.pre_mlp_norm", "blk.*.ffn_norm", Transform::PlusOne),
    same_name("layers.layers.*.post_mlp_norm", "blk.*.post_ffw_norm=")
        .scale(Scale::Plus(AFTER_MLP)),
    same_name("layers.layers.*.mlp.gate_up_proj", "blk.*.ffn_up"),
    same_name("layers.layers.*.mlp.down_proj", "blk.*.ffn_down"),
];
const ATTENTION: &[Rule] = &[
    same_name("layers.layers.*.mixer.qkv_proj", "blk.*.attn_qkv"),
    same_name("layers.layers.*.mixer.o_proj", "blk.*.attn_output"),
    same_name("layers.layers.*.mixer.q_weight", "blk.*.attn_q_norm"),
    same_name("layers.layers.*.mixer.k_weight", "blk.*.attn_k_norm"),
];
const MAMBA: &[Rule] = &[
    same_name("layers.layers.*.mixer.in_proj", "blk.*.ssm_in"),
    same_name("layers.layers.*.mixer.conv1d", "blk.*.ssm_conv1d").reshape(Reshape::Squeeze),
    same_name("layers.layers.*.mixer.bcdt_proj", "blk.*.ssm_x"),
    same_name("layers.layers.*.mixer.dt_proj", "blk.*.ssm_dt"),
    same_name("layers.layers.*.mixer.dt_bias", "blk.*.ssm_dt"),
    same_name("layers.layers.*.mixer.dt_norm_weight", "blk.*.ssm_dt_norm="),
    same_name("layers.layers.*.mixer.B_norm_weight", "blk.*.ssm_b_norm="),
    same_name("layers.layers.*.mixer.C_norm_weight", "blk.*.ssm_c_norm="),
    same_name("layers.layers.*.mixer.A_log", "blk.*.ssm_a=").scale(Scale::NegExp),
    same_name("layers.layers.*.mixer.D", "blk.*.ssm_d="),
    same_name("layers.layers.*.mixer.out_proj", "blk.*.ssm_out"),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "plamo2",
    classes: &["Plamo2ForCausalLM", "PLaMo2ForCausalLM"],
    rules: &[PLAMO2],
    some: &[(On::Attention, ATTENTION), (On::Recurrent, MAMBA)],
    keys: plamo2,
    ..LLAMA
}];

fn plamo2(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let config = build.config;
    let n_layer = build.n_layer()?;
    let step = config.u32(&["mamba_step"])?.unwrap_or(2).max(1);
    let enabled = config.bool(&["mamba_enabled"])?.unwrap_or(true);
    let is_mamba = |layer: u32| {
        enabled && if n_layer <= step / 2 { layer != n_layer - 1 } else { layer % step != step / 2 }
    };
    let mamba: Vec<bool> = (0..n_layer).map(is_mamba).collect();
    attention_or(build, &mamba)?;
    let (n_head, n_head_kv) = (build.n_head()?, build.n_head_kv()?);
    build.per_layer("attention.head_count", On::Attention, n_head);
    build.per_layer("attention.head_count_kv", On::Attention, n_head_kv);
    let size = |key: &'static str| config.count(&[key], "a size of the layers");
    let d_head = size("hidden_size_per_head")?;
    build.set("attention.key_length", d_head);
    build.set("attention.value_length", d_head);
    build.set("ssm.state_size", size("mamba_d_state")?);
    build.set("ssm.conv_kernel", size("mamba_d_conv")?);
    let heads = size("mamba_num_heads")?;
    build.set("ssm.time_step_rank", heads);
    build.set("ssm.inner_size", heads.saturating_mul(d_head));
    build.set("ssm.group_count", 0_u32);
    let base = config.f32(&["rope_theta"])?.unwrap_or(10_000.0);
    build.set("rope.freq_base", base);
    Ok(())
}
