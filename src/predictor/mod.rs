//! What chooses a model's neurons before or soon after their gate is known: making it of a text, and keeping it in the
//! file of what is learned about the model.
//!
//! Two kinds, for two kinds of models. Where the activation has exact zeros, a *predictor* tells most active neurons
//! ahead: low-rank factors of the gate (`factor`) or the gate's signs, lines that each neuron has for itself (`scale`),
//! training if it helps (`train`). Elsewhere *thresholds* on the computed activation, weighed by what a neuron's row of down does
//! with it, drop what counts little. Both have one knob, the relative error of a block's output (`judge`): a threshold
//! is kept for each of some errors, and lies between them for others.
//!
//! Not here: running the model over a text (the caller shows what was [`Seen`]), and skipping (`engine`).
//!
//! Source: SVDP and SVD-LLM for the factors; SparseInfer (Shin et al. 2024) for the signs; CATS (Lee et al.), CHESS (He et al.) and WINA for the thresholds.

mod error;
mod factor;
mod import;
mod judge;
mod make;
mod matrix;
mod scale;
mod seen;
mod store;
mod train;

pub use error::{Error, Result};
pub use import::requantised;
pub use judge::{Curve, ERRORS, Verdict};
pub use make::{Block, Kind, RANK_STEP, Settings, Stage, Texts, predictor, thresholds};
pub use seen::{Part, Seen};
pub use store::Maker;

use hal::HostRows;

/// What chooses the neurons of a model.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// Layer by layer.
    pub layers: Layers,
    /// Which errors the words of the knob stand for; `None` where there is no such knob.
    pub levels: Option<Levels>,
}

/// What chooses the neurons of each layer.
#[derive(Clone, Debug)]
pub enum Layers {
    /// Ahead, by a predictor.
    Predictors(Vec<LayerPredictor>),
    /// By the activation.
    Thresholds(Vec<LayerThresholds>),
    /// Ahead, by a predictor that others have trained, which knows no errors.
    Imported {
        /// PowerInfer's mathematics.
        layers: Vec<crate::model::Predictor>,
        /// The least score that is wanted.
        threshold: f32,
    },
}

/// Relative errors of a block's output at which the whole model keeps to a quality, as measured on text that was held
/// out; `None` where even the least of [`ERRORS`] does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Within [`Quality::BALANCED`].
    pub balanced: Option<f32>,
    /// Within [`Quality::FAST`].
    pub fast: Option<f32>,
}

/// How far a model's predictions may be from those of the dense run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Mean Kullback-Leibler divergence, at most.
    pub divergence: f64,
    /// Share of positions with the same most likely token, at least.
    pub same_top: f64,
}

impl Quality {
    /// What a quantisation to five bits costs: nobody will see a difference.
    pub const BALANCED: Quality = Quality { divergence: 0.005, same_top: 0.965 };
    /// What one to three or four bits costs.
    pub const FAST: Quality = Quality { divergence: 0.02, same_top: 0.94 };
}

/// A layer's predictor: neuron `n` is wanted where `fc2[n] . fc1 . x + bias[n]` reaches a threshold, for the block's
/// normed input `x`; without `fc1`, where `fc2[n] . x + bias[n]` does.
#[derive(Clone, Debug)]
pub struct LayerPredictor {
    /// `[rank, n_embd]`; `None` where the gate was not factored.
    pub fc1: Option<HostRows>,
    /// `[n_ff, rank]`, or `[n_ff, n_embd]`
    pub fc2: HostRows,
    /// `[n_ff]`
    pub bias: Vec<f32>,
    /// Thresholds, and what they cost and save on text that was held out.
    pub curve: Curve,
    /// Whether training made it what it is.
    pub trained: bool,
}

/// A layer's thresholds: neuron `n` is dropped where the magnitude of its activation is below `cut / weights[n]`.
#[derive(Clone, Debug)]
pub struct LayerThresholds {
    /// `[n_ff]`, above 0.
    pub weights: Vec<f32>,
    /// Cuts, and what they cost and save on text that was held out.
    pub curve: Curve,
}

impl Layers {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Layers::Predictors(layers) => layers.len(),
            Layers::Thresholds(layers) => layers.len(),
            Layers::Imported { layers, .. } => layers.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LayerPredictor {
    /// The least score that is wanted where the block's output may be off by `target` of its size.
    #[must_use]
    pub fn threshold(&self, target: f32) -> f32 {
        Curve::at(&self.curve.thresholds, target)
    }
}

impl LayerThresholds {
    /// What each neuron's activation must reach where the block's output may be off by `target` of its size, `[n_ff]`.
    #[must_use]
    pub fn rows(&self, target: f32) -> Vec<f32> {
        let cut = Curve::at(&self.curve.thresholds, target);
        self.weights.iter().map(|weight| cut / weight).collect()
    }
}
