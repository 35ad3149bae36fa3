//! The data that selects a model's neurons: predictors, thresholds and their cost. The crate `learn`
//! computes and stores them, `engine` applies them.

use hal::{Bytes, HostRows};

use crate::Predictor;

/// Relative errors of a block's output for which thresholds are stored; others are interpolated.
pub const ERRORS: [f32; 12] =
    [0.003, 0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.14, 0.2, 0.3];

/// Selects the neurons of a model.
#[derive(Clone, Debug)]
pub struct Chooser {
    /// Layer by layer.
    pub layers: Layers,
    /// The errors of the named quality levels; `None` if there are no such levels.
    pub levels: Option<Levels>,
}

/// Data for each layer.
#[derive(Clone, Debug)]
pub enum Layers {
    /// Predictors, evaluated before the gate.
    Predictors(Vec<LayerPredictor>),
    /// Thresholds on the activation.
    Thresholds(Vec<LayerThresholds>),
    /// An imported predictor, trained elsewhere, without error levels.
    Imported {
        /// PowerInfer's two matrices.
        layers: Vec<Predictor>,
        /// Lowest score of an active neuron.
        threshold: f32,
    },
}

/// Relative errors of a block's output at which the whole model reaches a quality, as measured on
/// held-out text; `None` if even the smallest of [`ERRORS`] does not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Within [`Quality::BALANCED`].
    pub balanced: Option<f32>,
    /// Within [`Quality::FAST`].
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
    /// Like a quantisation to five bits: no visible difference.
    pub const BALANCED: Quality = Quality { divergence: 0.005, same_top: 0.965 };
    /// Like a quantisation to three or four bits.
    pub const FAST: Quality = Quality { divergence: 0.02, same_top: 0.94 };
}

/// A layer's predictor: neuron `n` is active if `fc2[n] . fc1 . x + bias[n]` reaches a threshold,
/// for the block's normed input `x`; without `fc1`, if `fc2[n] . x + bias[n]` does.
#[derive(Clone, Debug)]
pub struct LayerPredictor {
    /// `[rank, n_embd]`; `None` if the gate was not factored.
    pub fc1: Option<HostRows>,
    /// `[n_ff, rank]`, or `[n_ff, n_embd]`
    pub fc2: HostRows,
    /// `[n_ff]`
    pub bias: Vec<f32>,
    /// Thresholds, with cost and benefit on held-out text.
    pub curve: Curve,
    /// Whether it was trained.
    pub trained: bool,
}

/// A layer's thresholds: neuron `n` is skipped if the magnitude of its activation is below `cut /
/// weights[n]`.
#[derive(Clone, Debug)]
pub struct LayerThresholds {
    /// `[n_ff]`, above 0.
    pub weights: Vec<f32>,
    /// Cuts, with cost and benefit on held-out text.
    pub curve: Curve,
}

/// Cost and benefit of a threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evaluation {
    /// `|y - y'| / |y|`, over all tokens.
    pub error: f64,
    /// Share of all (neuron, token) pairs that are listed, that is, computed.
    pub listed: f64,
    /// Share of the contributing pairs that are listed.
    pub recall: f64,
    /// The same, weighted by the norm of each contribution.
    pub weighted_recall: f64,
}

/// For each of [`ERRORS`] the threshold, its cost and its benefit.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// `[ERRORS.len()]`, not decreasing.
    pub thresholds: Vec<f32>,
    /// `[ERRORS.len()]`
    pub verdicts: Vec<Evaluation>,
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
    /// Bytes of it that are read per token.
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
    /// Activation thresholds per neuron, for a relative output error of `target`, `[n_ff]`.
    #[must_use]
    pub fn rows(&self, target: f32) -> Vec<f32> {
        let cut = Curve::at(&self.curve.thresholds, target);
        self.weights.iter().map(|weight| cut / weight).collect()
    }
}

impl Curve {
    /// The threshold for a relative error of `target`: interpolated between two of [`ERRORS`] by
    /// the logarithm of the error, beyond them that of the nearest.
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
