//! Families with latent attention: keys and values come from a vector of low rank.

use super::dense::TIED_HEAD;
use super::experts::{DEEPSEEK, SELECTION_BIAS, SHARED, SIGMOID, SOFTMAX, gating, leading_dense};
use super::keys::Build;
use super::rule::{On, Rule, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, NORMS, UP_DOWN};
use super::table::LLAMA;
use super::{Family, rope};
use crate::Error;

/// Latent attention; queries follow in two forms.
const LATENT: &[Rule] = &[
    same_name("layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
    same_name("layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
    same_name("layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
const WHOLE_QUERY: &[Rule] = &[same_name("layers.*.self_attn.q_proj", "blk.*.attn_q")];
const LOW_RANK_QUERY: &[Rule] = &[
    same_name("layers.*.self_attn.q_a_proj", "blk.*.attn_q_a"),
    same_name("layers.*.self_attn.q_a_layernorm", "blk.*.attn_q_a_norm"),
    same_name("layers.*.self_attn.q_b_proj", "blk.*.attn_q_b"),
];
const DEEPSEEK2: Family = Family {
    arch: "deepseek2",
    classes: &["DeepseekV2ForCausalLM"],
    rules: &[EMBEDDINGS, NORMS, LATENT],
    some: &[
        (On::WholeQuery, WHOLE_QUERY),
        (On::LowRankQuery, LOW_RANK_QUERY),
        (On::Dense, GATED),
        (On::Dense, UP_DOWN),
        (On::Experts, EXPERTS),
        (On::Experts, SELECTION_BIAS),
        (On::Experts, SHARED),
    ],
    // Without groups of experts, which V2 states even where it does not use them.
    settings: &[DEEPSEEK[0], DEEPSEEK[1], DEEPSEEK[4], DEEPSEEK[5]],
    keys: |build| deepseek2(build, SOFTMAX),
    ..LLAMA
};

pub(super) const FAMILIES: &[Family] = &[
    DEEPSEEK2,
    Family {
        classes: &["DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"],
        settings: DEEPSEEK,
        keys: |build| deepseek2(build, SIGMOID),
        ..DEEPSEEK2
    },
    Family {
        arch: "mistral4",
        classes: &["Mistral4ForCausalLM", "Mistral3ForConditionalGeneration"],
        when: |config| config.text(&["model_type"]).ok().flatten().as_deref() == Some("mistral4"),
        settings: DEEPSEEK,
        keys: |build| deepseek2(build, SOFTMAX),
        ..DEEPSEEK2
    },
    Family {
        arch: "minicpm3",
        classes: &["MiniCPM3ForCausalLM"],
        rules: &[TIED_HEAD, NORMS, LATENT, LOW_RANK_QUERY, GATED, UP_DOWN],
        keys: minicpm3,
        ..LLAMA
    },
];

fn deepseek2(build: &mut Build<'_>, usual: u32) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    leading_dense(build)?;
    gating(build, usual)?;
    let config = build.config;
    if config.text(&["topk_method"])?.as_deref() == Some("group_limited_greedy") {
        build.copy(&DEEPSEEK[2..4])?;
        build.notes.push("DeepSeek V2 chooses groups of experts by the best expert of each; readers of the file choose by the two best, as llama.cpp".to_owned());
    }
    let head = |key: &'static str| config.count(&[key], "the size of a part of a head");
    let (d_rope, d_nope) = (head("qk_rope_head_dim")?, head("qk_nope_head_dim")?);
    build.set("attention.kv_lora_rank", head("kv_lora_rank")?);
    build.set("attention.key_length", d_rope + d_nope);
    build.set("attention.value_length", head("v_head_dim")?);
    // Keys and values are expanded to all heads.
    build.replace("attention.head_count_kv", build.n_head()?);
    let rank = config.u32(&["q_lora_rank"])?.filter(|&rank| rank > 0);
    if let Some(rank) = rank {
        build.set("attention.q_lora_rank", rank);
    }
    build.layers_on(On::LowRankQuery, |_| rank.is_some())?;
    build.layers_on(On::WholeQuery, |_| rank.is_none())?;
    build.rope(d_rope)?;
    rope::set_log(build, 0.1)
}

fn minicpm3(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    // llama.cpp's files have no keys for these.
    for (key, usual) in [("scale_emb", 12.0), ("scale_depth", 1.4), ("dim_model_base", 256.0)] {
        if config.f32(&[key])?.is_some_and(|found| (found - usual).abs() > 1e-6) {
            return Err(config.wrong_value(key, &format!("{usual}, as in MiniCPM3"), "another"));
        }
    }
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let head = |key: &'static str| config.count(&[key], "the size of a part of a head");
    let (d_rope, d_nope) = (head("qk_rope_head_dim")?, head("qk_nope_head_dim")?);
    build.set("attention.q_lora_rank", head("q_lora_rank")?);
    build.set("attention.kv_lora_rank", head("kv_lora_rank")?);
    build.set("attention.key_length", d_rope + d_nope);
    build.set("attention.value_length", head("v_head_dim")?);
    build.rope(d_rope)
}
