//! Checks that a checkpoint is complete: every tensor of its family, in every layer, for every
//! expert.

use std::collections::HashMap;

use super::Error;
use super::family::Transform;
use super::output::Output;
use super::plan::Plan;

/// Tensors that a family's models may lack: Falcon's second norm before attention, which only its
/// larger models have, BERT's token types, and ModernBERT's norm before the first layer.
const OPTIONAL: [&str; 2] = ["blk.*.attn_norm_2", "token_types"];
const NOT_IN_FIRST: [(&str, &str); 1] = [("modern-bert", "attn_norm.weight")];

/// Checks the tensors, their shapes, and the numbers of layers and experts: in every supported
/// family all layers have the same tensors with the same shapes.
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
        let starts_later = NOT_IN_FIRST.contains(&(plan.family.arch, part));
        for other in u32::from(starts_later)..n_layer {
            let name = format!("blk.{other}.{part}");
            let Some(shape) = shapes.get(name.as_str()) else { return missing(name) };
            if *shape != output.shape {
                let expected = format!("{:?}, as {name}", reverse_shape(shape));
                let (tensor, found) = (output.name.clone(), reverse_shape(&output.shape));
                return Err(Error::Shape { tensor, expected, found });
            }
            // Layer 0 is compared with all layers, so comparing any other layer with layer 0 is
            // enough.
            if layer > u64::from(starts_later) {
                break;
            }
        }
    }
    Ok(())
}

/// The tensors that every model of the family has.
fn required_tensors(plan: &Plan<'_>) -> Result<Vec<String>, Error> {
    let mut needed = Vec::new();
    let is_untied = plan.build.config.bool(&["tie_word_embeddings"])? == Some(false);
    for rule in plan.family.rules.iter().copied().flatten() {
        if rule.transform == Transform::Drop
            || OPTIONAL.contains(&rule.to)
            || (rule.to == "output" && !is_untied)
        {
            continue;
        }
        let transposed = plan.transpose_down && rule.to.ends_with(".ffn_down");
        let end = if transposed { "_t.weight" } else { ".weight" };
        let name = format!("{}{end}", rule.to.replace('*', "0"));
        let part = name.strip_prefix("blk.0.").unwrap_or_default();
        if !NOT_IN_FIRST.contains(&(plan.family.arch, part)) {
            needed.push(name);
        }
    }
    Ok(needed)
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
