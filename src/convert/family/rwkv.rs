//! RWKV-6 and RWKV-7: no attention; most matrices of the time mix are of low rank.

use super::Family;
use super::keys::{Build, WIDTH};
use super::rule::{On, Reshape, Rule, Transform, rule, same_name};
use super::table::LLAMA;
use crate::Error;

/// Recurrent models have no context limit; llama.cpp writes this number instead.
const NO_LIMIT: u32 = 1 << 20;

const fn flat(from: &'static str, to: &'static str) -> Rule {
    same_name(from, to).reshape(Reshape::Flat)
}

const fn columns(from: &'static str, to: &'static str) -> Rule {
    rule(from, to, Transform::Columns)
}

const RWKV6: &[Rule] = &[
    same_name("embeddings", "token_embd"),
    same_name("blocks.0.pre_ln", "token_embd_norm"),
    same_name("ln_out", "output_norm"),
    same_name("head", "output"),
    same_name("blocks.*.ln1", "blk.*.attn_norm"),
    same_name("blocks.*.ln2", "blk.*.attn_norm_2"),
    flat("blocks.*.attention.time_maa_x", "blk.*.time_mix_lerp_x"),
    flat("blocks.*.attention.time_maa_w", "blk.*.time_mix_lerp_w"),
    flat("blocks.*.attention.time_maa_k", "blk.*.time_mix_lerp_k"),
    flat("blocks.*.attention.time_maa_v", "blk.*.time_mix_lerp_v"),
    flat("blocks.*.attention.time_maa_r", "blk.*.time_mix_lerp_r"),
    flat("blocks.*.attention.time_maa_g", "blk.*.time_mix_lerp_g"),
    columns("blocks.*.attention.time_maa_w1", "blk.*.time_mix_w1"),
    columns("blocks.*.attention.time_maa_w2", "blk.*.time_mix_w2"),
    flat("blocks.*.attention.time_decay", "blk.*.time_mix_decay"),
    columns("blocks.*.attention.time_decay_w1", "blk.*.time_mix_decay_w1"),
    columns("blocks.*.attention.time_decay_w2", "blk.*.time_mix_decay_w2"),
    same_name("blocks.*.attention.time_faaaa", "blk.*.time_mix_first"),
    same_name("blocks.*.attention.key", "blk.*.time_mix_key"),
    same_name("blocks.*.attention.value", "blk.*.time_mix_value"),
    same_name("blocks.*.attention.receptance", "blk.*.time_mix_receptance"),
    same_name("blocks.*.attention.gate", "blk.*.time_mix_gate"),
    same_name("blocks.*.attention.output", "blk.*.time_mix_output"),
    same_name("blocks.*.attention.ln_x", "blk.*.time_mix_ln"),
    flat("blocks.*.feed_forward.time_maa_k", "blk.*.channel_mix_lerp_k"),
    flat("blocks.*.feed_forward.time_maa_r", "blk.*.channel_mix_lerp_r"),
    same_name("blocks.*.feed_forward.key", "blk.*.channel_mix_key"),
    same_name("blocks.*.feed_forward.receptance", "blk.*.channel_mix_receptance"),
    same_name("blocks.*.feed_forward.value", "blk.*.channel_mix_value"),
];

/// Part `$part` of low rank, from module `$from`; the bias has a name of its own.
macro_rules! low_rank {
    ($from:literal, $part:literal) => {
        &[
            same_name(
                concat!("layers.*.attn.", $from, "_lora.lora.0"),
                concat!("blk.*.time_mix_", $part, "1"),
            ),
            same_name(
                concat!("layers.*.attn.", $from, "_lora.lora.2"),
                concat!("blk.*.time_mix_", $part, "2"),
            ),
            same_name(
                concat!("layers.*.attn.", $from, "_lora.lora.2.bias"),
                concat!("blk.*.time_mix_", $part, "0"),
            ),
        ]
    };
}

const RWKV7: &[Rule] = &[
    same_name("embeddings", "token_embd"),
    same_name("layers.0.pre_norm", "token_embd_norm"),
    same_name("norm", "output_norm"),
    same_name("lm_head", "output"),
    same_name("layers.*.attn_norm", "blk.*.attn_norm"),
    same_name("layers.*.ffn_norm", "blk.*.attn_norm_2"),
    same_name("layers.*.attn.x_r", "blk.*.time_mix_lerp_fused").place(0),
    same_name("layers.*.attn.x_w", "blk.*.time_mix_lerp_fused").place(1),
    same_name("layers.*.attn.x_k", "blk.*.time_mix_lerp_fused").place(2),
    same_name("layers.*.attn.x_v", "blk.*.time_mix_lerp_fused").place(3),
    same_name("layers.*.attn.x_a", "blk.*.time_mix_lerp_fused").place(4),
    same_name("layers.*.attn.x_g", "blk.*.time_mix_lerp_fused").place(5),
    flat("layers.*.attn.k_k", "blk.*.time_mix_k_k"),
    flat("layers.*.attn.k_a", "blk.*.time_mix_k_a"),
    flat("layers.*.attn.r_k", "blk.*.time_mix_r_k"),
    same_name("layers.*.attn.r_proj", "blk.*.time_mix_receptance"),
    same_name("layers.*.attn.k_proj", "blk.*.time_mix_key"),
    same_name("layers.*.attn.v_proj", "blk.*.time_mix_value"),
    same_name("layers.*.attn.o_proj", "blk.*.time_mix_output"),
    same_name("layers.*.attn.g_norm", "blk.*.time_mix_ln"),
    flat("layers.*.ffn.x_k", "blk.*.channel_mix_lerp_k"),
    same_name("layers.*.ffn.key", "blk.*.channel_mix_key"),
    same_name("layers.*.ffn.value", "blk.*.channel_mix_value"),
];
const DECAY: &[Rule] = low_rank!("w", "w");
const RATE: &[Rule] = low_rank!("a", "a");
const GATE: &[Rule] = &[
    same_name("layers.*.attn.g_lora.lora.0", "blk.*.time_mix_g1"),
    same_name("layers.*.attn.g_lora.lora.2", "blk.*.time_mix_g2"),
];
const VALUE: &[Rule] = low_rank!("v", "v");
/// llama.cpp requires the low-rank parts for values even in the first layer, which never reads
/// them: its own files have those of `a` there, too.
const UNREAD: &[Rule] = low_rank!("a", "v");
const IN_FIRST: &[Rule] = &[
    rule("layers.*.attn.v_lora.lora.0", "", Transform::Drop).optional(),
    rule("layers.*.attn.v_lora.lora.2", "", Transform::Drop).optional(),
    rule("layers.*.attn.v_lora.lora.2.bias", "", Transform::Drop).optional(),
];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "rwkv6",
        classes: &["Rwkv6ForCausalLM"],
        activation: "",
        rules: &[RWKV6],
        keys: rwkv6,
        ..LLAMA
    },
    Family {
        arch: "rwkv7",
        classes: &["RWKV7ForCausalLM", "Rwkv7ForCausalLM"],
        activation: "",
        rules: &[RWKV7, DECAY, RATE, GATE],
        some: &[(On::First, UNREAD), (On::First, IN_FIRST), (On::Later, VALUE)],
        keys: rwkv7,
        ..LLAMA
    },
];

fn sizes(build: &mut Build<'_>) -> Result<u32, Error> {
    let n_embd = build.config.count(WIDTH, "the embedding size")?;
    build.set("context_length", NO_LIMIT);
    build.set("embedding_length", n_embd);
    build.set("block_count", build.n_layer()?);
    // llama.cpp requires the key.
    build.set("attention.head_count", 0_u32);
    let eps = build.config.f32(&["layer_norm_epsilon", "norm_eps"])?.unwrap_or(1e-5);
    build.set("attention.layer_norm_epsilon", eps);
    let d_head = build.config.count(&["head_size", "head_dim"], "the size of a head")?;
    build.set("wkv.head_size", d_head);
    Ok(n_embd)
}

fn rwkv6(build: &mut Build<'_>) -> Result<(), Error> {
    let n_embd = sizes(build)?;
    // The ranks and the default width follow from the size, as in the model's own code. That code
    // also divides the weights of later layers, but only to avoid overflows in F16.
    let is_large = n_embd == 4096;
    build.set("time_mix_extra_dim", if is_large { 64_u32 } else { 32 });
    build.set("time_decay_extra_dim", if is_large { 128_u32 } else { 64 });
    let n_ff = build.config.u32(&["intermediate_size"])?;
    build.set("feed_forward_length", n_ff.unwrap_or((f64::from(n_embd) * 3.5) as u32 / 32 * 32));
    Ok(())
}

fn rwkv7(build: &mut Build<'_>) -> Result<(), Error> {
    let n_embd = sizes(build)?;
    let config = build.config;
    let usual = |power: f64, factor: f64| {
        ((f64::from(n_embd).powf(power) * factor / 32.0).round_ties_even().max(1.0) * 32.0) as u32
    };
    for (key, from, usual) in [
        ("decay_lora_rank", ["decay_low_rank_dim", "lora_rank_decay"], usual(0.5, 1.8)),
        ("iclr_lora_rank", ["a_low_rank_dim", "lora_rank_iclr"], usual(0.5, 1.8)),
        (
            "value_residual_mix_lora_rank",
            ["v_low_rank_dim", "lora_rank_value_residual_mix"],
            usual(0.5, 1.3),
        ),
        ("gate_lora_rank", ["gate_low_rank_dim", "lora_rank_gate"], usual(0.8, 0.6)),
    ] {
        build.set(&format!("attention.{key}"), config.u32(&from)?.unwrap_or(usual));
    }
    let n_ff = config.u32(&["intermediate_size"])?.unwrap_or(n_embd.saturating_mul(4));
    build.set("feed_forward_length", n_ff);
    build.layers_on(On::First, |layer| layer == 0)?;
    build.layers_on(On::Later, |layer| layer > 0)
}
