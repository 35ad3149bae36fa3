//! Requantises imported predictors if that loses hardly any recall.

use hal::HostRows;
use hal::format::Format;

use super::Evaluation;
use super::evaluator::Evaluator;
use super::make::Block;
use super::matrix::DenseMatrix;
use super::observations::Observations;
use super::{RANK_STEP, Result};
use model::Predictor;

/// Candidate formats, the smallest first.
const FORMATS: [Format; 2] = [Format::Q4_0, Format::Q8_0];
/// Largest allowed loss of weighted recall, as a fraction.
const MAX_RECALL_LOSS: f64 = 0.002;
/// Largest allowed ratio of the lists' lengths after and before requantising.
const MAX_RATIO: f64 = 1.05;

fn evaluate(
    layer: &Predictor,
    evaluator: &Evaluator<'_>,
    seen: &Observations,
    threshold: f32,
) -> Result<Evaluation> {
    let mut hidden =
        seen.x.activations(layer.fc1.desc().format).times(&DenseMatrix::dequantize(&layer.fc1)?);
    hidden.values.iter_mut().for_each(|v| *v = v.max(0.0));
    let scores =
        hidden.activations(layer.fc2.desc().format).times(&DenseMatrix::dequantize(&layer.fc2)?);
    Ok(evaluator.by_scores(&scores, threshold))
}

/// `layer` in the smallest candidate format within `MAX_RECALL_LOSS` and `MAX_RATIO`, or
/// unchanged.
///
/// # Errors
/// [`super::Error::Read`].
pub fn requantised(
    layer: &Predictor,
    block: &Block,
    seen: &Observations,
    threshold: f32,
) -> Result<Predictor> {
    let has_blocks = |rows: &HostRows| rows.desc().n_cols.is_multiple_of(RANK_STEP);
    if !has_blocks(&layer.fc1) || !has_blocks(&layer.fc2) {
        return Ok(layer.clone());
    }
    let evaluator = Evaluator::new(seen, &block.down);
    let before = evaluate(layer, &evaluator, seen, threshold)?;
    for format in FORMATS {
        let is_smaller = |rows: &HostRows| {
            format.row_bytes(rows.desc().n_cols).is_some_and(|bytes| bytes < rows.row_bytes())
        };
        if !is_smaller(&layer.fc1) || !is_smaller(&layer.fc2) {
            continue;
        }
        let requantize = |rows: &HostRows| {
            Ok::<_, super::Error>(DenseMatrix::dequantize(rows)?.quantized(format))
        };
        let candidate = Predictor { fc1: requantize(&layer.fc1)?, fc2: requantize(&layer.fc2)? };
        let after = evaluate(&candidate, &evaluator, seen, threshold)?;
        let keeps_recall = after.weighted_recall >= before.weighted_recall - MAX_RECALL_LOSS;
        if keeps_recall && after.listed <= before.listed * MAX_RATIO {
            return Ok(candidate);
        }
    }
    Ok(layer.clone())
}
