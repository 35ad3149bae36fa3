//! `thermocline bench`.

use super::{CacheTypeName, CommonArgs, PlacementArgs, boolish};
use crate::cli::parse;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Flags of `bench`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tests")]
pub(crate) struct BenchArgs {
    /// GGUF file, may be repeated; default: the built-in story model
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Vec<PathBuf>,
    /// Prompt lengths (prefill tests)
    #[arg(
        short = 'p',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_PROMPT",
        default_value = "512"
    )]
    pub(crate) n_prompt: Vec<String>,
    /// Numbers of tokens to generate (decode tests)
    #[arg(
        short = 'n',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_GEN",
        default_value = "128"
    )]
    pub(crate) n_gen: Vec<String>,
    /// Prefill of P tokens and decode of G as one test (-pg)
    #[arg(long, value_name = "P,G", env = "THERMOCLINE_ARG_PG", value_parser = parse::pair)]
    pub(crate) pg: Vec<(u32, u32)>,
    /// Context depths to fill before the test
    #[arg(
        short = 'd',
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_N_DEPTH",
        default_value = "0"
    )]
    pub(crate) n_depth: Vec<String>,
    /// Numbers of sequences that decode at once (-np)
    ///
    /// Rates are the total of all sequences.
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_N_PARALLEL", default_value = "1")]
    pub(crate) parallel: Vec<String>,
    /// Repetitions of each test
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_REPETITIONS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) repetitions: u32,
    /// CPU threads
    #[arg(short, long, value_name = "LIST", env = "THERMOCLINE_ARG_THREADS")]
    pub(crate) threads: Vec<String>,
    /// Logical batch sizes
    #[arg(short, long, value_name = "LIST", env = "THERMOCLINE_ARG_BATCH", default_value = "2048")]
    pub(crate) batch_size: Vec<String>,
    /// Physical batch sizes (-ub)
    #[arg(long, value_name = "LIST", env = "THERMOCLINE_ARG_UBATCH", default_value = "512")]
    pub(crate) ubatch_size: Vec<String>,
    /// Formats of the keys in the KV cache (-ctk)
    #[arg(
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_CACHE_TYPE_K",
        default_value = "f16",
        value_delimiter = ','
    )]
    pub(crate) cache_type_k: Vec<CacheTypeName>,
    /// Formats of the values in the KV cache (-ctv)
    #[arg(
        long,
        value_name = "LIST",
        env = "THERMOCLINE_ARG_CACHE_TYPE_V",
        default_value = "f16",
        value_delimiter = ','
    )]
    pub(crate) cache_type_v: Vec<CacheTypeName>,
    /// Text for the prompts; default: a built-in text
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PROMPT_FILE")]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Seconds to wait between tests
    #[arg(long, value_name = "SECONDS", env = "THERMOCLINE_ARG_DELAY", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=86_400))]
    pub(crate) delay: u32,
    /// One untimed run before each test (--no-warmup)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_WARMUP", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) warmup: bool,
    /// Measure a synthetic model: SHAPE:TYPE:relu or SHAPE:TYPE:silu
    ///
    /// SHAPE*EXPERTS/USED:TYPE:silu makes a model with experts.
    #[arg(long, value_name = "SPEC", env = "THERMOCLINE_ARG_SYNTHETIC")]
    pub(crate) synthetic: Option<String>,
    /// Density of the synthetic model: share of active neurons
    #[arg(long, value_name = "X", env = "THERMOCLINE_ARG_DENSITY", requires = "synthetic")]
    pub(crate) density: Option<f64>,
    /// Write the synthetic model to a file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_WRITE", requires = "synthetic")]
    pub(crate) write: Option<PathBuf>,
    /// Seed of the synthetic model
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_SEED", default_value_t = 0)]
    pub(crate) seed: u32,
    /// Compare the logits of all backends and budgets
    ///
    /// Fails where they differ by more than rounding explains.
    #[arg(long, env = "THERMOCLINE_ARG_CHECK", value_parser = boolish())]
    pub(crate) check: bool,
    /// Write a timeline for ui.perfetto.dev or chrome://tracing
    ///
    /// Recording the timeline slows the run down.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TRACE", help_heading = "Report")]
    pub(crate) trace: Option<PathBuf>,
    /// Draw the comparison as an SVG file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PLOT", help_heading = "Report")]
    pub(crate) plot: Option<PathBuf>,
    /// Format of the report
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        env = "THERMOCLINE_ARG_OUTPUT",
        default_value = "md",
        help_heading = "Report"
    )]
    pub(crate) output: OutputFormat,
    /// Also report on standard error, in this format (-oe)
    #[arg(
        long,
        value_name = "FORMAT",
        env = "THERMOCLINE_ARG_OUTPUT_ERR",
        help_heading = "Report"
    )]
    pub(crate) output_err: Option<OutputFormat>,
    /// Same as -o json
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish(), help_heading = "Report")]
    pub(crate) json: bool,
    /// Print each test's name on standard error as it begins
    #[arg(long, env = "THERMOCLINE_ARG_PROGRESS", value_parser = boolish(), help_heading = "Report")]
    pub(crate) progress: bool,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Formats of llama-bench's report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// A Markdown table.
    Md,
    /// Comma-separated, every field quoted.
    Csv,
    /// One array.
    Json,
    /// One object per line.
    Jsonl,
    /// `CREATE TABLE` and `INSERT`s.
    Sql,
}
