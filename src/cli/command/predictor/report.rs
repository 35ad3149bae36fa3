//! The result of a training run, as a table.

use crate::model::{Ffn, Model};
use crate::predictor::{self, Chooser, Layers, Levels};

/// A table of the layers, at the smallest recorded error that is not below `target`, and the errors
/// of the quality levels.
pub(super) fn text(model: &Model, chooser: Option<&Chooser>, target: f32) -> String {
    let at = predictor::ERRORS.iter().position(|error| *error >= target);
    let at = at.unwrap_or(predictor::ERRORS.len() - 1);
    let mut text = String::new();
    match chooser.map(|chooser| &chooser.layers) {
        None => {}
        Some(Layers::Predictors(layers)) => {
            text += "layer  rank  type         bytes  of FFN  trained  chosen  recall  weighted     error\n";
            for (i, layer) in layers.iter().enumerate() {
                let verdict = &layer.curve.evaluations[at];
                let types = match &layer.fc1 {
                    Some(fc1) if fc1.desc().format != layer.fc2.desc().format => {
                        format!("{} {}", fc1.desc().format.name(), layer.fc2.desc().format.name())
                    }
                    Some(_) | None => layer.fc2.desc().format.name().to_owned(),
                };
                let size = |rows: &hal::HostRows| (rows.desc().n_rows * rows.row_bytes()) as u64;
                let matrices = model.layers[i].ffn.iter().flat_map(Ffn::matrices);
                let all: u64 = matrices.map(|(_, rows)| size(rows)).sum();
                text += &format!(
                    "{i:5}  {:>4}  {:9}  {:>8}  {:4.1} %  {:7}  {:4.1} %  {:.4}  {:8.4}  {:8.3}\n",
                    layer.fc1.as_ref().map_or("-".to_owned(), |fc1| fc1.desc().n_rows.to_string()),
                    types,
                    layer.bytes().0,
                    100.0 * layer.bytes().0 as f64 / all.max(1) as f64,
                    if layer.trained { "yes" } else { "no" },
                    100.0 * verdict.listed,
                    verdict.recall,
                    verdict.weighted_recall,
                    verdict.error,
                );
            }
        }
        Some(Layers::Imported { layers, threshold }) => {
            text += "layer  rank  fc1    fc2    bytes\n";
            for (i, layer) in layers.iter().enumerate() {
                let size = |rows: &hal::HostRows| rows.desc().n_rows * rows.row_bytes();
                text += &format!(
                    "{i:5}  {:4}  {:5}  {:5}  {}\n",
                    layer.fc1.desc().n_rows,
                    layer.fc1.desc().format.name(),
                    layer.fc2.desc().format.name(),
                    size(&layer.fc1) + size(&layer.fc2),
                );
            }
            text += &format!("a neuron counts as active if its score is at least {threshold}\n");
        }
        Some(Layers::Thresholds(layers)) => {
            text += "layer  chosen   error\n";
            for (i, layer) in layers.iter().enumerate() {
                let verdict = &layer.curve.evaluations[at];
                text +=
                    &format!("{i:5}  {:4.1} %  {:6.3}\n", 100.0 * verdict.listed, verdict.error);
            }
        }
    }
    if let Some(Levels { balanced, fast }) = chooser.and_then(|chooser| chooser.levels) {
        for (word, error) in [("balanced", balanced), ("fast", fast)] {
            text += &match error {
                Some(error) => format!("{word} means a relative error of {error}\n"),
                None => format!(
                    "{word} is not available: even a relative error of {} loses more quality than it allows\n",
                    predictor::ERRORS[0]
                ),
            };
        }
    }
    text
}
