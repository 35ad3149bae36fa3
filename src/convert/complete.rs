//! Checks that a checkpoint is complete: every tensor of its family, in every layer, for every
//! expert.

use std::collections::HashMap;

use super::Error;
use super::family::Rule;
use super::output::Output;
use super::plan::Plan;

/// ModernBERT has no norm before the first layer.
const NOT_IN_FIRST: [(&str, &str); 1] = [("modern-bert", "attn_norm.weight")];
/// Layers of these differ in heads and neurons.
const VARIES: [&str; 1] = ["deci"];

/// Checks the tensors, their shapes, and the numbers of layers and experts: a tensor has the same
/// shape in all layers that its rule applies to.
pub(super) fn check(plan: &Plan<'_>, outputs: &[Output]) -> Result<(), Error> {
    let shapes: HashMap<&str, &[u64]> =
        outputs.iter().map(|output| (output.name.as_str(), output.shape.as_slice())).collect();
    let missing = |tensor: String| Err(Error::MissingTensor { tensor });
    for name in required_tensors(plan)? {
        if !shapes.contains_key(name.as_str()) {
            return missing(name);
        }
    }
    let n_layer = plan.build.n_layer()?;
    for output in outputs {
        check_experts(plan, output)?;
        let Some((layer, part)) = layer_of(&output.name) else { continue };
        if layer >= u64::from(n_layer) {
            let expected = format!("more than {layer}, since the checkpoint has {}", output.name);
            return Err(plan.build.config.wrong_value("num_hidden_layers", &expected, n_layer));
        }
        let layers = layers_with(plan, part, layer, n_layer);
        let first = layers.first().copied();
        if !layers.iter().any(|&other| u64::from(other) == layer) {
            return Err(Error::UnknownTensor {
                tensor: output.name.clone(),
                arch: plan.family.arch,
            });
        }
        // The first layer is compared with all layers, so comparing any other layer with the first
        // is enough.
        let n_compared = if first.map(u64::from) == Some(layer) { layers.len() } else { 1 };
        for other in &layers[..n_compared] {
            let name = format!("blk.{other}.{part}");
            let Some(shape) = shapes.get(name.as_str()) else { return missing(name) };
            if *shape != output.shape && !VARIES.contains(&plan.family.arch) {
                let expected = format!("{:?}, as {name}", reverse_shape(shape));
                let (tensor, found) = (output.name.clone(), reverse_shape(&output.shape));
                return Err(Error::Shape { tensor, expected, found });
            }
        }
    }
    Ok(())
}

/// The layers that have the tensor `part` with the same shape as in `layer`: those of the same rule.
fn layers_with(plan: &Plan<'_>, part: &str, layer: u64, n_layer: u32) -> Vec<u32> {
    let starts_later = NOT_IN_FIRST.contains(&(plan.family.arch, part));
    let is_of = |rule: &Rule| {
        name_of(plan, rule, 0).is_some_and(|name| {
            let stem =
                |name: &str| name.trim_end_matches(".weight").trim_end_matches(".bias").to_owned();
            name.strip_prefix("blk.0.").is_some_and(|name| stem(name) == stem(part))
        })
    };
    let rules = plan.family.all_rules().filter(|(_, rule)| is_of(rule));
    let mut here = rules.filter(|(on, _)| plan.build.applies(*on, layer as usize));
    let Some((on, _)) = here.next() else { return Vec::new() };
    let has = |layer: &u32| plan.build.applies(on, *layer as usize);
    (u32::from(starts_later)..n_layer).filter(has).collect()
}

/// The name of the output of `rule` in `layer`; `None` for a tensor that is not converted.
fn name_of(plan: &Plan<'_>, rule: &Rule, layer: u32) -> Option<String> {
    if rule.is_dropped() {
        return None;
    }
    let to = rule.to.replace('*', &layer.to_string());
    let transposed = plan.transpose_down && to.ends_with(".ffn_down");
    Some(match to.strip_suffix('=') {
        Some(whole) => whole.to_owned(),
        None if transposed => format!("{to}_t.weight"),
        None if is_bias(rule) => format!("{to}.bias"),
        None => format!("{to}.weight"),
    })
}

/// Whether a rule is for a bias without a weight.
fn is_bias(rule: &Rule) -> bool {
    rule.from.ends_with("_bias") || rule.to.ends_with(".exp_probs_b")
}

/// The tensors that every model of the family has.
fn required_tensors(plan: &Plan<'_>) -> Result<Vec<String>, Error> {
    let mut needed = Vec::new();
    let n_layer = plan.build.n_layer()?;
    let is_untied = plan.build.config.bool(&["tie_word_embeddings"])? == Some(false);
    // A model of embeddings has no output matrix, whatever its settings say.
    let is_untied = is_untied && !plan.build.has("pooling_type") && !is_headless(plan)?;
    for (on, rule) in plan.family.all_rules() {
        if rule.optional || (rule.to == "output" && !is_untied) {
            continue;
        }
        // Other layers are compared with the first that has the tensor.
        let Some(layer) = (0..n_layer).find(|&layer| plan.build.applies(on, layer as usize)) else {
            continue;
        };
        let Some(name) = name_of(plan, rule, layer) else { continue };
        let part = name.strip_prefix("blk.0.").unwrap_or_default();
        if !NOT_IN_FIRST.contains(&(plan.family.arch, part)) {
            needed.push(name);
        }
    }
    Ok(needed)
}

/// Whether the class is that of a model without a head.
fn is_headless(plan: &Plan<'_>) -> Result<bool, Error> {
    let classes = plan.build.config.list("architectures")?;
    let class = classes.and_then(|list| list.first()?.as_str());
    Ok(class.is_some_and(|class| class.ends_with("Model")))
}

/// Returns an error if the number of experts differs from `config.json`.
fn check_experts(plan: &Plan<'_>, output: &Output) -> Result<(), Error> {
    let is_of_experts = output.name.contains("_exps.") && !output.name.contains("_norm_exps.")
        || output.name.ends_with(".ffn_gate_inp.weight");
    match plan.build.n_expert() {
        Some(n) if is_of_experts && output.shape.last() != Some(&n) => Err(Error::Shape {
            tensor: output.name.clone(),
            expected: format!("{n} experts, as in config.json"),
            found: reverse_shape(&output.shape),
        }),
        Some(_) | None => Ok(()),
    }
}

/// Splits `blk.<layer>.<rest>` into layer and rest; `None` for any other name.
fn layer_of(name: &str) -> Option<(u64, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}

/// Converts a shape from ggml's order (row length first) to PyTorch's (row length last).
fn reverse_shape(shape: &[u64]) -> Vec<u64> {
    shape.iter().rev().copied().collect()
}
