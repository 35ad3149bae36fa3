//! The ops of a model's programs, for a test of a device's kernels.

use hal::{Device, OpDesc};

use model::Model;

use super::Sizing;
use crate::options::EngineOptions;

/// Tokens of the steps: decode, a small batch, and prefill.
const TOKENS: [usize; 3] = [1, 4, 32];

/// The ops of the programs that a device may run, program by program: layers, whole and split with
/// another device, the embedding and the head, in decode, small batches and prefill.
#[must_use]
pub fn programs(model: &Model, devices: &[Device], options: &EngineOptions) -> Vec<Vec<OpDesc>> {
    let sizing = Sizing::new(model, devices, options);
    let cuts = sizing.mode.cuts(model);
    let layers = sizing.distinct_layers();
    let mut all = Vec::new();
    for n_tokens in TOKENS.map(|n| n.min(options.n_ubatch)) {
        all.push(sizing.embed_ops(n_tokens));
        for &layer in &layers {
            let (whole, cut) = (model.layers[layer].n_ff(), &cuts[layer]);
            all.push(sizing.layer_ops(layer, whole, n_tokens));
            if cut.n_groups() > 1 {
                let half = cut.neurons(cut.n_groups() / 2);
                all.push(sizing.layer_ops(layer, half, n_tokens));
            }
        }
        all.push(sizing.head_ops(n_tokens.min(options.max_out())));
    }
    all
}
