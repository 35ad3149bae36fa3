//! RoPE scalings, as keys or as tensors of factors.
//!
//! Source: `rope_scaling` (later `rope_parameters`) of `transformers`, the keys of llama.cpp's
//! gguf-py.

use std::f64::consts::TAU;

use super::keys::{Build, CONTEXT};
use crate::Error;
use crate::config::Json;
use gguf::{Array, Value};

pub(super) const TYPE: &[&str] = &["rope_type", "type"];
const ORIGINAL: &[&str] = &["original_max_position_embeddings"];

/// The RoPE settings: `rope_parameters` (of full attention, if split) or the older `rope_scaling`.
pub(super) fn settings(config: &Json) -> Result<Json, Error> {
    let newer = config.inner("rope_parameters")?;
    let newer = if newer.get(&["full_attention"]).is_some() {
        newer.inner("full_attention")?
    } else {
        newer
    };
    if newer.get(TYPE).is_some() || newer.get(&["rope_theta"]).is_some() {
        return Ok(newer);
    }
    config.inner("rope_scaling")
}

/// Number of rotated values per head, in families that apply RoPE to only a fraction of a head;
/// `default` is the fraction that `transformers` uses if `config.json` states none.
pub(super) fn n_rotated(build: &Build<'_>, default: f32) -> Result<u32, Error> {
    let keys = &["partial_rotary_factor", "rope_pct", "rope_percent"];
    let d_head = build.d_head()?;
    let own = build.config.f32(keys)?;
    let share = own.or(settings(build.config)?.f32(keys)?).unwrap_or(default);
    let n_rot = (share * d_head as f32) as u32;
    let is_share = share > 0.0 && share <= 1.0;
    if !is_share || n_rot == 0 || !n_rot.is_multiple_of(2) {
        let expected =
            format!("a fraction up to 1 that gives an even number of the {d_head} values");
        return Err(build.config.wrong_value(keys[0], &expected, share));
    }
    Ok(n_rot)
}

/// Sets the RoPE base of layers with a window, if it is stated separately.
pub(super) fn set_window_base(build: &mut Build<'_>) -> Result<(), Error> {
    let local = build.config.inner("rope_parameters")?.inner("sliding_attention")?;
    let base = build.config.f32(&["rope_local_base_freq"])?.or(local.f32(&["rope_theta"])?);
    if let Some(base) = base {
        build.set("rope.freq_base_swa", base);
    }
    Ok(())
}

/// In families with this key, readers derive the magnitude of YaRN and the scale of attention scores
/// from `mscale_all_dim`; the key is it times `unit`.
pub(super) fn set_log(build: &mut Build<'_>, unit: f32) -> Result<(), Error> {
    let scaling = settings(build.config)?;
    let (one, all) = (scaling.f32(&["mscale"])?, scaling.f32(&["mscale_all_dim"])?);
    let Some(all) = all.filter(|&all| all != 0.0 && build.has("rope.scaling.type")) else {
        return Ok(());
    };
    if one != Some(all) {
        let expected = "the same as mscale_all_dim, as in the published models";
        let found = one.map_or_else(|| "nothing".to_owned(), |one| one.to_string());
        return Err(scaling.wrong_value("rope_scaling.mscale", expected, found));
    }
    build.keys.retain(|(key, _)| !key.ends_with(".rope.scaling.attn_factor"));
    build.set("rope.scaling.yarn_log_multiplier", unit * all);
    Ok(())
}

/// Sets the sections of a head whose positions are those of time, height and width.
pub(super) fn set_sections(build: &mut Build<'_>, default: [i32; 4]) -> Result<(), Error> {
    let settings = settings(build.config)?;
    let sections = match settings.list("mrope_section")? {
        None => default.to_vec(),
        Some(list) => {
            let number = |value: &serde_json::Value| i32::try_from(value.as_u64()?).ok();
            let all: Option<Vec<i32>> = list.iter().map(number).collect();
            let all = all.filter(|all| all.len() <= 4).ok_or_else(|| {
                settings.wrong_value("mrope_section", "up to four counts", list.len())
            })?;
            all.into_iter().chain([0; 4]).take(4).collect()
        }
    };
    build.set("rope.dimension_sections", Value::Array(Array::I32(sections)));
    Ok(())
}

/// Sets the RoPE base and scaling; `n_rot` is the number of rotated values per head.
pub(super) fn set(build: &mut Build<'_>, n_rot: u32) -> Result<(), Error> {
    let scaling = settings(build.config)?;
    let base =
        build.config.f32(&["rope_theta", "rotary_emb_base"])?.or(scaling.f32(&["rope_theta"])?);
    if let Some(base) = base {
        build.set("rope.freq_base", base);
    }
    scale(build, &scaling, base, n_rot)
}

/// Sets the RoPE scaling of `scaling`; `base` is that of all layers.
pub(super) fn scale(
    build: &mut Build<'_>,
    scaling: &Json,
    base: Option<f32>,
    n_rot: u32,
) -> Result<(), Error> {
    match scaling.text(TYPE)?.as_deref().unwrap_or("default") {
        // `mrope` gives images positions of their own; a text has the same position in all sections.
        "default" | "mrope" => Ok(()),
        "linear" => linear(build, scaling),
        "yarn" => yarn(build, scaling),
        "llama3" => {
            let factors =
                llama3(build.config, scaling, f64::from(base.unwrap_or(10_000.0)), n_rot)?;
            build.tensor("rope_freqs.weight", factors);
            Ok(())
        }
        "longrope" | "su" => longrope(build, scaling, n_rot),
        "dynamic" => {
            build.notes.push("GGUF has no key for dynamic RoPE scaling: the converted model does not scale positions beyond its trained context".to_owned());
            Ok(())
        }
        other => Err(scaling.wrong_value(
            "rope_scaling.type",
            "default, linear, yarn, llama3 or longrope",
            other,
        )),
    }
}

fn linear(build: &mut Build<'_>, scaling: &Json) -> Result<(), Error> {
    let factor = scaling.need_f32(&["factor"], "the RoPE scaling factor")?;
    build.set("rope.scaling.type", "linear");
    build.set("rope.scaling.factor", factor);
    Ok(())
}

fn yarn(build: &mut Build<'_>, scaling: &Json) -> Result<(), Error> {
    let original = scaling.u32(ORIGINAL)?.or(build.config.u32(ORIGINAL)?);
    let factor = match (scaling.f32(&["factor"])?, original) {
        (Some(factor), _) => factor,
        (None, Some(original)) if original > 0 => {
            build.config.count(CONTEXT, "the context length")? as f32 / original as f32
        }
        (None, _) => scaling.need_f32(&["factor"], "the RoPE scaling factor")?,
    };
    if factor < 1.0 {
        return Err(scaling.wrong_value("rope_scaling.factor", "at least 1", factor));
    }
    build.set("rope.scaling.type", "yarn");
    build.set("rope.scaling.factor", factor);
    if let Some(original) = original {
        build.set("rope.scaling.original_context_length", original);
    }
    // Readers of the file already multiply by the default magnitude for this factor, so the key
    // holds only the ratio.
    let attention = magnitude(build, scaling, factor)? / yarn_mscale(factor, 1.0);
    if (attention - 1.0).abs() > 1e-6 {
        build.set("rope.scaling.attn_factor", attention);
    }
    for (from, to) in
        [("beta_fast", "rope.scaling.yarn_beta_fast"), ("beta_slow", "rope.scaling.yarn_beta_slow")]
    {
        if let Some(number) = scaling.f32(&[from])?.filter(|&number| number != 0.0) {
            build.set(to, number);
        }
    }
    if scaling.bool(&["truncate"])? == Some(false) {
        build.notes.push("rope_scaling.truncate is false, but GGUF has no key for it: YaRN's bounds between fast and slow pairs are rounded to whole pairs, as in llama.cpp".to_owned());
    }
    Ok(())
}

/// The factor (mscale) on all rotated values, computed as in `transformers`.
fn magnitude(build: &mut Build<'_>, scaling: &Json, factor: f32) -> Result<f32, Error> {
    let number = |key: &str| Ok::<_, Error>(scaling.f32(&[key])?.filter(|&number| number != 0.0));
    let stated = scaling.f32(&["attention_factor"])?;
    let (one, all) = (number("mscale")?, number("mscale_all_dim")?);
    if build.arch == "plm" && all.is_some() {
        // MLA would also scale its attention scores by `mscale_all_dim`, for which PLM's files have
        // no key.
        let found = all.unwrap_or_default();
        return Err(scaling.wrong_value(
            "rope_scaling.mscale_all_dim",
            "none in this family",
            found,
        ));
    }
    let magnitude = match (stated, one, all) {
        (Some(stated), ..) => stated,
        (None, Some(one), Some(all)) => yarn_mscale(factor, one) / yarn_mscale(factor, all),
        (None, ..) => yarn_mscale(factor, 1.0),
    };
    let names = [("mscale", one), ("mscale_all_dim", all)];
    for (name, _) in names.iter().filter(|(_, number)| number.is_some()) {
        if stated.is_some() || one.is_none() || all.is_none() {
            let why = if stated.is_some() {
                "attention_factor gives the magnitude"
            } else {
                "mscale and mscale_all_dim are used only together"
            };
            build.notes.push(format!("rope_scaling.{name} is ignored: {why}"));
        }
    }
    if magnitude > 0.0 && magnitude.is_finite() {
        Ok(magnitude)
    } else {
        Err(scaling.wrong_value("rope_scaling.attention_factor", "a positive number", magnitude))
    }
}

/// `yarn_get_mscale` of `transformers`, for a `factor` of at least 1.
fn yarn_mscale(factor: f32, mscale: f32) -> f32 {
    0.1 * mscale * factor.ln() + 1.0
}

/// Divisor of each pair's frequency in Llama 3.1: `factor` for low frequencies, 1 for high
/// frequencies, interpolated in between.
fn llama3(config: &Json, scaling: &Json, base: f64, n_rot: u32) -> Result<Vec<f32>, Error> {
    let number = |key: &str, default: f32| -> Result<f64, Error> {
        match scaling.f32(&[key])?.unwrap_or(default) {
            value if value > 0.0 => Ok(f64::from(value)),
            value => Err(scaling.wrong_value(key, "a positive number", value)),
        }
    };
    let factor = number("factor", 8.0)?;
    let (low, high) = (number("low_freq_factor", 1.0)?, number("high_freq_factor", 4.0)?);
    let original = scaling.u32(ORIGINAL)?.or(config.u32(ORIGINAL)?).unwrap_or(8192);
    let factor_of = |pair: u32| {
        let freq = base.powf(-2.0 * f64::from(pair) / f64::from(n_rot));
        let rotations = f64::from(original) * freq / TAU;
        let fast = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
        let fast = if fast.is_nan() { 1.0 } else { fast };
        (1.0 / ((1.0 - fast) / factor + fast)) as f32
    };
    Ok((0..n_rot / 2).map(factor_of).collect())
}

/// LongRoPE: adds one table of factors for short and one for long contexts, and sets the original
/// context length and the magnitude.
fn longrope(build: &mut Build<'_>, scaling: &Json, n_rot: u32) -> Result<(), Error> {
    for (key, tensor) in
        [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
    {
        let list =
            scaling.list(key)?.ok_or_else(|| scaling.missing(key, "one factor per value pair"))?;
        let numbers = list.iter().map(|number| number.as_f64().map(|number| number as f32));
        let numbers =
            numbers.collect::<Option<Vec<f32>>>().filter(|list| list.len() == n_rot as usize / 2);
        let expected = format!("a list of {} numbers", n_rot / 2);
        let numbers = numbers.ok_or_else(|| scaling.wrong_value(key, &expected, "invalid"))?;
        build.tensor(tensor, numbers);
    }
    let n_ctx = build.config.count(&["max_position_embeddings"], "the context length")?;
    let original = scaling.u32(ORIGINAL)?.or(build.config.u32(ORIGINAL)?).unwrap_or(n_ctx);
    let scale = f64::from(n_ctx) / f64::from(original.max(2));
    let magnitude =
        if scale > 1.0 { (1.0 + scale.ln() / f64::from(original.max(2)).ln()).sqrt() } else { 1.0 };
    let magnitude = scaling.f32(&["attention_factor"])?.unwrap_or(magnitude as f32);
    build.set("rope.scaling.original_context_length", original);
    build.set("rope.scaling.attn_factor", magnitude);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_factors_match_the_published_scaling() {
        let file = tempfile::tempdir().unwrap();
        let path = file.path().join("config.json");
        std::fs::write(&path, r#"{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#).unwrap();
        let config = Json::open(&path).unwrap();
        let factors = llama3(&config, &config, 500_000.0, 128).unwrap();
        assert_eq!((factors[0], factors[63]), (1.0, 8.0));
        // Pair 30: wavelength 2 pi 500000^(60/128) = 2948 positions, between 2048 and 8192.
        let smooth = (8192.0 / 2948.3 - 1.0) / 3.0f64;
        assert!(
            (f64::from(factors[30]) - 1.0 / ((1.0 - smooth) / 8.0 + smooth)).abs() < 0.01,
            "{}",
            factors[30]
        );
    }
}
