//! `thermocline predictor`.

use super::choice::{Choice, choice, one_of};
use super::{CommonArgs, ModelArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::parse;
use crate::cli::texts::read_file;
use crate::predictor::{PredictorKind as Kind, RANK_STEP, Settings};
use clap::Args;
use clap::builder::TypedValueParser;
use std::path::PathBuf;

/// Flags of `predictor`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Training")]
pub(crate) struct PredictorArgs {
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Training text, settings and output file.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrainingArgs {
    /// File with the training text; - is standard input; default: a built-in text
    ///
    /// Works best with a few hundred kilobytes of the kind of text that the model is used for.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Output file; default: beside the model, or in the user's cache
    #[arg(short, long = "out", value_name = "FILE")]
    pub(crate) outfile: Option<PathBuf>,
    /// Start over and replace the result of an earlier run
    #[arg(long, env = "THERMOCLINE_ARG_RESTART", value_parser = boolish())]
    pub(crate) restart: bool,
    /// Maximum number of tokens to use
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOKENS", default_value = "65536")]
    #[arg(value_parser = whole::<u32>(1024..=1 << 24).map(|n| n as usize))]
    pub(crate) tokens: usize,
    /// Target for the relative error of each feed-forward block; sets the ranks
    #[arg(
        long = "target",
        value_name = "ERROR",
        env = "THERMOCLINE_ARG_TARGET",
        default_value_t = 0.05
    )]
    #[arg(value_parser = parse::error_share)]
    pub(crate) error: f32,
    /// Kind of predictor
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_KIND", default_value = "low-rank")]
    #[arg(value_parser = one_of(&KINDS))]
    pub(crate) kind: Kind,
    /// Training steps per layer; 0 keeps the initial factors
    #[arg(long, value_name = "STEPS", env = "THERMOCLINE_ARG_TRAIN", default_value = "1500")]
    #[arg(value_parser = whole::<u32>(0..=1_000_000).map(|n| n as usize))]
    pub(crate) train: usize,
    /// Rank of the predictor, a multiple of 32
    ///
    /// Default: the rank with the fewest bytes per token.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_RANK")]
    #[arg(value_parser = whole::<u32>(0..).try_map(rank))]
    pub(crate) rank: Option<usize>,
    /// Maximum predictor size, as a percentage of the feed-forward bytes: 4%
    #[arg(long, value_name = "SHARE", env = "THERMOCLINE_ARG_MAX_SIZE", value_parser = parse::share)]
    pub(crate) max_size: Option<f64>,
    /// Import PowerInfer's predictor (model_0.pt, ...) from this folder
    ///
    /// --sparsity predicted uses it. With -f, its weights are quantised if the predictor still
    /// finds as many active neurons on the text.
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_IMPORT")]
    pub(crate) import: Option<PathBuf>,
}

static KINDS: [Choice<Kind>; 2] = [
    choice("low-rank", "Low-rank factors of the gate", Kind::Factors),
    choice("sign", "Signs of the gate weights; made in seconds from a short text", Kind::Signs),
];

fn rank(rank: u32) -> Result<usize, Failure> {
    let rank = rank as usize;
    if rank == 0 || !rank.is_multiple_of(RANK_STEP) {
        let message = format!("--rank {rank} is not a positive multiple of {RANK_STEP}");
        return Err(Failure::usage(message));
    }
    Ok(rank)
}

impl TrainingArgs {
    /// The user's text. `None` selects the built-in text, or no text with --import.
    ///
    /// # Errors
    /// A text that cannot be read.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        self.file.as_deref().map(read_file).transpose()
    }

    pub(crate) fn settings(&self) -> Settings {
        Settings {
            kind: self.kind,
            target: self.error,
            n_steps: self.train,
            rank: self.rank,
            max_size: self.max_size,
        }
    }
}
