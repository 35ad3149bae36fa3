//! Gemma 3n and Gemma 4, whose layers differ: embeddings per layer, shared keys and values, head sizes.

use serde_json::Value as Setting;

use super::keys::{Build, number};
use super::rule::{On, Rule, Transform, rule, same_name};
use super::rules::{GATED, UP_DOWN};
use super::table::GEMMA3;
use super::{Family, rope, window};
use crate::Error;
use gguf::{Array, Value};

const ENDS: &[Rule] = &[
    same_name("embed_tokens", "token_embd"),
    same_name("norm", "output_norm"),
    rule("lm_head", "output", Transform::Tied),
];
const NORMS: &[Rule] = &[
    same_name("layers.*.input_layernorm", "blk.*.attn_norm"),
    same_name("layers.*.post_attention_layernorm", "blk.*.post_attention_norm"),
    same_name("layers.*.pre_feedforward_layernorm", "blk.*.ffn_norm"),
    same_name("layers.*.post_feedforward_layernorm", "blk.*.post_ffw_norm"),
];
/// Embeddings per layer. The table may have fewer rows than that of the tokens.
const PER_LAYER: &[Rule] = &[
    rule("embed_tokens_per_layer", "per_layer_token_embd", Transform::PadRows(n_vocab)),
    same_name("per_layer_model_projection", "per_layer_model_proj"),
    same_name("per_layer_projection_norm", "per_layer_proj_norm"),
    same_name("layers.*.per_layer_input_gate", "blk.*.inp_gate"),
    same_name("layers.*.per_layer_projection", "blk.*.proj"),
    same_name("layers.*.post_per_layer_input_norm", "blk.*.post_norm"),
];
/// Four alternating streams of the residual, and a projection of low rank.
const GEMMA_3N: &[Rule] = &[
    same_name("altup_projections.*", "altup_proj"),
    same_name("altup_unembed_projections.*", "altup_unembd_proj"),
    same_name("layers.*.altup.correction_coefs", "blk.*.altup_correct_coef"),
    same_name("layers.*.altup.correct_output_scale", "blk.*.altup_correct_scale"),
    same_name("layers.*.altup.prediction_coefs", "blk.*.altup_predict_coef"),
    same_name("layers.*.altup.modality_router", "blk.*.altup_router"),
    same_name("layers.*.altup.router_norm", "blk.*.altup_router_norm"),
    same_name("layers.*.laurel.linear_left", "blk.*.laurel_l"),
    same_name("layers.*.laurel.linear_right", "blk.*.laurel_r"),
    same_name("layers.*.laurel.post_laurel_norm", "blk.*.laurel_post_norm"),
];
const SCALE: &[Rule] = &[same_name("layers.*.layer_scalar", "blk.*.layer_output_scale")];
const QUERY: &[Rule] = &[
    same_name("layers.*.self_attn.q_proj", "blk.*.attn_q"),
    same_name("layers.*.self_attn.q_norm", "blk.*.attn_q_norm"),
    same_name("layers.*.self_attn.o_proj", "blk.*.attn_output"),
];
const KEY: &[Rule] = &[
    same_name("layers.*.self_attn.k_proj", "blk.*.attn_k"),
    same_name("layers.*.self_attn.k_norm", "blk.*.attn_k_norm"),
];
const VALUE: &[Rule] = &[same_name("layers.*.self_attn.v_proj", "blk.*.attn_v")];
/// Layers that use the keys and values of an earlier layer may have matrices that are not used. Of
/// Gemma 3n, llama.cpp loads them.
const UNUSED_KEY_VALUE: &[Rule] = &[
    same_name("layers.*.self_attn.k_proj", "blk.*.attn_k").optional(),
    same_name("layers.*.self_attn.k_norm", "blk.*.attn_k_norm").optional(),
    same_name("layers.*.self_attn.v_proj", "blk.*.attn_v").optional(),
];
const NO_KEY_VALUE: &[Rule] = &[
    rule("layers.*.self_attn.k_proj", "", Transform::Drop),
    rule("layers.*.self_attn.k_norm", "", Transform::Drop),
    rule("layers.*.self_attn.v_proj", "", Transform::Drop),
];
const EXPERTS: &[Rule] = &[
    same_name("layers.*.router.proj", "blk.*.ffn_gate_inp"),
    same_name("layers.*.router.scale", "blk.*.ffn_gate_inp.scale="),
    same_name("layers.*.router.per_expert_scale", "blk.*.ffn_down_exps.scale="),
    rule("layers.*.experts.gate_up_proj", "blk.*.ffn_gate_exps", Transform::FirstHalf),
    rule("layers.*.experts.gate_up_proj", "blk.*.ffn_up_exps", Transform::SecondHalf),
    same_name("layers.*.experts.down_proj", "blk.*.ffn_down_exps"),
    same_name("layers.*.pre_feedforward_layernorm_2", "blk.*.pre_ffw_norm_2"),
    same_name("layers.*.post_feedforward_layernorm_1", "blk.*.post_ffw_norm_1"),
    same_name("layers.*.post_feedforward_layernorm_2", "blk.*.post_ffw_norm_2"),
];

pub(super) const FAMILIES: &[Family] = &[
    Family {
        arch: "gemma3n",
        classes: &["Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        rules: &[ENDS, NORMS, QUERY, GATED, UP_DOWN, PER_LAYER, GEMMA_3N],
        some: &[(On::LocalKey, KEY), (On::LocalKey, VALUE), (On::SharedKey, UNUSED_KEY_VALUE)],
        settings: &[number("final_logit_softcapping", &["final_logit_softcapping"])],
        keys: gemma3n,
        defaults: &[],
        ..GEMMA3
    },
    Family {
        arch: "gemma4",
        classes: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
        rules: &[ENDS, NORMS, SCALE],
        some: &[
            (On::PerLayerInput, PER_LAYER),
            (On::Local, QUERY),
            (On::LocalKey, KEY),
            (On::LocalKey, VALUE),
            (On::Global, QUERY),
            (On::GlobalKey, KEY),
            (On::GlobalValue, VALUE),
            (On::SharedKey, NO_KEY_VALUE),
            (On::Narrow, GATED),
            (On::Narrow, UP_DOWN),
            (On::Wide, GATED),
            (On::Wide, UP_DOWN),
            (On::Experts, EXPERTS),
        ],
        settings: &[number("final_logit_softcapping", &["final_logit_softcapping"])],
        keys: gemma4,
        vocab: Some("gemma4"),
        defaults: &[],
        ..GEMMA3
    },
];

fn n_vocab(build: &Build<'_>) -> Result<u32, Error> {
    build.config.count(&["vocab_size"], "the size of the vocabulary")
}

/// Which layers have a sliding window, as `config.json` lists them.
fn windowed(build: &mut Build<'_>) -> Result<Vec<bool>, Error> {
    let layers = window::layer_types(build)?
        .ok_or_else(|| build.config.missing("layer_types", "the kind of each layer"))?;
    let window = build.config.count(&["sliding_window"], "the size of the sliding window")?;
    build.set("attention.sliding_window", window);
    let list = Value::Array(Array::Bool(layers.clone()));
    build.set("attention.sliding_window_pattern", list);
    Ok(layers)
}

/// The number of last layers that use the keys and values of an earlier layer.
fn n_shared(build: &mut Build<'_>, local: &[bool]) -> Result<u32, Error> {
    let (n_layer, n) =
        (build.n_layer()?, build.config.u32(&["num_kv_shared_layers"])?.unwrap_or(0));
    if n >= n_layer {
        let expected = format!("fewer than the {n_layer} layers");
        return Err(build.config.wrong_value("num_kv_shared_layers", &expected, n));
    }
    let own = &local[..(n_layer - n) as usize];
    if n > 0 && !own.ends_with(&[true, false]) {
        let expected =
            "sliding_attention and full_attention in the last two layers that share none";
        return Err(build.config.wrong_value("layer_types", expected, "other kinds"));
    }
    build.set("attention.shared_kv_layers", n);
    Ok(n)
}

fn gemma3n(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.rms()?;
    build.heads()?;
    let config = build.config;
    let n_ff = config.list("intermediate_size")?;
    let n_ff = n_ff.filter(|list| list.iter().all(|n| *n == list[0])).and_then(|list| list.first());
    let n_ff = n_ff.and_then(Setting::as_u64).and_then(|n| u32::try_from(n).ok());
    let n_ff = n_ff.ok_or_else(|| {
        let expected = "a list of equal numbers of neurons, one for each layer";
        config.missing("intermediate_size", expected)
    })?;
    build.set("feed_forward_length", n_ff);
    let local = windowed(build)?;
    let first_shared = build.n_layer()? - n_shared(build, &local)?;
    build.layers_on(On::LocalKey, |layer| layer < first_shared)?;
    build.layers_on(On::SharedKey, |layer| layer >= first_shared)?;
    for (key, usual) in [("altup_num_inputs", 4), ("altup_active_idx", 0)] {
        let found = config.u32(&[key])?.unwrap_or(usual);
        if found != usual {
            return Err(config.wrong_value(key, &format!("{usual}, as in Gemma 3n"), found));
        }
    }
    build.set("altup.num_inputs", 4_u32);
    build.set("altup.active_idx", 0_u32);
    let per_layer = config.count(&["hidden_size_per_layer_input"], "the embedding per layer")?;
    build.set("embedding_length_per_layer_input", per_layer);
    let n_layer = build.n_layer()? as usize;
    let shares = config.list("activation_sparsity_pattern")?.filter(|list| list.len() == n_layer);
    let shares: Option<Vec<f64>> =
        shares.and_then(|list| list.iter().map(Setting::as_f64).collect());
    let Some(shares) = shares.filter(|list| list.iter().all(|share| (0.0..1.0).contains(share)))
    else {
        let expected = "a share of inactive neurons for each layer, from 0 to below 1";
        return Err(config.missing("activation_sparsity_pattern", expected));
    };
    // The model's standard deviation divides by the number of neurons, that of readers by one less.
    let biased = (1.0 - 1.0 / f64::from(n_ff)).sqrt();
    let cuts = shares.into_iter().map(|share| (normal_quantile(share) * biased) as f32).collect();
    build.set("activation_sparsity_scale", Value::Array(Array::F32(cuts)));
    rope::set_window_base(build)?;
    build.rope(build.d_head()?)
}

/// The number of standard deviations below which a share of a normal distribution lies; minus infinity
/// for none.
fn normal_quantile(share: f64) -> f64 {
    if share <= 0.0 {
        return f64::NEG_INFINITY;
    }
    // The distribution function is increasing, so bisection finds the number to the last bit.
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// The share of a normal distribution below `x`: a series that converges for all `x` of interest.
fn normal_share(x: f64) -> f64 {
    if x.abs() > 8.0 {
        return if x > 0.0 { 1.0 } else { 0.0 };
    }
    let (mut term, mut sum) = (x, x);
    for i in 1..400 {
        term *= x * x / f64::from(2 * i + 1);
        sum += term;
    }
    0.5 + sum * (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt()
}

/// A setting of the global layers: `own`, or `key` in the newer `per_layer_config`.
fn of_global(
    build: &Build<'_>,
    own: &'static str,
    key: &str,
    global: &[bool],
) -> Result<u32, Error> {
    let config = build.config;
    if config.get(&[own]).is_some() {
        return config.count(&[own], "a size of global attention");
    }
    let listed = config.inner("per_layer_config")?;
    let of_layer = |layer: &str| global.get(layer.parse::<usize>().ok()?).copied();
    let found = listed.entries().find_map(|(layer, settings)| {
        let n = settings.get(key)?.as_u64()?;
        of_layer(layer)?.then(|| u32::try_from(n).ok()).flatten()
    });
    match found {
        Some(n) => Ok(n),
        None if key == "head_dim" => build.d_head(),
        None => build.n_head_kv(),
    }
}

fn gemma4(build: &mut Build<'_>) -> Result<(), Error> {
    build.sizes()?;
    build.feed_forward()?;
    build.rms()?;
    let config = build.config;
    let local = windowed(build)?;
    let global: Vec<bool> = local.iter().map(|local| !local).collect();
    let (d_local, n_kv) = (build.d_head()?, build.n_head_kv()?);
    let d_global = of_global(build, "global_head_dim", "head_dim", &global)?;
    let n_kv_global =
        of_global(build, "num_global_key_value_heads", "num_key_value_heads", &global)?;
    let n_kv: Vec<i32> =
        local.iter().map(|&local| if local { n_kv } else { n_kv_global } as i32).collect();
    build.replace("attention.head_count_kv", Value::Array(Array::I32(n_kv)));
    for (key, size) in [("key_length", d_global), ("value_length", d_global)] {
        build.set(&format!("attention.{key}"), size);
        build.set(&format!("attention.{key}_swa"), d_local);
    }
    let n_layer = build.n_layer()?;
    let first_shared = n_layer - n_shared(build, &local)?;
    let is = |list: &[bool], layer: u32| list.get(layer as usize) == Some(&true);
    let same = config.bool(&["attention_k_eq_v"])?.unwrap_or(false);
    build.layers_on(On::Local, |layer| is(&local, layer))?;
    build.layers_on(On::Global, |layer| is(&global, layer))?;
    build.layers_on(On::LocalKey, |layer| layer < first_shared && is(&local, layer))?;
    build.layers_on(On::GlobalKey, |layer| layer < first_shared && is(&global, layer))?;
    build
        .layers_on(On::GlobalValue, |layer| layer < first_shared && is(&global, layer) && !same)?;
    build.layers_on(On::SharedKey, |layer| layer >= first_shared)?;
    let wide = config.bool(&["use_double_wide_mlp"])?.unwrap_or(false);
    build.layers_on(On::Narrow, |layer| !wide || layer < first_shared)?;
    build.layers_on(On::Wide, |layer| wide && layer >= first_shared)?;
    if wide {
        let n_ff = config.count(&["intermediate_size"], "the number of neurons in a layer")? as i32;
        let n_ff = (0..n_layer).map(|layer| if layer < first_shared { n_ff } else { 2 * n_ff });
        build.replace("feed_forward_length", Value::Array(Array::I32(n_ff.collect())));
    }
    let per_layer = config.u32(&["hidden_size_per_layer_input"])?.unwrap_or(0);
    build.layers_on(On::PerLayerInput, |_| per_layer > 0)?;
    build.set("embedding_length_per_layer_input", per_layer);
    let has_experts = config.bool(&["enable_moe_block"])?.unwrap_or(false);
    build.layers_on(On::Experts, |_| has_experts)?;
    if has_experts {
        build.set("expert_count", config.count(&["num_experts"], "the number of experts")?);
        let n_used = config.count(&["top_k_experts"], "the number of experts per token")?;
        build.set("expert_used_count", n_used);
        let n_ff = &["expert_intermediate_size", "moe_intermediate_size"];
        let n_ff = config.count(n_ff, "the number of neurons in an expert")?;
        build.set("expert_feed_forward_length", n_ff);
    }
    gemma4_rope(build, d_local, d_global)
}

/// RoPE turns all values in layers with a window, and a share of the pairs of global layers.
fn gemma4_rope(build: &mut Build<'_>, d_local: u32, d_global: u32) -> Result<(), Error> {
    let all = build.config.inner("rope_parameters")?;
    let full = all.inner("full_attention")?;
    let kind = full.text(&["rope_type"])?;
    if !matches!(kind.as_deref(), Some("proportional" | "default")) {
        let found = kind.unwrap_or_default();
        return Err(full.wrong_value("rope_parameters.rope_type", "proportional", found));
    }
    let share = full.f32(&["partial_rotary_factor"])?.unwrap_or(1.0);
    let n_rot = (share * d_global as f32 / 2.0) as u32;
    if !(0.0..=1.0).contains(&share) || n_rot == 0 {
        let expected = format!("a share of the {d_global} values of a head");
        return Err(full.wrong_value("partial_rotary_factor", &expected, share));
    }
    // A pair with this divisor does not turn.
    let factors = (0..d_global / 2).map(|pair| if pair < n_rot { 1.0 } else { 1e30 }).collect();
    build.tensor("rope_freqs.weight", factors);
    build.set("rope.dimension_count", d_global);
    build.set("rope.dimension_count_swa", d_local);
    build.set("rope.freq_base", full.f32(&["rope_theta"])?.unwrap_or(1e6));
    rope::set_window_base(build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_the_normal_distribution() {
        assert!((normal_quantile(0.95) - 1.644_853_626_951_472_2).abs() < 1e-9);
        assert!((normal_quantile(0.5)).abs() < 1e-9);
        assert!((normal_quantile(0.025) + 1.959_963_984_540_054).abs() < 1e-9);
        assert_eq!(normal_quantile(0.0), f64::NEG_INFINITY);
    }
}
