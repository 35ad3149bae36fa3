//! Commands and flags. clap parses each flag straight into the type that its command uses; a flag
//! is defined here and used in [`super::command`], with no layer in between. A value that comes
//! from several flags or from a file is a method of the struct that has the flags.
//!
//! Names, values and defaults are llama.cpp's where llama.cpp has them. [`super::words`] expands
//! short flags of several letters (`-ngl`) before clap sees them; [`super::llama`] handles
//! llama.cpp flags without an equivalent here. Most flags also have an environment variable, named
//! as in llama.cpp, with `THERMOCLINE_` instead of `LLAMA_`.

mod bench;
mod chat;
mod choice;
mod constraint;
mod convert;
mod device;
mod model;
mod perplexity;
mod plan;
mod predictor;
mod processor;
mod profile;
mod reports;
mod run;
mod sampling;
mod serve;

pub(crate) use bench::{BenchArgs, BenchSetup, OutputFormat, Subject, Synthetic};
pub(crate) use chat::{ConversationArgs, ReasoningWhen, TemplateArgs, TemplateChoice};
pub(crate) use constraint::ConstraintArgs;
pub(crate) use convert::{ConvertArgs, MergeArgs, QuantizeArgs, SplitArgs};
pub(crate) use device::DeviceArgs;
pub(crate) use model::{ModelArgs, PlacementArgs, cache_type_name};
pub(crate) use perplexity::{PerplexityArgs, Reference};
pub(crate) use plan::{DevicesArgs, DoctorArgs, PlanArgs};
pub(crate) use predictor::{PredictorArgs, TrainingArgs};
pub(crate) use processor::{ProcessorArgs, mask};
pub(crate) use profile::{ProfileArgs, ProfileSourceArgs};
pub(crate) use reports::{CacheAction, CacheArgs, CompletionsArgs, InfoArgs, TokenizeArgs};
pub(crate) use run::{KeptTokens, Length, RunArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::ServeArgs;

use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::num::NonZeroUsize;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "thermocline",
    version,
    about = "A language-model engine that computes only the neurons a token needs",
    subcommand_required = true,
    arg_required_else_help = false,
    after_help = "Without a command, `chat` runs on a terminal if the model has a chat template, otherwise `run`:\n\
                  `thermocline -m model.gguf -p \"Once upon a time\"`.\n\
                  Without -m, it runs the built-in story model.\n\
                  Flags are llama.cpp's; `thermocline COMMAND -h` lists them, `--help` explains them."
)]
pub(crate) struct Cli {
    /// The command to run.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt (the default command)
    Run(Box<RunArgs>),
    /// Chat with a model (the default on a terminal if the model has a chat template)
    Chat(Box<RunArgs>),
    /// Serve a model over HTTP to clients of OpenAI, Anthropic and llama-server
    ///
    /// The server listens at once, and answers 503 until the model is loaded. docs/server.md lists
    /// endpoints and fields.
    Serve(Box<ServeArgs>),
    /// Show what a model file contains, without running it
    Info(InfoArgs),
    /// Measure speed with llama-bench's tests and columns
    ///
    /// Lists are `4,8`, `1-8`, `1-9+2` or `1-8*2`; a flag may be repeated. Every combination is
    /// measured, including --backend and --vram-budget. device_bytes is the memory per device,
    /// itemised as in `plan`: on the CPU the allocations and the mapped weights that are read, on
    /// other devices the peak of all allocations and the driver's reserve.
    Bench(Box<BenchArgs>),
    /// Show where a model would be placed and how fast it would run, without loading it
    Plan(Box<PlanArgs>),
    /// List the available devices
    Devices(DevicesArgs),
    /// Measure the devices; report what is missing and how to install it
    Doctor(DoctorArgs),
    /// Measure quality: perplexity, and divergence of the sparse run from the dense one
    ///
    /// As in llama-perplexity, the second half of each context-sized chunk is evaluated.
    Perplexity(Box<PerplexityArgs>),
    /// Train a predictor of skippable neurons, for --sparsity balanced and fast
    ///
    /// Models whose activation has exact zeros get a predictor, others thresholds. An interrupted
    /// run continues when it is started again.
    Predictor(Box<PredictorArgs>),
    /// Count how often each neuron of a model fires on a text
    ///
    /// The profile (counts, contributions, and which neurons fire together) is stored beside the
    /// model. An interrupted run continues when it is started again.
    Profile(Box<ProfileArgs>),
    /// Convert a Hugging Face folder to GGUF
    Convert(ConvertArgs),
    /// Copy a model with its weights quantised to another type
    Quantize(QuantizeArgs),
    /// Split a model into several files
    ///
    /// The files are named PREFIX-00001-of-00003.gguf and so on.
    Split(SplitArgs),
    /// Join a split model into one file
    Merge(MergeArgs),
    /// Show the token ids of a text
    Tokenize(TokenizeArgs),
    /// List or delete the repacked weights that are cached on disk
    Cache(CacheArgs),
    /// Print a completion script for a shell
    ///
    /// For example: `thermocline completions bash > /etc/bash_completion.d/thermocline`
    Completions(CompletionsArgs),
}

impl Command {
    /// The memory and device flags; `None` for a command that runs no model.
    pub(crate) fn placement(&self) -> Option<&PlacementArgs> {
        match self {
            Self::Run(args) | Self::Chat(args) => Some(&args.model.placement),
            Self::Serve(args) => Some(&args.model.placement),
            Self::Bench(args) => Some(&args.placement),
            Self::Perplexity(args) => Some(&args.model.placement),
            Self::Predictor(args) => Some(&args.model.placement),
            Self::Profile(args) => Some(&args.model.placement),
            Self::Plan(args) => Some(&args.model.placement),
            Self::Info(_)
            | Self::Devices(_)
            | Self::Doctor(_)
            | Self::Convert(_)
            | Self::Quantize(_)
            | Self::Split(_)
            | Self::Merge(_)
            | Self::Tokenize(_)
            | Self::Cache(_)
            | Self::Completions(_) => None,
        }
    }

    /// The arguments that every command has.
    pub(crate) fn common(&self) -> &CommonArgs {
        match self {
            Self::Run(args) | Self::Chat(args) => &args.common,
            Self::Serve(args) => &args.common,
            Self::Info(args) => &args.common,
            Self::Bench(args) => &args.common,
            Self::Perplexity(args) => &args.common,
            Self::Predictor(args) => &args.common,
            Self::Profile(args) => &args.common,
            Self::Plan(args) => &args.common,
            Self::Devices(args) => &args.common,
            Self::Doctor(args) => &args.common,
            Self::Convert(args) => &args.common,
            Self::Quantize(args) => &args.common,
            Self::Split(args) => &args.common,
            Self::Merge(args) => &args.common,
            Self::Tokenize(args) => &args.common,
            Self::Cache(args) => &args.common,
            Self::Completions(args) => &args.common,
        }
    }
}

/// Flags of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Terminal")]
pub(crate) struct CommonArgs {
    /// Colour output (-co)
    ///
    /// auto colours terminals only, and respects NO_COLOR and CLICOLOR_FORCE.
    #[arg(long, value_name = "WHEN", env = "THERMOCLINE_ARG_COLOR", default_value = "auto")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) color: ColorWhen,
    /// Print more on standard error; may be repeated
    #[arg(short, long, action = clap::ArgAction::Count, env = "THERMOCLINE_ARG_VERBOSE")]
    pub(crate) verbose: u8,
    /// Print only errors on standard error, no notes
    #[arg(long, env = "THERMOCLINE_ARG_LOG_DISABLE", value_parser = boolish())]
    pub(crate) log_disable: bool,
}

/// `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// Always colour.
    #[value(alias = "always", alias = "true", alias = "1")]
    On,
    /// Never colour.
    #[value(alias = "never", alias = "false", alias = "0")]
    Off,
    /// Colour on a terminal.
    Auto,
}

/// The parser of every Boolean value, from a flag or the environment.
pub(crate) fn boolish() -> impl TypedValueParser<Value = bool> {
    BoolishValueParser::new()
}

/// A number of threads; `None` for the default.
pub(crate) type Threads = Option<NonZeroUsize>;

/// Parses llama.cpp's thread counts: 0 and negative numbers select the default.
pub(crate) fn threads() -> impl TypedValueParser<Value = Threads> {
    let count = clap::value_parser!(i32).range(..=4096);
    count.map(|n| usize::try_from(n).ok().and_then(NonZeroUsize::new))
}
