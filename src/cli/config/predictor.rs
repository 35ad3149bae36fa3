//! Options of `predictor`.

use super::model::ModelOptions;
use super::text::read_file;
use crate::cli::args::{PredictorArgs, PredictorKind};
use crate::cli::failure::Failure;
use crate::predictor::{Kind, RANK_STEP, Settings};
use std::path::PathBuf;

/// `thermocline predictor`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PredictorOptions {
    /// The model.
    pub(crate) model: ModelOptions,
    /// The user's text; `None` for the built-in text, or for no text with an import.
    pub(crate) text: Option<String>,
    /// A folder with a predictor trained elsewhere.
    pub(crate) import: Option<PathBuf>,
    /// Output path; `None` for the default.
    pub(crate) out: Option<PathBuf>,
    /// Replace the result of an earlier run.
    pub(crate) restart: bool,
    /// Maximum number of tokens of the text.
    pub(crate) n_tokens: usize,
    /// Training settings.
    pub(crate) settings: Settings,
}

impl PredictorOptions {
    /// # Errors
    /// A text that cannot be read; a rank that is not a multiple of [`RANK_STEP`].
    pub(crate) fn resolve(args: &PredictorArgs) -> Result<Self, Failure> {
        let rank = args.rank.map(|rank| rank as usize);
        if let Some(rank) = rank.filter(|rank| *rank == 0 || !rank.is_multiple_of(RANK_STEP)) {
            let message = format!("--rank {rank} is not a multiple of {RANK_STEP}");
            return Err(Failure::usage(message));
        }
        Ok(Self {
            model: ModelOptions::resolve(&args.model)?,
            text: args.file.as_deref().map(read_file).transpose()?,
            import: args.import.clone(),
            out: args.outfile.clone(),
            restart: args.restart,
            n_tokens: args.tokens as usize,
            settings: Settings {
                kind: match args.kind {
                    PredictorKind::LowRank => Kind::Factors,
                    PredictorKind::Sign => Kind::Signs,
                },
                target: args.error,
                n_steps: args.train as usize,
                rank,
                max_size: args.max_size,
            },
        })
    }
}
