//! Imports PowerInfer's predictors.

use std::path::Path;

use super::TrainingJob;
use crate::cli::failure::{Exit, Failure};
use crate::convert;
use crate::model::Predictor;
use crate::predictor::{self, PredictorRun};
use crate::tokenizer::Tokenizer;

/// Tokens on which a quantised predictor is evaluated.
const TOKENS: usize = 4096;

impl TrainingJob<'_> {
    /// Imports PowerInfer's predictor from `folder`. With a text, quantises the predictor if it
    /// still finds as many active neurons.
    pub(super) fn import(
        &self,
        folder: &Path,
        out: &Path,
        tokenizer: &Tokenizer,
    ) -> Result<(), Failure> {
        if !self.model.is_exactly_sparse() {
            let message = "cannot import a predictor: the model's activation has no exact zeros";
            return Err(Failure::new(Exit::BadModel, message));
        }
        let found = convert::predictors(folder, self.model.hyper.n_embd, &self.model.neurons())?;
        found.notes.iter().for_each(|note| self.terminal.note(note));
        let threshold = found.threshold.unwrap_or_default();
        let layers = found.layers.into_iter();
        let mut layers: Vec<Predictor> = layers.map(|[fc1, fc2]| Predictor { fc1, fc2 }).collect();
        if let Some(text) = self.text.text {
            let windows = self.windows(text, tokenizer, TOKENS)?;
            let mut engine = self.dense(windows.n_ctx())?;
            for (i, layer) in layers.iter_mut().enumerate() {
                let seen = self.read(&mut engine, &windows, i..i + 1, |o| o.residual)?;
                let block = self.block(i)?;
                for [seen, _] in &seen {
                    *layer = self.interrupt.exit_during(
                        || {},
                        || predictor::requantised(layer, &block, seen, threshold),
                    )?;
                }
            }
        }
        let mut maker = PredictorRun::new(
            self.model,
            out,
            "imported",
            self.args.restart,
            self.interrupt.flag(),
        )?;
        maker.import(layers, threshold)?;
        Ok(())
    }
}
