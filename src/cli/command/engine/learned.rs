//! What was learnt about a model's neurons, from the file beside it into the engine's settings.

use std::sync::Arc;

use crate::cli::config::model::{Computation, Sparsity};
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::engine::{self, EngineOptions};
use crate::learned::Learned;
use crate::model::Model;
use crate::predictor::{self, Chooser, Layers};

/// Stands for a level whose error the model decides.
pub(super) const UNKNOWN: f32 = 0.0;

/// The settings with what the file beside the model knows, where they ask for it.
///
/// # Errors
/// [`Exit::Failed`] where there is nothing, or nothing that fits.
pub(super) fn add(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    terminal: &Terminal,
) -> Result<EngineOptions, Failure> {
    let engine::Sparsity::Within(error) = options.sparsity else { return Ok(options) };
    let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
    let learned = Learned::find(&model.file, folder).map_err(predictor::Error::from)?;
    let chooser = match &learned {
        Some(learned) => Chooser::read(learned, model)?,
        None => None,
    };
    let Some(chooser) = chooser else {
        let message = "nothing was learnt about this model yet by which neurons could be skipped";
        let help =
            "`thermocline predictor -m MODEL -f TEXT` learns it; --sparsity exact needs nothing";
        return Err(Failure::new(Exit::Failed, message).help(help));
    };
    if options.sparse_threshold.is_some() {
        terminal
            .note("--sparse-threshold is for the file's own predictor: it changes nothing here");
    }
    let error = match computation.sparsity {
        Sparsity::Balanced => chooser.levels.balanced,
        Sparsity::Fast => chooser.levels.fast,
        Sparsity::Within(_) | Sparsity::Predicted | Sparsity::Exact | Sparsity::Off => error,
    };
    let sparsity = engine::Sparsity::Within(error);
    Ok(EngineOptions { sparsity, chooser: Some(Arc::new(chooser)), ..options })
}

/// One line on what is skipped.
pub(super) fn tell(model: &Model, options: &EngineOptions, error: f32, terminal: &Terminal) {
    match options.chooser.as_ref().map(|chooser| &chooser.layers) {
        Some(Layers::Predictors(_)) => terminal.note(&format!(
            "a learnt predictor chooses neurons in {} of {} layers, for a relative error of {error} in a block; `perplexity --against dense` measures what it costs",
            options.n_predicting(model),
            model.hyper.n_layer
        )),
        Some(Layers::Thresholds(_)) => terminal.note(&format!(
            "neurons below learnt thresholds are skipped, for a relative error of {error} in a block; `perplexity --against dense` measures what it costs"
        )),
        None => {}
    }
}
