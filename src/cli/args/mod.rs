//! What the user may type. What it means is decided one step later, in [`super::config`].
//!
//! Names, values and defaults are llama.cpp's where llama.cpp has them. Multi-letter short flags
//! (`-ngl`) are made long in [`super::words`] before clap sees them; flags of llama.cpp that stand
//! for nothing here are in [`super::llama`]. Every argument but the text to work on has its twin in
//! the environment, named as llama.cpp names it with `THERMOCLINE_` in place of `LLAMA_`.

mod bench;
mod chat;
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

pub(crate) use bench::{BenchArgs, OutputFormat};
pub(crate) use chat::{ConversationArgs, ReasoningFormat, ReasoningWhen};
pub(crate) use convert::{
    ContainerName, ConvertArgs, MergeArgs, OutTypeName, QuantizeArgs, SplitArgs,
};
pub(crate) use device::{BackendName, DeviceArgs};
pub(crate) use model::{CacheTypeName, FfnActivation, ModelArgs, PlacementArgs};
pub(crate) use perplexity::{Against, PerplexityArgs};
pub(crate) use plan::{DevicesArgs, DoctorArgs, PlanArgs};
pub(crate) use predictor::{PredictorArgs, PredictorKind};
pub(crate) use processor::{NumaName, ProcessorArgs};
pub(crate) use profile::ProfileArgs;
pub(crate) use reports::{CacheAction, CacheArgs, CompletionsArgs, InfoArgs, TokenizeArgs};
pub(crate) use run::RunArgs;
pub(crate) use sampling::SamplingArgs;

use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "thermocline",
    version,
    about = "A language-model engine that computes only the neurons a token needs",
    subcommand_required = true,
    arg_required_else_help = false,
    after_help = "Without a command, `chat` is meant on a terminal if the model has a chat template, else `run`:\n\
                  `thermocline -m model.gguf -p \"Once upon a time\"`.\n\
                  Without -m, the built-in story model runs.\n\
                  Flags are llama.cpp's; `thermocline COMMAND --help` lists them."
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Continue a prompt (the default command); there is never a question back
    Run(Box<RunArgs>),
    /// Talk with a model by its chat template (the default on a terminal, where the model has one)
    Chat(Box<RunArgs>),
    /// Show what a model file holds, without running it
    Info(InfoArgs),
    /// Measure speed with llama-bench's tests and columns
    Bench(Box<BenchArgs>),
    /// Show where a model would be placed and how fast it would be, without loading it
    Plan(Box<PlanArgs>),
    /// List the devices that can be used
    Devices(DevicesArgs),
    /// Say what was found, what is missing, how to get it, and how fast it is
    Doctor(DoctorArgs),
    /// Measure quality: perplexity, and divergence of the skipping path from the dense one
    Perplexity(Box<PerplexityArgs>),
    /// Learn from a text which neurons can be skipped, for --sparsity balanced and fast
    Predictor(Box<PredictorArgs>),
    /// Find out which neurons of a model fire how often, from a text
    Profile(Box<ProfileArgs>),
    /// Make a GGUF file of a Hugging Face folder
    Convert(ConvertArgs),
    /// Copy a model with its weights in another type
    Quantize(QuantizeArgs),
    /// Cut a model into several files
    Split(SplitArgs),
    /// Join the parts of a model into one file
    Merge(MergeArgs),
    /// Show the token ids of a text
    Tokenize(TokenizeArgs),
    /// List or remove the weights that were laid out anew and kept on disk
    Cache(CacheArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

impl Command {
    /// The arguments of a command that runs a model, about where and how.
    pub(crate) fn placement(&self) -> Option<&PlacementArgs> {
        match self {
            Self::Run(args) | Self::Chat(args) => Some(&args.model.placement),
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

/// What every command understands.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Terminal")]
pub(crate) struct CommonArgs {
    /// Colour: on, off, or by what the stream is (-co; NO_COLOR and CLICOLOR_FORCE count)
    #[arg(long, value_name = "WHEN", env = "THERMOCLINE_ARG_COLOR", default_value = "auto")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) color: ColorWhen,
    /// Say more on standard error; repeat for yet more
    #[arg(short, long, action = clap::ArgAction::Count, env = "THERMOCLINE_ARG_VERBOSE")]
    pub(crate) verbose: u8,
    /// No notes on standard error, only errors
    #[arg(long, env = "THERMOCLINE_ARG_LOG_DISABLE", value_parser = boolish())]
    pub(crate) log_disable: bool,
}

/// `--color`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// Always.
    #[value(alias = "always", alias = "true", alias = "1")]
    On,
    /// Never.
    #[value(alias = "never", alias = "false", alias = "0")]
    Off,
    /// On a terminal.
    Auto,
}

/// The parser of every yes-or-no value, from a flag or the environment.
pub(crate) fn boolish() -> impl TypedValueParser<Value = bool> {
    BoolishValueParser::new()
}
