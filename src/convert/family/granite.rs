//! Granite 4 models in which all layers have attention: `granite`, or `granitemoe` with experts.

use super::Family;
use super::dense::GRANITE_SCALES;
use super::experts::{GRANITE, GRANITE_DENSE, SHARED_LENGTH};
use super::keys::{Build, count};
use super::rules::{EMBEDDINGS, NORMS, ROPE_QK, VO};
use super::table::LLAMA;
use crate::Error;
use crate::config::Json;

/// The class of Granite's hybrids, if all layers have attention: a dense model, or one with experts.
const ALL_ATTENTION: Family = Family {
    arch: "granite",
    classes: &["GraniteMoeHybridForCausalLM"],
    when: |config| !has_mamba(config) && !has_experts(config),
    rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GRANITE_DENSE],
    settings: &[
        GRANITE_SCALES[0],
        GRANITE_SCALES[1],
        GRANITE_SCALES[2],
        GRANITE_SCALES[3],
        count("feed_forward_length", &["shared_intermediate_size"]),
    ],
    keys: attention,
    ..LLAMA
};

pub(super) const FAMILIES: &[Family] = &[
    ALL_ATTENTION,
    Family {
        arch: "granitemoe",
        when: |config| !has_mamba(config) && has_experts(config),
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, GRANITE],
        settings: &[
            GRANITE_SCALES[0],
            GRANITE_SCALES[1],
            GRANITE_SCALES[2],
            GRANITE_SCALES[3],
            SHARED_LENGTH,
        ],
        ..ALL_ATTENTION
    },
];

/// Whether a model of Granite's hybrids has state spaces.
pub(super) fn has_mamba(config: &Json) -> bool {
    // `granite_hybrid` reports a missing list.
    let kinds =
        config.get(&["layer_types", "layers_block_type"]).and_then(|(_, list)| list.as_array());
    kinds.is_none_or(|kinds| {
        kinds.iter().any(|kind| kind != "attention" && kind != "full_attention")
    })
}

pub(super) fn has_experts(config: &Json) -> bool {
    config.u32(&["num_local_experts"]).ok().flatten().is_some_and(|n| n > 0)
}

/// Whether Granite's attention has RoPE, and its sizes.
pub(super) fn rope(build: &mut Build<'_>) -> Result<bool, Error> {
    let kind = build.config.text(&["position_embedding_type"])?;
    let uses_rope = kind.as_deref() == Some("rope");
    build.set("rope.scaling.finetuned", uses_rope);
    build.rope(build.d_head()?)?;
    Ok(uses_rope)
}

/// Keys of Granite's hybrids in which all layers have attention.
fn attention(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    build.heads()?;
    let (uses_rope, config) = (rope(build)?, build.config);
    if !has_experts(config) {
        return Ok(());
    }
    if !uses_rope {
        // Readers of `granitemoe` always apply RoPE.
        let expected = "rope in a model with experts and without state spaces";
        return Err(config.wrong_value("position_embedding_type", expected, "nope"));
    }
    build.experts()
}
