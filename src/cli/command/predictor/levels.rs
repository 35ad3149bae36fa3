//! The errors of `balanced` and `fast`: the largest at which the model keeps their quality,
//! measured on held-out text.

use std::sync::Arc;

use super::TrainingJob;

use crate::cli::failure::Failure;
use crate::engine::{Engine, EngineOptions, Sparsity};
use crate::evaluate::{self, Chunks, Comparison};
use crate::predictor::{Chooser, ERRORS, Layers, Levels, Quality};

/// Share of the allowed loss that is used: text that the model knows less well costs more.
const OF_DIVERGENCE: f64 = 0.6;
const OF_OTHER_TOPS: f64 = 0.5;

/// Memory for the logits of the dense run. If they need more, the dense run is repeated for each
/// comparison.
const MOST_KEPT: usize = 1 << 30;

/// Number of errors to choose from.
const STEPS: usize = 32;

/// Error `i` of [`STEPS`]: from the first to the last of [`ERRORS`], each larger by the same factor.
fn error(i: usize) -> f32 {
    let [first, last] = [ERRORS[0], ERRORS[ERRORS.len() - 1]];
    let share = i as f32 / (STEPS - 1) as f32;
    // Rounded to three digits.
    let error = first * (last / first).powf(share);
    (error * 1e4).round() / 1e4
}

/// The dense run that others are compared with.
struct Reference<'a> {
    dense: &'a mut Engine,
    /// Logits of the dense run, if they fit in memory.
    logits: Option<Vec<f32>>,
}

impl TrainingJob<'_> {
    /// Compares with the dense run at some errors.
    pub(super) fn levels(
        &self,
        dense: &mut Engine,
        chunks: &Chunks,
        layers: &Layers,
    ) -> Result<Levels, Failure> {
        let bar = self.bar("measuring", 2 * STEPS.ilog2() as usize);
        let rows = chunks.n_chunks() * chunks.n_scored();
        let size = rows * dense.model().n_vocab() * size_of::<f32>();
        let logits = if size <= MOST_KEPT {
            Some(evaluate::logits(dense, chunks, self.interrupt.flag())?)
        } else {
            let size = hal::Bytes(size as u64);
            self.terminal.detail(&format!(
                "the dense run's logits would take {size}: repeating it for each comparison"
            ));
            None
        };
        let reference = &mut Reference { dense, logits };
        let mut known: Vec<Option<Comparison>> = vec![None; STEPS];
        let mut level = |quality: Quality| {
            // Invariant: errors before `low` keep the quality, those from `high` on do not.
            let (mut low, mut high) = (0, STEPS);
            while low < high {
                let middle = low.midpoint(high);
                let comparison = match known[middle] {
                    Some(comparison) => comparison,
                    None => *known[middle].insert(self.compare(
                        reference,
                        layers,
                        error(middle),
                        chunks,
                    )?),
                };
                bar.inc(1);
                if keeps(&comparison, quality) { low = middle + 1 } else { high = middle }
            }
            Ok::<Option<f32>, Failure>(low.checked_sub(1).map(error))
        };
        let levels = Levels { balanced: level(Quality::BALANCED)?, fast: level(Quality::FAST)? };
        bar.finish_and_clear();
        Ok(levels)
    }

    fn compare(
        &self,
        Reference { dense, logits }: &mut Reference<'_>,
        layers: &Layers,
        error: f32,
        chunks: &Chunks,
    ) -> Result<Comparison, Failure> {
        let chooser = Chooser { layers: layers.clone(), levels: None };
        let options = EngineOptions {
            sparsity: Sparsity::Within(error),
            chooser: Some(Arc::new(chooser)),
            // If memory was too short once, it is again.
            repack: dense.options().repack,
            ..self.settings(chunks.n_ctx())
        };
        let mut engine =
            runtime::load_quietly(self.model, options, self.runtime.machine().cpu.clone())?;
        let flag = self.interrupt.flag();
        let quiet = &mut |_: usize, _: &Comparison| {};
        let comparison = match logits {
            Some(logits) => evaluate::against_logits(&mut engine, logits, chunks, flag)?,
            None => evaluate::against_engine(&mut engine, dense, chunks, flag, quiet)?.0,
        };
        self.terminal.detail(&format!(
            "at an error of {error}: divergence {:.5}, same top token {:.2} %",
            comparison.divergence.value(),
            100.0 * comparison.same_top()
        ));
        Ok(comparison)
    }
}

fn keeps(found: &Comparison, quality: Quality) -> bool {
    found.divergence.value() <= OF_DIVERGENCE * quality.divergence
        && 1.0 - found.same_top() <= OF_OTHER_TOPS * (1.0 - quality.same_top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_rise_from_end_to_end() {
        assert_eq!((error(0), error(STEPS - 1)), (ERRORS[0], ERRORS[ERRORS.len() - 1]));
        assert!((1..STEPS).all(|i| error(i) > error(i - 1)));
    }
}
