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
pub(crate) fn add(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    terminal: &Terminal,
) -> Result<EngineOptions, Failure> {
    let error = match options.sparsity {
        engine::Sparsity::Within(error) => error,
        engine::Sparsity::Predicted => return imported(model, options, computation, terminal),
        engine::Sparsity::Exact | engine::Sparsity::Off => return Ok(options),
    };
    let Some(chooser) = read(model, computation)? else {
        let message = "nothing was learnt about this model yet by which neurons could be skipped";
        let help =
            "`thermocline predictor -m MODEL -f TEXT` learns it; --sparsity exact needs nothing";
        return Err(Failure::new(Exit::Failed, message).help(help));
    };
    let Some(levels) = chooser.levels else {
        let message = "the predictor of this model was imported, and nobody knows its errors";
        let help = "--sparsity predicted uses it; `thermocline predictor` without --import makes one with a knob";
        return Err(Failure::new(Exit::Failed, message).help(help));
    };
    if options.sparse_threshold.is_some() {
        terminal
            .note("--sparse-threshold is for the file's own predictor: it changes nothing here");
    }
    let (word, error) = match computation.sparsity {
        Sparsity::Balanced => ("balanced", levels.balanced),
        Sparsity::Fast => ("fast", levels.fast),
        Sparsity::Within(_) | Sparsity::Predicted | Sparsity::Exact | Sparsity::Off => {
            ("", Some(error))
        }
    };
    let Some(error) = error else {
        let message =
            format!("what was learnt about this model never reached the quality of `{word}`");
        let help = "--sparsity exact loses nothing; a number takes an error, whatever the quality";
        return Err(Failure::new(Exit::Failed, message).help(help));
    };
    let sparsity = engine::Sparsity::Within(error);
    Ok(EngineOptions { sparsity, chooser: Some(Arc::new(chooser)), ..options })
}

/// Whether there is anything by which neurons can be skipped, finished.
///
/// # Errors
/// What is wrong with what there is.
pub(crate) fn is_learnt(model: &Model, computation: &Computation) -> predictor::Result<bool> {
    let Some(learned) = find(model, computation)? else { return Ok(false) };
    match Chooser::read(&learned, model) {
        Ok(found) => Ok(found.is_some()),
        Err(predictor::Error::Unfinished { .. }) if Chooser::is_of_first_use(&learned, model)? => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn find(model: &Model, computation: &Computation) -> predictor::Result<Option<Learned>> {
    let folder = computation.folder.as_ref().map(|folder| folder.path.as_path());
    Ok(Learned::find(&model.file, folder, Chooser::section(model))?)
}

fn read(model: &Model, computation: &Computation) -> Result<Option<Chooser>, Failure> {
    Ok(match find(model, computation)? {
        Some(learned) => Chooser::read(&learned, model)?,
        None => None,
    })
}

/// The settings with the predictor that was imported for the model, if there is one. Nobody asked for what else may be
/// wrong with the file, so that is a note.
fn imported(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    terminal: &Terminal,
) -> Result<EngineOptions, Failure> {
    let chooser = match read(model, computation) {
        Ok(chooser) => chooser,
        Err(failure) => {
            terminal.note(&format!("what was learnt about this model is not used: {failure}"));
            None
        }
    };
    let is_imported = |chooser: &Chooser| matches!(chooser.layers, Layers::Imported { .. });
    let chooser = chooser.filter(is_imported).map(Arc::new);
    Ok(EngineOptions { chooser, ..options })
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
        Some(Layers::Imported { .. }) | None => {}
    }
}

/// Whose predictor `--sparsity predicted` uses, and the least score that it wants.
pub(super) fn predictor_in_use(model: &Model, options: &EngineOptions) -> (&'static str, f32) {
    match options.chooser.as_ref().map(|chooser| &chooser.layers) {
        Some(Layers::Imported { threshold, .. }) => ("an imported", *threshold),
        Some(Layers::Predictors(_) | Layers::Thresholds(_)) | None => {
            ("the file's", model.predictor_threshold)
        }
    }
}
