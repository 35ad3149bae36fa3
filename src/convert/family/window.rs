//! Sliding windows, and the layers that have one.
//!
//! Source: `sliding_window`, `layer_types` and similar settings of `transformers`; the key names
//! of llama.cpp's gguf-py.

use serde_json::Value as Setting;

use super::keys::Build;
use crate::Error;
use gguf::{Array, Value};

const WINDOW: &[&str] = &["sliding_window", "sliding_window_size"];
const PATTERN: &str = "attention.sliding_window_pattern";

/// Sets the window size if `config.json` has one, and the list of layers with a window if it
/// differs from the architecture's default, which is `default(i)` for layer `i`.
pub(super) fn set(build: &mut Build<'_>, default: impl Fn(usize) -> bool) -> Result<(), Error> {
    let layers = layer_types(build)?;
    set_layers(build, layers, default)
}

/// As [`set`]. `layers` says for each layer whether it has a window; `None` if `config.json` has no
/// such list.
pub(super) fn set_layers(
    build: &mut Build<'_>,
    layers: Option<Vec<bool>>,
    default: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let window = build.config.u32(WINDOW)?;
    let has_any = layers.as_ref().is_some_and(|layers| layers.contains(&true));
    match (window, layers) {
        (None | Some(0), _) if has_any => {
            Err(build.config.missing(WINDOW[0], "the size of the sliding window in tokens"))
        }
        (None, _) => Ok(()),
        (Some(window), Some(layers)) => {
            // 0 means no window.
            build.set("attention.sliding_window", if has_any { window } else { 0 });
            if has_any && layers.iter().enumerate().any(|(i, &has)| has != default(i)) {
                build.set(PATTERN, Value::Array(Array::Bool(layers)));
            }
            Ok(())
        }
        (Some(window), None) => {
            build.set("attention.sliding_window", window);
            Ok(())
        }
    }
}

/// As [`set`], with an explicit list of layers; without one in `config.json`, every `period`-th layer
/// has global attention.
pub(super) fn set_listed(build: &mut Build<'_>, period: u32) -> Result<(), Error> {
    let (stated, n_layer) = (layer_types(build)?, build.n_layer()?);
    let usual = || (1..=n_layer).map(|i| !i.is_multiple_of(period)).collect();
    let window = build.config.u32(WINDOW)?.filter(|&window| window > 0);
    let layers = stated.or_else(|| window.map(|_| usual()));
    set_layers(build, layers, |_| false)
}

/// As [`set`], for families in which every n-th layer has global attention; n is `default` if
/// `config.json` states none.
pub(super) fn set_period(build: &mut Build<'_>, default: u32) -> Result<(), Error> {
    const PERIOD: &[&str] = &["sliding_window_pattern"];
    let layers = layer_types(build)?;
    let first = layers.as_ref().and_then(|layers| layers.iter().position(|has| !has));
    let period =
        match first {
            // The number of layers fits in 32 bits.
            Some(first) => Some(first as u32 + 1),
            None if build.config.get(PERIOD).is_some() => Some(build.config.count(
                PERIOD,
                "the number of layers from one global-attention layer to the next",
            )?),
            None => None,
        };
    let run = period.unwrap_or(default) as usize;
    set_layers(build, layers, |i| (i + 1) % run != 0)?;
    if let Some(period) = period.filter(|_| !build.has(PATTERN)) {
        build.set(PATTERN, period);
    }
    Ok(())
}

/// For each layer, whether `layer_types` gives it a window; `None` without that setting.
pub(super) fn layer_types(build: &Build<'_>) -> Result<Option<Vec<bool>>, Error> {
    per_layer(build, "layer_types", "full_attention or sliding_attention", |kind| {
        match kind.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            Some(_) | None => None,
        }
    })
}

/// For each layer, whether the list `key` has 1 or `true`; `None` without that setting.
pub(super) fn layout(build: &Build<'_>, key: &str) -> Result<Option<Vec<bool>>, Error> {
    per_layer(build, key, "0 or 1", |flag| match flag.as_u64() {
        Some(flag @ 0..=1) => Some(flag == 1),
        Some(_) | None => flag.as_bool(),
    })
}

/// The list `key`, with one entry per layer, converted by `read`; `None` if `config.json` does not
/// have it.
fn per_layer(
    build: &Build<'_>,
    key: &str,
    expected: &str,
    read: impl Fn(&Setting) -> Option<bool>,
) -> Result<Option<Vec<bool>>, Error> {
    let Some(list) = build.config.list(key)? else { return Ok(None) };
    let n_layer = build.n_layer()?;
    if list.len() != n_layer as usize {
        let expected = format!("an entry for each of the {n_layer} layers");
        return Err(build.config.wrong_value(key, &expected, format!("a list of {}", list.len())));
    }
    let convert = |entry: &Setting| {
        let expected = || format!("{expected} for each layer");
        read(entry).ok_or_else(|| build.config.wrong_value(key, &expected(), entry))
    };
    list.iter().map(convert).collect::<Result<_, _>>().map(Some)
}
