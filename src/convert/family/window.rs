//! Windows of attention, and which layers have one.
//!
//! Source: `sliding_window`, `layer_types` and their like of `transformers`; the key names of llama.cpp's gguf-py.

use serde_json::Value as Setting;

use super::keys::Build;
use crate::convert::Error;
use crate::gguf::{Array, Value};

const WINDOW: &[&str] = &["sliding_window", "sliding_window_size"];
const PATTERN: &str = "attention.sliding_window_pattern";

/// Sets the window, if there is one, and which layers have it, where these are others than a file means that does not
/// say: layer `i` if `usual(i)`.
pub(super) fn set(build: &mut Build<'_>, usual: impl Fn(usize) -> bool) -> Result<(), Error> {
    let layers = layer_types(build)?;
    set_layers(build, layers, usual)
}

/// As [`set`], where `layers` says which layers have it, if anything does.
pub(super) fn set_layers(
    build: &mut Build<'_>,
    layers: Option<Vec<bool>>,
    usual: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let window = build.config.u32(WINDOW)?;
    let has_some = layers.as_ref().is_some_and(|layers| layers.contains(&true));
    match (window, layers) {
        (None | Some(0), _) if has_some => {
            Err(build.config.missing(WINDOW[0], "the window of the layers that have one"))
        }
        (None, _) => Ok(()),
        (Some(window), Some(layers)) => {
            // 0 says that there is none.
            build.set("attention.sliding_window", if has_some { window } else { 0 });
            if has_some && layers.iter().enumerate().any(|(i, &has)| has != usual(i)) {
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

/// As [`set`], where the last of each run of `usual` layers sees all positions, or of as many as the settings say.
pub(super) fn set_period(build: &mut Build<'_>, usual: u32) -> Result<(), Error> {
    const PERIOD: &[&str] = &["sliding_window_pattern"];
    let layers = layer_types(build)?;
    let first = layers.as_ref().and_then(|layers| layers.iter().position(|has| !has));
    let period = match first {
        // There are no more layers than 32 bits count.
        Some(first) => Some(first as u32 + 1),
        None if build.config.get(PERIOD).is_some() => {
            Some(build.config.count(PERIOD, "the layers from one that sees all to the next")?)
        }
        None => None,
    };
    let run = period.unwrap_or(usual) as usize;
    set_layers(build, layers, |i| (i + 1) % run != 0)?;
    if let Some(period) = period.filter(|_| !build.has(PATTERN)) {
        build.set(PATTERN, period);
    }
    Ok(())
}

/// Which layers have a window by `layer_types`.
pub(super) fn layer_types(build: &Build<'_>) -> Result<Option<Vec<bool>>, Error> {
    of_layers(build, "layer_types", "full_attention or sliding_attention", |kind| {
        match kind.as_str() {
            Some("full_attention") => Some(false),
            Some("sliding_attention") => Some(true),
            Some(_) | None => None,
        }
    })
}

/// Which layers have a 1 in the list under `key`.
pub(super) fn layout(build: &Build<'_>, key: &str) -> Result<Option<Vec<bool>>, Error> {
    of_layers(build, key, "0 or 1", |flag| match flag.as_u64() {
        Some(flag @ 0..=1) => Some(flag == 1),
        Some(_) | None => flag.as_bool(),
    })
}

/// What `read` makes of the list under `key`, which has an entry for each layer.
fn of_layers(
    build: &Build<'_>,
    key: &str,
    expected: &str,
    read: impl Fn(&Setting) -> Option<bool>,
) -> Result<Option<Vec<bool>>, Error> {
    let Some(list) = build.config.list(key)? else { return Ok(None) };
    let n_layer = build.n_layer()?;
    if list.len() != n_layer as usize {
        let expected = format!("an entry for each of the {n_layer} layers");
        return Err(build.config.wrong(key, &expected, format!("a list of {}", list.len())));
    }
    let each = |entry: &Setting| {
        read(entry).ok_or_else(|| build.config.wrong(key, &format!("{expected} each"), entry))
    };
    list.iter().map(each).collect::<Result<_, _>>().map(Some)
}
