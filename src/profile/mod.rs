//! Which neurons of a model fire how often, and how much they count.
//!
//! Here: what is gathered and how ([`Gatherer`], [`calibrate`]), how it is kept in the learned file, what can be said of
//! it, its picture, PowerInfer's files of the same kind. Not here: where neurons are placed, predictors.
//!
//! A neuron *fires* for a token if its test value (the gate, or up where there is none) is positive, where the
//! activation is exactly 0 elsewhere; with other activations, if its contribution to the block's output is at least the
//! mean of all neurons that the token uses in this layer. Its *contribution* is `|h|` times the norm of its row of down.

mod calibrate;
mod gather;
mod order;
mod plot;
mod powerinfer;
mod store;
mod summary;

pub use calibrate::{Text, calibrate, finish};
pub use gather::Gatherer;
pub use plot::svg;
pub use powerinfer::{Error as ImportError, GpuIndex, gpu_index, import};
pub use summary::Summary;

use crate::model::Model;

/// Tokens of which is kept who fired together, at most.
const MOST_SAMPLES: usize = 512;

/// What is known of a model's neurons.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Where it comes from: a text and its sum, somebody's use, another program.
    source: String,
    /// Tokens that were looked at.
    n_tokens: u64,
    /// Tokens that shall be; a profile with fewer is unfinished.
    n_wanted: u64,
    /// One token in so many has its firing neurons kept; 0 where none has.
    stride: u64,
    layers: Vec<LayerProfile>,
}

/// The neurons of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerProfile {
    /// For how many tokens each fired.
    fires: Vec<u64>,
    /// Sum of each one's contributions.
    size: Vec<f64>,
    /// Sum of squares of each value of the block's input; empty if not known.
    input: Vec<f64>,
    /// For how many tokens each expert was used; empty without experts.
    routed: Vec<u64>,
    /// Of some tokens, evenly spread, one bit for each neuron: whether it fired.
    samples: Vec<Vec<u64>>,
    /// All neurons, those that fire together beside each other; empty as long as the profile is unfinished.
    order: Vec<u32>,
}

impl LayerProfile {
    fn new(model: &Model) -> LayerProfile {
        let hyper = &model.hyper;
        LayerProfile {
            fires: vec![0; hyper.n_ff],
            size: vec![0.0; hyper.n_ff],
            input: vec![0.0; hyper.n_embd],
            routed: vec![0; hyper.experts.map_or(0, |experts| experts.n)],
            samples: Vec::new(),
            order: Vec::new(),
        }
    }

    /// For how many tokens each neuron fired.
    #[must_use]
    pub fn fires(&self) -> &[u64] {
        &self.fires
    }

    /// For how many tokens each expert was used; empty without experts.
    #[must_use]
    pub fn routed(&self) -> &[u64] {
        &self.routed
    }

    /// All neurons, the hot before the cold, those that fire together beside each other, the neurons of an expert
    /// together; empty as long as the profile is unfinished.
    #[must_use]
    pub fn order(&self) -> &[u32] {
        &self.order
    }
}

impl Profile {
    /// Nothing yet, of `n_wanted` tokens from `source`.
    #[must_use]
    pub fn new(model: &Model, source: &str, n_wanted: u64) -> Profile {
        let layers = (0..model.hyper.n_layer).map(|_| LayerProfile::new(model)).collect();
        Profile { source: source.to_owned(), n_tokens: 0, n_wanted, stride: 1, layers }
    }

    /// The same with nothing but counts: neither contributions nor inputs nor who fires together.
    #[must_use]
    pub fn counts(model: &Model, source: &str, n_wanted: u64) -> Profile {
        Profile { stride: 0, ..Profile::new(model, source, n_wanted) }
    }

    /// Where it comes from.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Tokens that were looked at.
    #[must_use]
    pub fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Tokens that shall be looked at.
    #[must_use]
    pub fn n_wanted(&self) -> u64 {
        self.n_wanted
    }

    /// Whether nothing is missing.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.n_tokens >= self.n_wanted
    }

    /// Layers in order.
    #[must_use]
    pub fn layers(&self) -> &[LayerProfile] {
        &self.layers
    }

    /// How probably each neuron of each layer fires for a token, `[n_layer][n_ff]`.
    #[must_use]
    pub fn probabilities(&self) -> Vec<Vec<f32>> {
        let all = self.n_tokens.max(1) as f64;
        let layer = |layer: &LayerProfile| {
            layer.fires.iter().map(|&fires| (fires as f64 / all) as f32).collect()
        };
        self.layers.iter().map(layer).collect()
    }

    /// How probably a token of `model` uses each neuron of each layer, `[n_layer][n_ff]`: what placement asks for. Where
    /// nothing is skipped within an expert, a neuron is used as often as its expert.
    #[must_use]
    pub fn uses(&self, model: &Model) -> Vec<Vec<f32>> {
        let Some(experts) = model.hyper.experts.filter(|_| !model.is_exactly_sparse()) else {
            return self.probabilities();
        };
        let all = self.n_tokens.max(1) as f64;
        let of_expert = |&n: &u64| std::iter::repeat_n((n as f64 / all) as f32, experts.n_ff);
        self.layers.iter().map(|layer| layer.routed.iter().flat_map(of_expert).collect()).collect()
    }

    /// Each neuron's mean contribution to a token, `[n_layer][n_ff]`; zeros where only counts are known.
    #[must_use]
    pub fn mean_contributions(&self) -> Vec<Vec<f32>> {
        let all = self.n_tokens.max(1) as f64;
        let layer =
            |layer: &LayerProfile| layer.size.iter().map(|size| (size / all) as f32).collect();
        self.layers.iter().map(layer).collect()
    }

    /// Mean squares of the values of each block's input, `[n_layer][n_embd]`; `None` where only counts are known.
    #[must_use]
    pub fn mean_squares(&self) -> Option<Vec<Vec<f32>>> {
        let all = self.n_tokens.max(1) as f64;
        let layer = |layer: &LayerProfile| {
            let mean = layer.input.iter().map(|sum| (sum / all) as f32);
            (!layer.input.is_empty()).then(|| mean.collect())
        };
        self.layers.iter().map(layer).collect()
    }
}
