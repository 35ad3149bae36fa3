//! The numbers of xIELU, which Apertus' files state for each layer.

use hal::op::Activation;

use super::Error;
use super::hyper::Keys;

/// Smallest limit of the exponential's input. A larger limit changes no result by more than its own
/// size times the factor of the exponential, which is below the rounding of the other terms.
const MIN_EPS: f32 = -1e-4;

/// The activation of each of `n_layer` layers; `None` if that of the model is not xIELU.
pub(super) fn read(
    keys: &Keys<'_>,
    of_model: Activation,
    n_layer: usize,
) -> Result<Option<Vec<Activation>>, Error> {
    if !matches!(of_model, Activation::XIelu { .. }) {
        return Ok(None);
    }
    let numbers = |part: &str| numbers(keys, part, n_layer);
    let (negative, positive) = (numbers("alpha_n")?, numbers("alpha_p")?);
    let (slopes, limits) = (numbers("beta")?, numbers("eps")?);
    if let Some(limit) = limits.iter().find(|limit| **limit < MIN_EPS) {
        return Err(wrong(keys, "eps", format!("at least {MIN_EPS}"), limit));
    }
    let layer = |i: usize| Activation::XIelu {
        positive: softplus(positive[i]),
        negative: slopes[i] + softplus(negative[i]),
        slope: slopes[i],
    };
    Ok(Some((0..n_layer).map(layer).collect()))
}

/// A finite number for each layer: a list, or one number for all layers. llama.cpp's key names lack
/// the architecture.
fn numbers(keys: &Keys<'_>, part: &str, n_layer: usize) -> Result<Vec<f32>, Error> {
    let name = format!("xielu.{part}");
    let is_list = keys.metadata.get(&name).is_some_and(|value| value.as_array().is_some());
    let numbers = if is_list {
        keys.metadata.f32_array(&name)?.map(std::borrow::Cow::into_owned)
    } else {
        keys.metadata.f32(&name)?.map(|number| vec![number; n_layer])
    };
    let Some(numbers) = numbers else {
        return Err(wrong(keys, part, "a number for each layer", "no such key"));
    };
    if numbers.len() != n_layer {
        let expected = format!("a number for each of the {n_layer} layers");
        return Err(wrong(keys, part, expected, format!("{} numbers", numbers.len())));
    }
    match numbers.iter().find(|number| !number.is_finite()) {
        Some(number) => Err(wrong(keys, part, "finite numbers", number)),
        None => Ok(numbers),
    }
}

fn wrong(
    keys: &Keys<'_>,
    part: &str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> Error {
    Error::Key {
        file: keys.file.to_owned(),
        key: format!("xielu.{part}"),
        expected: expected.to_string(),
        found: found.to_string(),
    }
}

/// `ln(1 + e^x)`
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}
