//! Data that selects the neurons to compute: predictors or thresholds, with their measured cost.
//! The crate `learn` computes and stores the data; the crate `engine` applies it.

use hal::{Bytes, HostRows};

use crate::Predictor;

/// Relative errors of a block's output for which thresholds are stored. Thresholds for other errors
/// are interpolated.
pub const ERRORS: [f32; 12] =
    [0.003, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3];

/// Selects the neurons that are computed, in every layer of a model.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// Predictors or thresholds of each layer.
    pub layers: Layers,
    /// Relative errors for the named quality levels; `None` if no errors were measured.
    pub levels: Option<Levels>,
}

/// Predictors or thresholds, one entry per layer.
#[derive(Clone, Debug)]
pub enum Layers {
    /// Predictors from low-rank factors or signs of the gate, evaluated before the gate.
    Predictors(Vec<LayerPredictor>),
    /// Thresholds on the magnitude of the activation.
    Thresholds(Vec<LayerThresholds>),
    /// A predictor imported from PowerInfer: one threshold, no quality levels.
    Imported {
        /// `fc1` and `fc2` of each layer.
        layers: Vec<Predictor>,
        /// Lowest score of an active neuron.
        threshold: f32,
    },
}

/// Relative error of a block's output at which the whole model reaches each quality, as measured on
/// held-out text. `None` if the quality is missed even at the smallest of [`ERRORS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Error for [`Quality::BALANCED`].
    pub balanced: Option<f32>,
    /// Error for [`Quality::FAST`].
    pub fast: Option<f32>,
}

/// Allowed deviation of a model's predictions from those of the dense run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Largest mean Kullback-Leibler divergence.
    pub divergence: f64,
    /// Smallest share of positions with the same most likely token.
    pub same_top: f64,
}

impl Quality {
    /// Comparable to 5-bit quantisation: no visible difference.
    pub const BALANCED: Quality = Quality { divergence: 0.005, same_top: 0.965 };
    /// Comparable to 3- or 4-bit quantisation.
    pub const FAST: Quality = Quality { divergence: 0.02, same_top: 0.94 };
}

/// A layer's predictor. Neuron `n` counts as active if its score reaches a threshold. The score is
/// `fc2[n] . fc1 . x + bias[n]`, or `fc2[n] . x + bias[n]` without `fc1`; `x` is the block's normed
/// input.
#[derive(Clone, Debug)]
pub struct LayerPredictor {
    /// `[rank, n_embd]`; `None` if `fc2` is not factored.
    pub fc1: Option<HostRows>,
    /// `[n_ff, rank]`; `[n_ff, n_embd]` without `fc1`.
    pub fc2: HostRows,
    /// `[n_ff]`, added to the scores.
    pub bias: Vec<f32>,
    /// Score thresholds, evaluated on held-out text.
    pub curve: Curve,
    /// Whether the predictor was trained, not only derived from the gate.
    pub trained: bool,
}

/// A layer's thresholds: neuron `n` is skipped if the magnitude of its activation is below `cut /
/// weights[n]`.
#[derive(Clone, Debug)]
pub struct LayerThresholds {
    /// `[n_ff]`, all positive.
    pub weights: Vec<f32>,
    /// Values of `cut`, evaluated on held-out text.
    pub curve: Curve,
}

/// Error and recall at one threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// Relative error of the block's output `y'` over all tokens: `|y - y'| / |y|`.
    pub error: f64,
    /// Share of all (neuron, token) pairs that are computed.
    pub listed: f64,
    /// Share of the (neuron, token) pairs with a contribution that are computed.
    pub recall: f64,
    /// As `recall`, with each pair weighted by the norm of its contribution.
    pub weighted_recall: f64,
}

/// The threshold for each of [`ERRORS`], and its evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// `[ERRORS.len()]`, never decreasing.
    pub thresholds: Vec<f32>,
    /// `[ERRORS.len()]`: the evaluation of each threshold.
    pub evaluations: Vec<Evaluation>,
}

impl Layers {
    /// Number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Layers::Predictors(layers) => layers.len(),
            Layers::Thresholds(layers) => layers.len(),
            Layers::Imported { layers, .. } => layers.len(),
        }
    }

    /// Whether there are no layers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl LayerPredictor {
    /// Bytes of the predictor that are read per token.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        let size = |rows: &HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
        Bytes(self.fc1.as_ref().map_or(0, size) + size(&self.fc2) + 4 * self.bias.len() as u64)
    }

    /// Lowest score of an active neuron, for a relative output error of `target`.
    #[must_use]
    pub fn threshold(&self, target: f32) -> f32 {
        Curve::at(&self.curve.thresholds, target)
    }
}

impl LayerThresholds {
    /// `[n_ff]`: the activation threshold of each neuron, for a relative output error of `target`.
    #[must_use]
    pub fn rows(&self, target: f32) -> Vec<f32> {
        let cut = Curve::at(&self.curve.thresholds, target);
        self.weights.iter().map(|weight| cut / weight).collect()
    }
}

impl Curve {
    /// The threshold for a relative error of `target`, interpolated between two of [`ERRORS`]
    /// linearly in the logarithm of the error. A `target` outside of [`ERRORS`] gets the threshold
    /// of the nearest entry.
    #[must_use]
    pub fn at(thresholds: &[f32], target: f32) -> f32 {
        let above = ERRORS.iter().position(|&error| error >= target).unwrap_or(ERRORS.len() - 1);
        let [below, above] = [above.saturating_sub(1), above];
        if target <= ERRORS[below] || below == above {
            return thresholds[below];
        }
        let span = (ERRORS[above] / ERRORS[below]).ln();
        let share = ((target / ERRORS[below]).ln() / span).min(1.0);
        thresholds[below] + share * (thresholds[above] - thresholds[below])
    }
}
