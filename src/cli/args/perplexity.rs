//! `thermocline perplexity`.

use super::{CommonArgs, ModelArgs, boolish};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Measure quality on a text, as llama-perplexity does: chunks of the context's length, the second
/// half of each counted.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Measurement")]
pub(crate) struct PerplexityArgs {
    /// The text; - is standard input
    #[arg(short, long, value_name = "FILE", overrides_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// The text itself
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// How many chunks to measure; -1 all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_CHUNKS", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) chunks: i32,
    /// Compare with another run of the same text, in this run: dense computes every neuron
    #[arg(long, value_name = "WHAT", env = "THERMOCLINE_ARG_AGAINST")]
    #[arg(conflicts_with_all = ["kl_divergence", "kl_divergence_base"])]
    pub(crate) against: Option<Against>,
    /// Compare with the probabilities in the file of --kl-divergence-base
    #[arg(long, env = "THERMOCLINE_ARG_KL_DIVERGENCE", value_parser = boolish(), requires = "kl_divergence_base")]
    pub(crate) kl_divergence: bool,
    /// Probabilities of a run: written, or with --kl-divergence read
    #[arg(
        long,
        value_name = "FILE",
        env = "THERMOCLINE_ARG_KL_DIVERGENCE_BASE",
        visible_alias = "save-all-logits"
    )]
    pub(crate) kl_divergence_base: Option<PathBuf>,
    /// The report as one JSON object on standard output
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
    /// The same model with nothing skipped.
    Dense,
}
