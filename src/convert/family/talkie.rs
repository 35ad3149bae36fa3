//! Talkie: norms without weights, and a factor on each part of a layer.

use super::Family;
use super::keys::Build;
use super::rope;
use super::rule::{Reshape, Rule, Scale, Transform, rule, same_name};
use super::table::LLAMA;
use crate::Error;

const TALKIE: &[Rule] = &[
    same_name("embed", "token_embd"),
    same_name("lm_head", "output"),
    // It becomes a key; see `computed.rs`.
    rule("lm_head_gain.w_g", "", Transform::Drop),
    // RoPE turns pairs the other way round.
    same_name("blocks.*.attn.attn_query", "blk.*.attn_q").scale(Scale::RowTimes(query_signs)),
    same_name("blocks.*.attn.attn_key", "blk.*.attn_k").scale(Scale::RowTimes(key_signs)),
    same_name("blocks.*.attn.attn_value", "blk.*.attn_v"),
    same_name("blocks.*.attn.attn_resid", "blk.*.attn_output"),
    same_name("blocks.*.attn.head_gain.head_g", "blk.*.attn_q_norm").reshape(Reshape::Column),
    same_name("blocks.*.attn_gain.a_g", "blk.*.attn_output.scale=").reshape(Reshape::Flat),
    same_name("blocks.*.mlp.mlp_gate", "blk.*.ffn_gate"),
    same_name("blocks.*.mlp.mlp_linear", "blk.*.ffn_up"),
    same_name("blocks.*.mlp.mlp_resid", "blk.*.ffn_down"),
    same_name("blocks.*.mlp_gain.a_g", "blk.*.ffn_down.scale=").reshape(Reshape::Flat),
    same_name("blocks.*.embed_skip.a_g", "blk.*.layer_output_scale").reshape(Reshape::Flat),
];

pub(super) const FAMILIES: &[Family] = &[Family {
    arch: "talkie",
    classes: &["TalkieForCausalLM"],
    rules: &[TALKIE],
    keys: talkie,
    ..LLAMA
}];

/// -1 for the second half of each head.
fn signs(n_head: u32, d_head: u32) -> Vec<f32> {
    let sign = |row: u32| if row % d_head < d_head / 2 { 1.0 } else { -1.0 };
    (0..n_head.saturating_mul(d_head).min(1 << 24)).map(sign).collect()
}

fn query_signs(build: &Build<'_>) -> Result<Vec<f32>, Error> {
    Ok(signs(build.n_head()?, build.d_head()?))
}

fn key_signs(build: &Build<'_>) -> Result<Vec<f32>, Error> {
    Ok(signs(build.n_head_kv()?, build.d_head()?))
}

fn talkie(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    // The models' norms have PyTorch's smallest number.
    build.set("attention.layer_norm_rms_epsilon", f32::EPSILON);
    build.heads()?;
    let d_head = build.d_head()?;
    build.set("rope.dimension_count", d_head);
    rope::set(build, d_head)
}
