//! Activation profiles: how often each neuron of a model is active, and how much it contributes.
//!
//! This module collects profiles ([`Gatherer`], [`calibrate`]), stores them in the side file,
//! summarises and plots them, and reads PowerInfer's files with the same content. Other modules
//! place neurons and make predictors.
//!
//! A neuron *fires* for a token (is active) if its test value (the gate, or up without a gate) is
//! positive, for activations with exact zeros; with other activations, if its contribution to the
//! block's output is at least the mean of all neurons that the token uses in this layer. Its
//! *contribution* is `|h|` times the norm of its row of down.

mod calibrate;
mod counts;
mod gather;
mod order;
mod plot;
mod powerinfer;
mod store;
mod summary;

pub use calibrate::{Text, calibrate, finish};
pub use counts::Counts;
pub use gather::Gatherer;
pub use plot::svg;
pub use powerinfer::{Error as ImportError, GpuIndex, gpu_index, import};
pub use summary::Summary;

use model::{Ffn, LayerWeights, Model};

/// Maximum number of tokens whose active neurons are stored.
const MAX_SAMPLES: usize = 512;

/// A model's activation profile.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Origin: a text and its checksum, automatic collection during use, or another program.
    source: String,
    /// Number of processed tokens.
    n_tokens: u64,
    /// Requested number of tokens; a profile with fewer is unfinished.
    n_wanted: u64,
    /// The active neurons of every `stride`-th token are stored; 0 means of no token.
    stride: u64,
    layers: Vec<LayerProfile>,
}

/// Profile of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerProfile {
    /// Number of tokens for which each neuron fired.
    fires: Vec<u64>,
    /// Sum of each neuron's contributions.
    size: Vec<f64>,
    /// Sum of squares of each value of the block's input; empty if unknown.
    input: Vec<f64>,
    /// Number of tokens that used each expert; empty without experts.
    routed: Vec<u64>,
    /// For some tokens, evenly spaced, one bit per neuron: whether it fired.
    samples: Vec<Vec<u64>>,
    /// All neurons, with neurons that fire together adjacent; empty while the profile is
    /// unfinished.
    order: Vec<u32>,
}

impl LayerProfile {
    /// Empty profiles of all layers of `model`.
    fn empty(model: &Model) -> Vec<LayerProfile> {
        let new = |layer: &LayerWeights| LayerProfile {
            fires: vec![0; layer.n_ff()],
            size: vec![0.0; layer.n_ff()],
            input: vec![0.0; layer.ffn.as_ref().map_or(0, Ffn::width)],
            routed: vec![0; layer.experts().map_or(0, |experts| experts.n)],
            samples: Vec::new(),
            order: Vec::new(),
        };
        model.layers.iter().map(new).collect()
    }

    /// Number of tokens for which each neuron fired.
    #[must_use]
    pub fn active_counts(&self) -> &[u64] {
        &self.fires
    }

    /// Number of tokens that used each expert; empty without experts.
    #[must_use]
    pub fn expert_counts(&self) -> &[u64] {
        &self.routed
    }

    /// All neurons, hot before cold, with neurons that fire together adjacent, and the neurons of
    /// an expert together; empty while the profile is unfinished.
    #[must_use]
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}

impl Profile {
    /// An empty profile for `n_wanted` tokens from `source`.
    #[must_use]
    pub fn new(model: &Model, source: &str, n_wanted: u64) -> Profile {
        let layers = LayerProfile::empty(model);
        Profile { source: source.to_owned(), n_tokens: 0, n_wanted, stride: 1, layers }
    }

    /// As [`Profile::new`], without samples: for [`Gatherer::counting`].
    #[must_use]
    pub fn counts(model: &Model, source: &str, n_wanted: u64) -> Profile {
        Profile { stride: 0, ..Profile::new(model, source, n_wanted) }
    }

    /// The origin.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Number of processed tokens.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Requested number of tokens.
    #[must_use]
    pub fn n_wanted(&self) -> u64 {
        self.n_wanted
    }

    /// Whether the profile is complete.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.n_tokens >= self.n_wanted
    }

    /// Layers in order.
    #[must_use]
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// The probability that each neuron of each layer fires for a token, `[n_layer][n_ff]`.
    #[must_use]
    pub fn probabilities(&self) -> Vec<Vec<f32>> {
        let tokens = self.n_tokens.max(1) as f64;
        let layer = |layer: &LayerProfile| {
            layer.fires.iter().map(|&fires| (fires as f64 / tokens) as f32).collect()
        };
        self.layers.iter().map(layer).collect()
    }

    /// The probability that a token of `model` uses each neuron of each layer, `[n_layer][n_ff]`,
    /// for placement. If nothing is skipped within an expert, a neuron is used as often as its
    /// expert.
    #[must_use]
    pub fn uses(&self, model: &Model) -> Vec<Vec<f32>> {
        let mut uses = self.probabilities();
        if model.is_exactly_sparse() {
            return uses;
        }
        let tokens = self.n_tokens.max(1) as f64;
        for ((uses, layer), weights) in uses.iter_mut().zip(&self.layers).zip(&model.layers) {
            let Some(experts) = weights.experts() else { continue };
            let shares = |&n: &u64| std::iter::repeat_n((n as f64 / tokens) as f32, experts.n_ff);
            *uses = layer.routed.iter().flat_map(shares).collect();
        }
        uses
    }

    /// Each neuron's mean contribution to a token, `[n_layer][n_ff]`; zeros if only counts are
    /// known.
    #[must_use]
    pub fn mean_contributions(&self) -> Vec<Vec<f32>> {
        let tokens = self.n_tokens.max(1) as f64;
        let layer =
            |layer: &LayerProfile| layer.size.iter().map(|size| (size / tokens) as f32).collect();
        self.layers.iter().map(layer).collect()
    }

    /// Mean squares of the values of each block's input, `[n_layer][width]`, empty for a layer
    /// without a block; `None` for counts imported from PowerInfer.
    #[must_use]
    pub fn mean_squares(&self) -> Option<Vec<Vec<f32>>> {
        let tokens = self.n_tokens.max(1) as f64;
        let mean =
            |layer: &LayerProfile| layer.input.iter().map(|sum| (sum / tokens) as f32).collect();
        let known = self.layers.iter().any(|layer| !layer.input.is_empty());
        known.then(|| self.layers.iter().map(mean).collect())
    }
}
