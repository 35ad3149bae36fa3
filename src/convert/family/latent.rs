//! Families with latent attention: keys and values come from a vector of low rank.

use super::dense::TIED_HEAD;
use super::experts::{DEEPSEEK, SELECTION_BIAS, SHARED, SIGMOID, SOFTMAX, gating, leading_dense};
use super::keys::Build;
use super::rule::{On, Reshape, Rule, Transform, rule, same_name};
use super::rules::{EMBEDDINGS, EXPERTS, GATED, NORMS, UP_DOWN};
use super::table::LLAMA;
use super::{Family, rope};
use crate::Error;
use crate::change::Selection;
use gguf::{Array, Value};

/// Latent attention, without its queries and the matrices that expand the latent vector: both have
/// two forms, which follow.
const LATENT: &[Rule] = &[
    same_name("layers.*.self_attn.kv_a_proj_with_mqa", "blk.*.attn_kv_a_mqa"),
    same_name("layers.*.self_attn.kv_a_layernorm", "blk.*.attn_kv_a_norm"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
/// A matrix for the keys and values of all heads.
const JOINED: &[Rule] = &[same_name("layers.*.self_attn.kv_b_proj", "blk.*.attn_kv_b")];
/// A matrix for the keys of each head, transposed, and one for its values.
const ABSORBED: &[Rule] = &[
    rule(
        "layers.*.self_attn.kv_b_proj",
        "blk.*.attn_k_b",
        Transform::FirstRowsTransposed(key_rows),
    )
    .reshape(Reshape::Stack(n_head)),
    rule("layers.*.self_attn.kv_b_proj", "blk.*.attn_v_b", Transform::Rows(value_rows))
        .reshape(Reshape::Stack(n_head)),
];
pub(super) const WHOLE_QUERY: &[Rule] = &[same_name("layers.*.self_attn.q_proj", "blk.*.attn_q")];
pub(super) const LOW_RANK_QUERY: &[Rule] = &[
    same_name("layers.*.self_attn.q_a_proj", "blk.*.attn_q_a"),
    same_name("layers.*.self_attn.q_a_layernorm", "blk.*.attn_q_a_norm"),
    same_name("layers.*.self_attn.q_b_proj", "blk.*.attn_q_b"),
];
/// The indexer of sparse attention.
pub(super) const INDEXER: &[Rule] = &[
    same_name("layers.*.self_attn.indexer.wq_b", "blk.*.indexer.attn_q_b"),
    same_name("layers.*.self_attn.indexer.wk", "blk.*.indexer.attn_k"),
    same_name("layers.*.self_attn.indexer.k_norm", "blk.*.indexer.k_norm"),
    same_name("layers.*.self_attn.indexer.weights_proj", "blk.*.indexer.proj"),
];
const DEEPSEEK2: Family = Family {
    arch: "deepseek2",
    classes: &["DeepseekV2ForCausalLM"],
    rules: &[EMBEDDINGS, NORMS, LATENT, ABSORBED],
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

/// As in [`DEEPSEEK2`], with indexers in some layers.
const GLM_DSA: &[(On, &[Rule])] = &[
    (On::WholeQuery, WHOLE_QUERY),
    (On::LowRankQuery, LOW_RANK_QUERY),
    (On::Dense, GATED),
    (On::Dense, UP_DOWN),
    (On::Experts, EXPERTS),
    (On::Experts, SELECTION_BIAS),
    (On::Experts, SHARED),
    (On::Indexer, INDEXER),
];

pub(super) const FAMILIES: &[Family] = &[
    DEEPSEEK2,
    Family {
        classes: &["DeepseekV3ForCausalLM", "Glm4MoeLiteForCausalLM"],
        settings: DEEPSEEK,
        keys: |build| deepseek2(build, SIGMOID),
        ..DEEPSEEK2
    },
    Family {
        arch: "deepseek32",
        classes: &["DeepseekV32ForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, LATENT, ABSORBED, INDEXER],
        settings: DEEPSEEK,
        keys: indexer,
        ..DEEPSEEK2
    },
    Family {
        arch: "glm-dsa",
        classes: &["GlmMoeDsaForCausalLM"],
        settings: DEEPSEEK,
        some: GLM_DSA,
        keys: glm_dsa,
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
        rules: &[TIED_HEAD, NORMS, LATENT, JOINED, LOW_RANK_QUERY, GATED, UP_DOWN],
        keys: minicpm3,
        ..LLAMA
    },
];

pub(super) fn n_head(build: &Build<'_>) -> Result<u32, Error> {
    build.n_head()
}

/// A size of a part of a head in latent attention.
pub(super) fn part(build: &Build<'_>, key: &'static str) -> Result<u32, Error> {
    build.config.count(&[key], "the size of a part of a head")
}

/// Rows of a head's keys in `kv_b_proj`; those of its values follow.
pub(super) fn key_rows(build: &Build<'_>) -> Result<u32, Error> {
    part(build, "qk_nope_head_dim")
}

pub(super) fn value_rows(build: &Build<'_>) -> Result<Selection, Error> {
    // Each size is at most 2^24.
    let (n_key, n_value) = (key_rows(build)?, part(build, "v_head_dim")?);
    Ok(Selection::join(n_key..n_key + n_value, n_key + n_value))
}

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
    let d_latent = head("kv_lora_rank")?;
    build.set("attention.kv_lora_rank", d_latent);
    build.set("attention.key_length", d_latent + d_rope);
    build.set("attention.value_length", d_latent);
    build.set("attention.key_length_mla", d_rope + d_nope);
    build.set("attention.value_length_mla", head("v_head_dim")?);
    // All heads share the latent vector.
    build.replace("attention.head_count_kv", 1_u32);
    let rank = config.u32(&["q_lora_rank"])?.filter(|&rank| rank > 0);
    if let Some(rank) = rank {
        build.set("attention.q_lora_rank", rank);
    }
    build.layers_on(On::LowRankQuery, |_| rank.is_some())?;
    build.layers_on(On::WholeQuery, |_| rank.is_none())?;
    build.rope(d_rope)?;
    rope::set_log(build, 0.1)
}

/// Sets the keys of latent attention with an indexer.
fn indexer(build: &mut Build<'_>) -> Result<(), Error> {
    deepseek2(build, SIGMOID)?;
    let count = |key: &'static str| build.config.count(&[key], "a size of the indexer");
    let sizes = [count("index_n_heads")?, count("index_head_dim")?, count("index_topk")?];
    for (key, size) in ["head_count", "key_length", "top_k"].into_iter().zip(sizes) {
        build.set(&format!("attention.indexer.{key}"), size);
    }
    Ok(())
}

/// Layers without an indexer use the positions that an earlier layer selected.
fn glm_dsa(build: &mut Build<'_>) -> Result<(), Error> {
    const SHARE: &str = "partial_rotary_factor";
    let (own, rope) = (build.config.f32(&[SHARE])?, rope::settings(build.config)?.f32(&[SHARE])?);
    if let Some(share) = own.or(rope).filter(|&share| share != 1.0) {
        return Err(build.config.wrong_value(SHARE, "1, or no such setting", share));
    }
    indexer(build)?;
    const TYPES: &str = "indexer_types";
    let kinds = build.kinds(TYPES)?;
    let unknown = |kind: &&String| !["full", "shared"].contains(&kind.as_str());
    if let Some(kind) = kinds.iter().flatten().find(unknown) {
        return Err(build.config.wrong_value(TYPES, "`full` or `shared` for each layer", kind));
    }
    let full: Option<Vec<bool>> =
        kinds.map(|kinds| kinds.iter().map(|kind| kind == "full").collect());
    if let Some(full) = &full {
        build.set("attention.indexer.types", Value::Array(Array::Bool(full.clone())));
    }
    build.layers_on(On::Indexer, |layer| full.as_ref().is_none_or(|full| full[layer as usize]))
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
