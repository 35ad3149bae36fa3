//! Applies the predictor or thresholds of a model's side file to the engine's settings.

use std::sync::Arc;

use engine::EngineOptions;
use learn::learned::SideFile;
use learn::predictor;
use model::Model;
use model::chooser::{Chooser, Layers};

use crate::notice::{Notice, Observer, SparsityNotice};
use crate::options::{Computation, Sparsity};
use crate::{Error, Result};

/// The settings with the side file's predictor or thresholds, if their sparsity needs them.
///
/// # Errors
/// [`Error::NoPredictor`], [`Error::NoLevels`], [`Error::LevelNotReached`], [`Error::Predictor`].
pub(crate) fn add(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    observer: &dyn Observer,
) -> Result<EngineOptions> {
    let error = match options.sparsity {
        engine::Sparsity::Within(error) => error,
        engine::Sparsity::Predicted => return Ok(imported(model, options, computation, observer)),
        engine::Sparsity::Exact | engine::Sparsity::Off => return Ok(options),
    };
    let chooser = read(model, computation)?.ok_or(Error::NoPredictor)?;
    let levels = chooser.levels.ok_or(Error::NoLevels)?;
    if options.sparse_threshold.is_some() {
        let ignored = SparsityNotice::ThresholdIgnored { other_predictor: true };
        observer.notice(&Notice::Sparsity(ignored));
    }
    let (level, error) = match computation.sparsity {
        Sparsity::Balanced => ("balanced", levels.balanced),
        Sparsity::Fast => ("fast", levels.fast),
        Sparsity::Within(_) | Sparsity::Predicted | Sparsity::Exact | Sparsity::Off => {
            ("", Some(error))
        }
    };
    let error = error.ok_or(Error::LevelNotReached { level })?;
    let sparsity = engine::Sparsity::Within(error);
    Ok(EngineOptions { sparsity, chooser: Some(Arc::new(chooser)), ..options })
}

/// Whether the model has a complete predictor or complete thresholds.
///
/// # Errors
/// A damaged or unsuitable side file; or an unfinished predictor, unless its training began at the
/// model's first use.
pub fn has_predictor(model: &Model, computation: &Computation) -> predictor::Result<bool> {
    let Some(learned) = find(model, computation)? else { return Ok(false) };
    match predictor::read(&learned, model) {
        Ok(found) => Ok(found.is_some()),
        Err(predictor::Error::Unfinished { .. })
            if predictor::is_of_first_use(&learned, model)? =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

fn find(model: &Model, computation: &Computation) -> predictor::Result<Option<SideFile>> {
    Ok(SideFile::find(&model.file, computation.folder(), predictor::section(model))?)
}

fn read(model: &Model, computation: &Computation) -> predictor::Result<Option<Chooser>> {
    Ok(match find(model, computation)? {
        Some(learned) => predictor::read(&learned, model)?,
        None => None,
    })
}

/// The settings with the imported predictor of the model, if it has one. No option asks for this
/// predictor, so problems with its file are only notices.
fn imported(
    model: &Model,
    options: EngineOptions,
    computation: &Computation,
    observer: &dyn Observer,
) -> EngineOptions {
    let chooser = match read(model, computation) {
        Ok(chooser) => chooser,
        Err(error) => {
            observer.notice(&Notice::PredictorRefused { reason: error.to_string() });
            None
        }
    };
    let is_imported = |chooser: &Chooser| matches!(chooser.layers, Layers::Imported { .. });
    let chooser = chooser.filter(is_imported).map(Arc::new);
    EngineOptions { chooser, ..options }
}

/// The notice about the side file's predictor or thresholds, for a relative `error` of a block's
/// output. `None` if the engine uses neither, or an imported predictor.
pub(crate) fn sparsity_notice(
    model: &Model,
    options: &EngineOptions,
    error: f32,
) -> Option<SparsityNotice> {
    match &options.chooser.as_ref()?.layers {
        Layers::Predictors(_) => Some(SparsityNotice::TrainedPredictor {
            n_layers: options.n_predicting(model),
            n_layer: model.hyper.n_layer,
            error,
        }),
        Layers::Thresholds(_) => Some(SparsityNotice::Thresholds { error }),
        Layers::Imported { .. } => None,
    }
}

/// Minimum score of the imported predictor, which replaces the predictor of the model file; `None`
/// if none was imported.
pub(crate) fn imported_threshold(options: &EngineOptions) -> Option<f32> {
    match &options.chooser.as_ref()?.layers {
        Layers::Imported { threshold, .. } => Some(*threshold),
        Layers::Predictors(_) | Layers::Thresholds(_) => None,
    }
}
