//! `thermocline predictor`.

use super::{CommonArgs, ModelArgs};
use clap::Args;
use std::path::PathBuf;

/// What predictors are made of.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
pub(crate) enum PredictorKind {
    /// Low-rank factors of the gate
    LowRank,
    /// The gate with one bit for each weight: made in seconds, of a short text
    Sign,
}

/// Learn from a text which neurons can be skipped, for --sparsity balanced, fast or a number: a predictor where the
/// activation has exact zeros, thresholds elsewhere. An interrupted run goes on when it is started again.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Learning")]
pub(crate) struct PredictorArgs {
    /// The text to learn from; - is standard input; without it one that comes with the program. Some hundred kilobytes of
    /// what the model is used for are best
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Where the result goes; without it beside the model, or into a folder of the user's cache
    #[arg(short, long = "out", value_name = "FILE")]
    pub(crate) outfile: Option<PathBuf>,
    /// Begin anew, in place of what an earlier run with another text or other settings left
    #[arg(long, env = "THERMOCLINE_ARG_RESTART", value_parser = super::boolish())]
    pub(crate) restart: bool,
    /// Tokens of the text to read, at most
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOKENS", default_value_t = 65536)]
    #[arg(value_parser = clap::value_parser!(u32).range(1024..=1 << 24))]
    pub(crate) tokens: u32,
    /// Relative error of a feed-forward block's output for which ranks are chosen
    #[arg(
        long = "target",
        value_name = "ERROR",
        env = "THERMOCLINE_ARG_TARGET",
        default_value_t = 0.05
    )]
    #[arg(value_parser = crate::cli::parse::error_share)]
    pub(crate) error: f32,
    /// What a predictor is made of
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_KIND", default_value = "low-rank")]
    pub(crate) kind: PredictorKind,
    /// Steps of training for each layer; 0 leaves the factors as they are
    #[arg(long, value_name = "STEPS", env = "THERMOCLINE_ARG_TRAIN", default_value_t = 1500)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub(crate) train: u32,
    /// Rank of the predictor, a multiple of 32; without it the one that costs a token the fewest bytes
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_RANK")]
    pub(crate) rank: Option<u32>,
    /// Most bytes of the predictor, as a share of those of the feed-forward blocks (4%): ranks and types that take more are
    /// not tried
    #[arg(long, value_name = "SHARE", env = "THERMOCLINE_ARG_MAX_SIZE", value_parser = crate::cli::parse::share)]
    pub(crate) max_size: Option<f64>,
    /// Take PowerInfer's predictor for this model instead: a folder with model_0.pt and so on, for --sparsity predicted.
    /// With -f its weights get fewer bits where that costs nothing on the text
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_IMPORT")]
    pub(crate) import: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
