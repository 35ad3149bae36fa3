//! Traces of the experts or neurons that tokens use, for `scripts/simulate_tiers`.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;

use engine::{Engine, ObservedBlock};

use super::{Error, Result};

/// A trace of which experts, or which neurons of a model that skips neurons, each of `tokens` uses:
/// the line `trace 1`, the number of experts or neurons of each layer, and for each token a line with
/// the numbers used, layers separated by `;`. Tokens beyond the context start a new text.
///
/// # Errors
/// [`Error::NoChoices`] if every token uses all neurons; errors of the engine.
pub fn trace_choices(
    engine: &mut Engine,
    tokens: &[u32],
    interrupt: &AtomicBool,
) -> Result<String> {
    let model = engine.shared_model();
    if model.experts().is_none() && !model.is_exactly_sparse() {
        return Err(Error::NoChoices);
    }
    let sizes = model
        .layers
        .iter()
        .map(|layer| layer.experts().map_or_else(|| layer.n_ff(), |experts| experts.n).to_string());
    let sizes: Vec<String> = sizes.collect();
    let mut trace = format!("trace 1\n{}\n", sizes.join(" "));
    let n_layer = model.layers.len();
    for text in tokens.chunks(engine.max_tokens().max(1)) {
        let mut sequence = engine.new_sequence();
        // Several steps of several tokens: layers come in order within a step.
        let (mut lines, mut first, mut last): (Vec<Vec<String>>, usize, usize) =
            (Vec::new(), 0, n_layer);
        engine.observe(&mut sequence, text, interrupt, &mut |layer, block| {
            if layer <= last {
                first = lines.len();
                lines.resize(first + block.n_tokens, vec![String::new(); n_layer]);
            }
            last = layer;
            for token in 0..block.n_tokens {
                lines[first + token][layer] = used(block, token);
            }
        })?;
        for line in lines {
            trace += &line.join(";");
            trace.push('\n');
        }
    }
    Ok(trace)
}

/// The experts or neurons that a token uses, separated by spaces.
fn used(block: &ObservedBlock<'_>, token: usize) -> String {
    let values = block.weights.or(block.gate).unwrap_or(block.up);
    let n = values.len() / block.n_tokens.max(1);
    let mut text = String::new();
    for (index, value) in values[token * n..(token + 1) * n].iter().enumerate() {
        if *value > 0.0 || (block.weights.is_some() && *value != 0.0) {
            let space = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{space}{index}");
        }
    }
    text
}
