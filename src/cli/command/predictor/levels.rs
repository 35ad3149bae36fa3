//! Finds the errors that `balanced` and `fast` stand for: the largest errors at which the model
//! keeps the required quality on held-out text.

use std::sync::Arc;

use super::TrainingJob;

use crate::cli::failure::Failure;
use crate::cli::progress;
use crate::engine::{Engine, EngineOptions, Sparsity};
use crate::evaluate::{self, Chunks, Comparison};
use crate::predictor::{Chooser, ERRORS, Layers, Levels, Quality};

/// Fraction of the allowed divergence that may be used, because other texts may lose more quality.
const DIVERGENCE_MARGIN: f64 = 0.6;
/// Fraction of the allowed changes of the top token that may be used.
const TOP_TOKEN_MARGIN: f64 = 0.5;

/// Maximum bytes of logits kept from the dense run. If the logits need more, the dense run is
/// repeated for each comparison.
const MAX_LOGIT_BYTES: usize = 1 << 30;

/// Number of candidate errors.
const STEPS: usize = 32;

/// Candidate error `i` of [`STEPS`]: a geometric series from the first to the last of [`ERRORS`].
fn candidate(i: usize) -> f32 {
    let [first, last] = [ERRORS[0], ERRORS[ERRORS.len() - 1]];
    let share = i as f32 / (STEPS - 1) as f32;
    // Round to four decimals.
    let error = first * (last / first).powf(share);
    (error * 1e4).round() / 1e4
}

/// The dense run, with which sparse runs are compared.
struct Reference<'a> {
    dense: &'a mut Engine,
    /// Logits of the dense run, unless they exceed [`MAX_LOGIT_BYTES`].
    logits: Option<Vec<f32>>,
}

impl TrainingJob<'_> {
    /// Finds the errors of both levels by binary search, comparing sparse runs with the dense run.
    pub(super) fn levels(
        &self,
        dense: &mut Engine,
        chunks: &Chunks,
        layers: &Layers,
    ) -> Result<Levels, Failure> {
        let n = 2 * STEPS.ilog2() as usize;
        let bar = progress::counter(self.terminal, "measuring the quality", 0..n, "runs");
        let rows = chunks.n_chunks() * chunks.n_scored();
        let size = rows * dense.model().n_vocab() * size_of::<f32>();
        let logits = if size <= MAX_LOGIT_BYTES {
            Some(evaluate::logits(dense, chunks, self.interrupt.flag())?)
        } else {
            let size = hal::Bytes(size as u64);
            self.terminal.detail(&format!(
                "the dense run's logits would take {size}: repeating the dense run for each comparison"
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
                        candidate(middle),
                        chunks,
                    )?),
                };
                bar.inc(1);
                if has_quality(&comparison, quality) { low = middle + 1 } else { high = middle }
            }
            Ok::<Option<f32>, Failure>(low.checked_sub(1).map(candidate))
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
            // If memory was too small to repack for the dense engine, it still is.
            repack: dense.options().repack,
            ..self.settings(chunks.n_ctx())
        };
        let mut engine =
            runtime::load_quietly(self.model, options, self.runtime.machine().cpu.clone())?;
        let flag = self.interrupt.flag();
        let quiet = &mut |_: usize, _: &Comparison| {};
        let comparison = match logits {
            Some(logits) => evaluate::compare_with_logits(&mut engine, logits, chunks, flag)?,
            None => evaluate::compare_with_engine(&mut engine, dense, chunks, flag, quiet)?.0,
        };
        self.terminal.detail(&format!(
            "allowed output error {error}: KL divergence {:.5}, same top token {:.2} %",
            comparison.divergence.value(),
            100.0 * comparison.same_top()
        ));
        Ok(comparison)
    }
}

fn has_quality(found: &Comparison, quality: Quality) -> bool {
    found.divergence.value() <= DIVERGENCE_MARGIN * quality.divergence
        && 1.0 - found.same_top() <= TOP_TOKEN_MARGIN * (1.0 - quality.same_top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidate_errors_ascend() {
        assert_eq!((candidate(0), candidate(STEPS - 1)), (ERRORS[0], ERRORS[ERRORS.len() - 1]));
        assert!((1..STEPS).all(|i| candidate(i) > candidate(i - 1)));
    }
}
