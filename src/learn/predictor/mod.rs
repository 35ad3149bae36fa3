//! Selects a model's active neurons before or soon after their gate is known: makes predictors and
//! thresholds from a text, and stores them in the side file.
//!
//! Two kinds, for two kinds of models. If the activation has exact zeros, a *predictor* finds most
//! active neurons in advance: low-rank factors of the gate (`factor`) or the gate's signs, a
//! threshold per neuron (`scale`), training if it helps (`train`). Otherwise *thresholds* on the
//! computed activation, weighted by the neuron's row of down, skip neurons with small
//! contributions. Both have one parameter, the relative error of a block's output (`judge`):
//! thresholds are stored for some errors, and interpolated for others.
//!
//! Not here: running the model over a text (the caller passes the observations, [`Seen`]), and
//! skipping (`engine`).
//!
//! Source: SVDP and SVD-LLM for the factors; SparseInfer (Shin et al. 2024) for the signs; CATS
//! (Lee et al.), CHESS (He et al.) and WINA for the thresholds.

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
pub use make::{Block, PredictorKind, RANK_STEP, Settings, Stage, Texts, predictor, thresholds};
pub use model::chooser::{
    Chooser, Curve, ERRORS, Evaluation, LayerPredictor, LayerThresholds, Layers, Levels, Quality,
};
pub use seen::{Contribution, Seen};
pub use store::{Maker, is_of_first_use, read, section};
