//! Which errors `balanced` and `fast` stand for: the largest at which the model keeps to their quality, measured on the
//! text that was held out.

use std::sync::Arc;

use super::Learner;
use crate::cli::command::engine;
use crate::cli::failure::Failure;
use crate::engine::{Engine, EngineOptions, Sparsity};
use crate::evaluate::{self, Chunks, Comparison};
use crate::predictor::{Chooser, ERRORS, Layers, Levels, Quality};

/// The part of what a quality allows that is used: another text may cost more.
const MARGIN: f64 = 0.8;

impl Learner<'_> {
    /// Compares with the dense run at some of [`ERRORS`].
    pub(super) fn levels(&self, dense: &mut Engine, layers: &Layers) -> Result<Levels, Failure> {
        let chunks = self.windows.held()?;
        let bar = self.bar("measuring", 2 * ERRORS.len().ilog2() as usize);
        let mut known: Vec<Option<Comparison>> = vec![None; ERRORS.len()];
        let mut level = |quality: Quality| {
            // All before `low` keep to it, as far as is known; none from `high` on does.
            let (mut low, mut high) = (0, ERRORS.len());
            while low < high {
                let middle = low.midpoint(high);
                let comparison = match known[middle] {
                    Some(comparison) => comparison,
                    None => *known[middle].insert(self.compare(dense, layers, middle, &chunks)?),
                };
                bar.inc(1);
                match keeps(&comparison, quality) {
                    true => low = middle + 1,
                    false => high = middle,
                }
            }
            Ok::<f32, Failure>(ERRORS[low.saturating_sub(1)])
        };
        let levels = Levels { balanced: level(Quality::BALANCED)?, fast: level(Quality::FAST)? };
        bar.finish_and_clear();
        Ok(levels)
    }

    fn compare(
        &self,
        dense: &mut Engine,
        layers: &Layers,
        error: usize,
        chunks: &Chunks,
    ) -> Result<Comparison, Failure> {
        let levels = Levels { balanced: ERRORS[error], fast: ERRORS[error] };
        let chooser = Chooser { layers: layers.clone(), levels };
        let options = EngineOptions {
            sparsity: Sparsity::Within(ERRORS[error]),
            chooser: Some(Arc::new(chooser)),
            ..self.settings()
        };
        let mut engine = engine::quietly(self.model, options, self.cpu.clone())?;
        let flag = self.interrupt.flag();
        let quiet = &mut |_: usize, _: &Comparison| {};
        let (comparison, _) = evaluate::against_engine(&mut engine, dense, chunks, flag, quiet)?;
        self.terminal.detail(&format!(
            "at an error of {}: divergence {:.5}, same top token {:.2} %",
            ERRORS[error],
            comparison.divergence.value(),
            100.0 * comparison.same_top()
        ));
        Ok(comparison)
    }
}

fn keeps(found: &Comparison, quality: Quality) -> bool {
    found.divergence.value() <= MARGIN * quality.divergence
        && 1.0 - found.same_top() <= MARGIN * (1.0 - quality.same_top)
}
