//! `thermocline perplexity`.

use super::{CommonArgs, ModelArgs, boolish};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Measure quality on a text, as llama-perplexity does: chunks of the context size, of which the second half is evaluated.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measurement")]
pub(crate) struct PerplexityArgs {
    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE", overrides_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// The text itself
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Number of chunks to measure; -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_CHUNKS", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) chunks: i32,
    /// Compare with a second run of the same text
    #[arg(long, value_name = "WHAT", env = "THERMOCLINE_ARG_AGAINST")]
    #[arg(conflicts_with_all = ["kl_divergence", "kl_divergence_base"])]
    pub(crate) against: Option<Against>,
    /// Compare with the probabilities in the --kl-divergence-base file
    #[arg(long, env = "THERMOCLINE_ARG_KL_DIVERGENCE", value_parser = boolish(), requires = "kl_divergence_base")]
    pub(crate) kl_divergence: bool,
    /// File of probabilities: written, or read with --kl-divergence
    #[arg(
        long,
        value_name = "FILE",
        env = "THERMOCLINE_ARG_KL_DIVERGENCE_BASE",
        visible_alias = "save-all-logits"
    )]
    pub(crate) kl_divergence_base: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `--against`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Against {
    /// The same model with every neuron computed.
    Dense,
}
