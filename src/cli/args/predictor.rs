//! `thermocline predictor`.

use super::{CommonArgs, ModelArgs};
use clap::Args;
use std::path::PathBuf;

/// Kinds of predictors.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PredictorKind {
    /// Low-rank factors of the gate
    LowRank,
    /// The signs of the gate weights: takes seconds and a short text
    Sign,
}

/// Flags of `predictor`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Learning")]
pub(crate) struct PredictorArgs {
    /// The training text; - is standard input; default: a built-in text
    ///
    /// Best are some hundred kilobytes of the kind of text that the model is used for.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Output file; default: beside the model, or in the user's cache
    #[arg(short, long = "out", value_name = "FILE")]
    pub(crate) outfile: Option<PathBuf>,
    /// Start again, replacing the result of an earlier run
    #[arg(long, env = "THERMOCLINE_ARG_RESTART", value_parser = super::boolish())]
    pub(crate) restart: bool,
    /// Maximum number of tokens to use
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOKENS", default_value_t = 65536)]
    #[arg(value_parser = clap::value_parser!(u32).range(1024..=1 << 24))]
    pub(crate) tokens: u32,
    /// Relative error of a feed-forward block for which ranks are chosen
    #[arg(
        long = "target",
        value_name = "ERROR",
        env = "THERMOCLINE_ARG_TARGET",
        default_value_t = 0.05
    )]
    #[arg(value_parser = crate::cli::parse::error_share)]
    pub(crate) error: f32,
    /// Kind of predictor
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_KIND", default_value = "low-rank")]
    pub(crate) kind: PredictorKind,
    /// Training steps per layer; 0 keeps the initial factors
    #[arg(long, value_name = "STEPS", env = "THERMOCLINE_ARG_TRAIN", default_value_t = 1500)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) train: u32,
    /// Rank of the predictor, a multiple of 32
    ///
    /// Default: the rank with the fewest bytes per token.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_RANK")]
    pub(crate) rank: Option<u32>,
    /// Maximum size of the predictor, as a share of the feed-forward bytes: 4%
    #[arg(long, value_name = "SHARE", env = "THERMOCLINE_ARG_MAX_SIZE", value_parser = crate::cli::parse::share)]
    pub(crate) max_size: Option<f64>,
    /// Import PowerInfer's predictor (model_0.pt, ...) from this folder
    ///
    /// It serves --sparsity predicted. With -f, its weights are quantised where that costs nothing on the text.
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_IMPORT")]
    pub(crate) import: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
