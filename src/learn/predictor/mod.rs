//! Makes predictors and thresholds of a model's active neurons from a text, and stores them in the
//! side file.
//!
//! The activation function decides between the two. If it has exact zeros, a *predictor* finds most
//! active neurons in advance: it consists of low-rank factors of the gate (`factor`) or the gate's
//! signs and a threshold per neuron (`scale`), and is trained if that helps (`train`). Otherwise
//! *thresholds* on the computed activation, weighted by the neuron's row of down, skip neurons with
//! small contributions. Both have one parameter, the relative error of a block's output
//! (`evaluator`): thresholds are stored for some errors, and interpolated for others.
//!
//! The caller runs the model over the text and passes the observations, [`Observations`]; `engine`
//! skips neurons.
//!
//! Source: SVDP and SVD-LLM for the factors; SparseInfer (Shin et al. 2024) for the signs; CATS
//! (Lee et al.), CHESS (He et al.) and WINA for the thresholds.

mod error;
mod evaluator;
mod factor;
mod import;
mod make;
mod matrix;
mod observations;
mod scale;
mod store;
mod train;

pub use error::{Error, Result};
pub use import::requantised;
pub use make::{
    Block, PredictorKind, RANK_STEP, Settings, SplitObservations, Stage, predictor, thresholds,
};
pub use model::chooser::{
    Chooser, Curve, ERRORS, Evaluation, LayerPredictor, LayerThresholds, Layers, Levels, Quality,
};
pub use observations::{Contribution, Observations};
pub use store::{PredictorRun, is_of_first_use, read, section};
