//! Families whose layers have a sliding window, or RoPE, by a list: Granite with windows, Mellum, Muse
//! Glimmer.

use super::Family;
use super::dense::{GRANITE_SCALES, rms};
use super::keys::{Build, number};
use super::rope;
use super::rule::{Rule, same_name};
use super::rules::{
    EMBEDDINGS, EXPERTS, FOUR_NORMS_PLUS_ONE, GATED, NORMS, QK, QK_NORMS, ROPE_QK, UP_DOWN, VO,
};
use super::table::{LLAMA, experts_of};
use super::window;
use crate::Error;
use gguf::{Array, Value};

const SINKS: &[Rule] = &[same_name("layers.*.self_attn.sinks", "blk.*.attn_sinks")];
const GATES: &[Rule] = &[same_name("layers.*.self_attn.gate_proj", "blk.*.attn_gate")];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "granite_swa",
        classes: &["GraniteSWAForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, ROPE_QK, VO, SINKS, GATED, UP_DOWN],
        settings: GRANITE_SCALES,
        keys: granite,
        ..LLAMA
    },
    Family {
        arch: "mellum",
        classes: &["MellumForCausalLM"],
        rules: &[EMBEDDINGS, NORMS, QK, QK_NORMS, VO, EXPERTS],
        keys: mellum,
        ..LLAMA
    },
    Family {
        arch: "muse-glimmer",
        classes: &["MuseGlimmerForConditionalGeneration"],
        rules: &[EMBEDDINGS, FOUR_NORMS_PLUS_ONE, ROPE_QK, VO, GATES, GATED, UP_DOWN],
        settings: &[
            number("final_logit_softcapping", &["final_logit_softcapping"]),
            number("logit_scale", &["output_multiplier"]),
        ],
        keys: muse,
        ..LLAMA
    },
];

/// The window and the list of layers that have it; `usual` says which layers do if the settings
/// have no list.
fn windows(build: &mut Build<'_>, usual: impl Fn(u32) -> bool) -> Result<Vec<bool>, Error> {
    let config = build.config;
    let layers = match window::layer_types(build)? {
        Some(layers) => layers,
        None => (0..build.n_layer()?).map(usual).collect(),
    };
    build.set("attention.sliding_window", config.count(&["sliding_window"], "the window")?);
    build.set("attention.sliding_window_pattern", Value::Array(Array::Bool(layers.clone())));
    Ok(layers)
}

/// For each layer, whether it has RoPE: its base is 0 or null if not. All other bases are the same.
fn rotary(build: &mut Build<'_>) -> Result<Option<Vec<bool>>, Error> {
    const BASES: &str = "layer_rope_theta";
    let Some(list) = build.config.list(BASES)? else { return Ok(None) };
    let bases: Vec<f64> = list.iter().map(|base| base.as_f64().unwrap_or(0.0)).collect();
    let n_layer = build.n_layer()? as usize;
    let mut used = bases.iter().copied().filter(|&base| base != 0.0);
    let first = used.next();
    if bases.len() != n_layer || used.any(|base| Some(base) != first) {
        let expected = format!("0 or the same number for each of the {n_layer} layers");
        return Err(build.config.wrong_value(BASES, &expected, "a different list"));
    }
    if let Some(base) = first {
        build.replace("rope.freq_base", base as f32);
    }
    Ok(Some(bases.iter().map(|&base| base != 0.0).collect()))
}

fn granite(build: &mut Build<'_>) -> Result<(), Error> {
    rms(build, 1.0)?;
    windows(build, |layer| layer % 4 != 0)?;
    let rotates = match window::layout(build, "no_rope_layers")? {
        Some(rotates) => Some(rotates),
        None => rotary(build)?,
    };
    if let Some(rotates) = rotates.filter(|rotates| rotates.contains(&false)) {
        build.set("attention.rope_pattern", Value::Array(Array::Bool(rotates)));
    }
    Ok(())
}

fn mellum(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["attention_bias"])? == Some(true) {
        return Err(config.wrong_value("attention_bias", "false, as in Mellum 2", true));
    }
    if build
        .kinds("mlp_layer_types")?
        .is_some_and(|kinds| kinds.iter().any(|kind| kind != "sparse"))
    {
        return Err(config.wrong_value("mlp_layer_types", "sparse in all layers", "another"));
    }
    rms(build, 1.0)?;
    rope::set_window_base(build)?;
    if config.bool(&["use_sliding_window"])? != Some(false)
        && config.get(&["sliding_window"]).is_some()
    {
        windows(build, |layer| (layer + 1) % 4 != 0)?;
    }
    experts_of(build)
}

/// Queries and keys are divided by their length, and queries multiplied by a number: norms with
/// constant weights.
fn muse(build: &mut Build<'_>) -> Result<(), Error> {
    let config = build.config;
    if config.bool(&["attention_bias"])? == Some(true) {
        return Err(config.wrong_value("attention_bias", "false, as in Muse Glimmer", true));
    }
    let eps = config.f32(&["post_norm_eps"])?.unwrap_or(1e-8);
    if (eps - 1e-8).abs() > 1e-10 {
        let expected = "1e-8, which readers of the file use";
        return Err(config.wrong_value("post_norm_eps", expected, eps));
    }
    rms(build, 1.0)?;
    let n_layer = build.n_layer()?;
    let local = windows(build, |layer| !(n_layer - 1 - layer).is_multiple_of(4))?;
    if rotary(build)?.is_some_and(|rotates| rotates != local) {
        let expected = "a number for the layers with a window, 0 for the others";
        return Err(config.wrong_value("layer_rope_theta", expected, "a different list"));
    }
    let factor = config.f32(&["qk_scale_factor"])?.unwrap_or(3.87);
    let d_head = build.d_head()? as usize;
    for layer in 0..n_layer {
        build.tensor(&format!("blk.{layer}.attn_q_norm.weight"), vec![factor; d_head]);
        build.tensor(&format!("blk.{layer}.attn_k_norm.weight"), vec![1.0; d_head]);
    }
    Ok(())
}
