//! Commands and flags. clap parses each flag straight into the type that its command uses; a flag
//! is defined here and used in [`super::command`], with no layer in between. A value that comes
//! from several flags or from a file is a method of the struct that has the flags.
//!
//! Names, values and defaults are llama.cpp's where llama.cpp has them. [`super::words`] expands
//! short flags of several letters (`-ngl`) before clap sees them; [`super::llama`] handles
//! llama.cpp flags without an equivalent here. Most flags also have an environment variable, named
//! as in llama.cpp, with `THERMOCLINE_` instead of `LLAMA_`.

mod adapt;
mod bench;
mod chat;
mod choice;
mod constraint;
mod convert;
mod device;
mod embed;
mod hub;
mod imatrix;
mod model;
mod perplexity;
mod plan;
mod predictor;
mod processor;
mod profile;
mod quantize;
mod reports;
mod run;
mod sampling;
mod serve;

pub(crate) use bench::{BenchArgs, BenchSetup, OutputFormat, Subject, Synthetic};
pub(crate) use chat::{ConversationArgs, ReasoningWhen, TemplateArgs, TemplateChoice};
pub(crate) use constraint::ConstraintArgs;
pub(crate) use convert::{ConvertArgs, MergeArgs, SplitArgs};
pub(crate) use device::{DeviceArgs, SwitchArgs, policy_name};
pub(crate) use embed::{EmbedArgs, Form};
pub(crate) use hub::{HubArgs, ListArgs, PullArgs, RmArgs};
pub(crate) use imatrix::{Frequency, ImatrixArgs, ImatrixFormat};
pub(crate) use model::{ModelArgs, PlacementArgs, cache_type_name};
pub(crate) use perplexity::{PerplexityArgs, Reference};
pub(crate) use plan::{DevicesArgs, DoctorArgs, PlanArgs, Shape};
pub(crate) use predictor::{PredictorArgs, TrainingArgs};
pub(crate) use processor::{ProcessorArgs, mask};
pub(crate) use profile::{ProfileArgs, ProfileSourceArgs};
pub(crate) use quantize::QuantizeArgs;
pub(crate) use reports::{
    CacheAction, CacheArgs, CompletionsArgs, InfoArgs, ManArgs, TokenizeArgs,
};
pub(crate) use run::{KeptTokens, Length, RunArgs};
pub(crate) use sampling::SamplingArgs;
pub(crate) use serve::ServeArgs;

use super::failure::Failure;
use crate::devices::COMPILE_COMMAND;
use clap::builder::TypedValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::num::{IntErrorKind, NonZeroUsize};
use std::ops::{Bound, RangeBounds};
use std::path::PathBuf;

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "thermocline",
    version,
    about = "A language-model engine that computes only the neurons a token needs",
    subcommand_required = true,
    arg_required_else_help = false,
    after_help = "Without a command, `chat` runs if the model has a chat template, otherwise `run`:\n\
                  `thermocline model.gguf \"Once upon a time\"`.\n\
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
    /// Chat with a model (the default if the model has a chat template)
    Chat(Box<RunArgs>),
    /// Serve a model over HTTP to clients of OpenAI, Anthropic and llama-server
    ///
    /// The server listens at once, and answers 503 until the model is loaded. docs/server.md lists
    /// endpoints and fields.
    Serve(Box<ServeArgs>),
    /// Print the embeddings of texts, or the scores of a ranking model
    ///
    /// Each word, each line of a file and each line of standard input is a text. For a ranking model,
    /// a text is a query and a document, separated by a tab.
    Embed(Box<EmbedArgs>),
    /// Show whether a model runs here, and what its file contains
    ///
    /// The speed is estimated from speeds that `plan`, `doctor` or an earlier run measured.
    #[command(alias = "show")]
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
    #[command(alias = "quantise")]
    Quantize(QuantizeArgs),
    /// Collect an importance matrix for `quantize --imatrix`
    ///
    /// The text is run in chunks of the context size, as in llama-imatrix, and the squared inputs of
    /// each weight matrix are added up. An interrupted run leaves a file with the chunks so far.
    Imatrix(Box<ImatrixArgs>),
    /// Split a model into several files
    ///
    /// The files are named PREFIX-00001-of-00003.gguf and so on.
    Split(SplitArgs),
    /// Join a split model into one file
    Merge(MergeArgs),
    /// Show the token ids of a text
    Tokenize(TokenizeArgs),
    /// Download models by name from Hugging Face
    ///
    /// The path of each model is printed. An interrupted download continues when the command is run
    /// again. Size and checksum of every file are verified before it is used; a URL states no
    /// checksum.
    #[command(alias = "download")]
    Pull(PullArgs),
    /// List the downloaded models
    #[command(alias = "ls")]
    List(ListArgs),
    /// Delete downloaded models
    #[command(alias = "remove")]
    Rm(RmArgs),
    /// List or delete the repacked weights that are cached on disk
    Cache(CacheArgs),
    /// Print a completion script for a shell
    ///
    /// For example: `thermocline completions bash > /etc/bash_completion.d/thermocline`
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder, for packages
    #[command(hide = true)]
    Man(ManArgs),
    /// Compile a kernel: this program calls itself, so that a crash of a driver's compiler ends
    /// another process
    #[command(hide = true, name = COMPILE_COMMAND)]
    CompileKernel(CommonArgs),
}

impl Command {
    /// The memory and device flags; `None` for a command that runs no model.
    #[allow(clippy::wildcard_enum_match_arm)] // other commands run no model
    pub(crate) fn placement(&self) -> Option<&PlacementArgs> {
        let model = match self {
            Self::Run(args) | Self::Chat(args) => &args.model,
            Self::Serve(args) => &args.model,
            Self::Embed(args) => &args.model,
            Self::Perplexity(args) => &args.model,
            Self::Imatrix(args) => &args.model,
            Self::Predictor(args) => &args.model,
            Self::Profile(args) => &args.model,
            Self::Plan(args) => &args.model,
            Self::Bench(args) => return Some(&args.placement),
            _ => return None,
        };
        Some(&model.placement)
    }

    /// Whether the command computes figures or a file, of which Ctrl-C leaves nothing or a part.
    pub(crate) fn measures(&self) -> bool {
        matches!(
            self,
            Self::Bench(_)
                | Self::Perplexity(_)
                | Self::Imatrix(_)
                | Self::Predictor(_)
                | Self::Profile(_)
        )
    }

    /// The number of threads that the user set, where it limits the whole command.
    ///
    /// # Errors
    /// Invalid words of `quantize`.
    #[allow(clippy::wildcard_enum_match_arm)] // other commands have no such flag
    pub(crate) fn n_threads(&self) -> Result<Threads, Failure> {
        let model = match self {
            Self::Run(args) | Self::Chat(args) => &args.model,
            Self::Serve(args) => &args.model,
            Self::Embed(args) => &args.model,
            Self::Perplexity(args) => &args.model,
            Self::Imatrix(args) => &args.model,
            Self::Predictor(args) => &args.model,
            Self::Profile(args) => &args.model,
            Self::Plan(args) => &args.model,
            Self::Quantize(args) => return args.n_threads(),
            _ => return Ok(None),
        };
        Ok(model.threads.max(model.threads_batch.flatten()))
    }

    /// The flags that name models, and the models to open; `None` for a command that opens none.
    #[allow(clippy::wildcard_enum_match_arm)] // other commands open no model
    pub(crate) fn models_mut(&mut self) -> Option<(&HubArgs, ModelFiles<'_>)> {
        let model = match self {
            Self::Run(args) | Self::Chat(args) => &mut args.model,
            Self::Serve(args) => &mut args.model,
            Self::Embed(args) => &mut args.model,
            Self::Perplexity(args) => &mut args.model,
            Self::Imatrix(args) => &mut args.model,
            Self::Predictor(args) => &mut args.model,
            Self::Profile(args) => &mut args.model,
            Self::Plan(args) => &mut args.model,
            Self::Bench(args) => {
                let args = &mut **args;
                return Some((&args.hub, ModelFiles::Several(&mut args.model)));
            }
            Self::Info(args) => return Some((&args.hub, ModelFiles::One(&mut args.model))),
            Self::Tokenize(args) => return Some((&args.hub, ModelFiles::One(&mut args.model))),
            _ => return None,
        };
        Some((&model.hub, ModelFiles::One(&mut model.model)))
    }

    /// Whether the command answers messages instead of continuing raw text.
    pub(crate) fn converses(&self) -> bool {
        let answers_once = matches!(self, Self::Run(args) if args.conversation.chat);
        answers_once || matches!(self, Self::Chat(_) | Self::Serve(_))
    }

    /// The arguments that every command has.
    pub(crate) fn common(&self) -> &CommonArgs {
        match self {
            Self::Run(args) | Self::Chat(args) => &args.common,
            Self::Serve(args) => &args.common,
            Self::Embed(args) => &args.common,
            Self::Info(args) => &args.common,
            Self::Bench(args) => &args.common,
            Self::Perplexity(args) => &args.common,
            Self::Imatrix(args) => &args.common,
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
            Self::Pull(args) => &args.common,
            Self::List(args) => &args.common,
            Self::Rm(args) => &args.common,
            Self::Cache(args) => &args.common,
            Self::Completions(args) => &args.common,
            Self::Man(args) => &args.common,
            Self::CompileKernel(common) => common,
        }
    }
}

/// The values of `--model`.
#[derive(Debug)]
pub(crate) enum ModelFiles<'a> {
    /// At most one model.
    One(&'a mut Option<PathBuf>),
    /// All models of `bench`.
    Several(&'a mut Vec<PathBuf>),
}

impl ModelFiles<'_> {
    /// The models as the user named them.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        match self {
            Self::One(path) => path.iter().cloned().collect(),
            Self::Several(paths) => paths.to_vec(),
        }
    }

    /// Replaces the models.
    pub(crate) fn set(self, files: &[PathBuf]) {
        match self {
            Self::One(path) => *path = files.first().cloned(),
            Self::Several(paths) => *paths = files.to_vec(),
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
    /// Also append notes, errors and the server's requests to FILE
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_LOG_FILE")]
    pub(crate) log_file: Option<PathBuf>,
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
    |text: &str| match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" | "yes" | "y" | "enabled" => Ok(true),
        "off" | "false" | "0" | "no" | "n" | "disabled" => Ok(false),
        _ => Err("write on or off".to_owned()),
    }
}

/// A number of threads; `None` for the default.
pub(crate) type Threads = Option<NonZeroUsize>;

/// Parses llama.cpp's thread counts: 0, negative numbers and `auto` select the default.
pub(crate) fn threads() -> impl TypedValueParser<Value = Threads> {
    |text: &str| {
        let n: i32 = if text == "auto" { 0 } else { whole(..=4096)(text)? };
        Ok::<_, String>(usize::try_from(n).ok().and_then(NonZeroUsize::new))
    }
}

/// A parser of whole numbers in `range`.
pub(crate) fn whole<T: TryFrom<i64>>(
    range: impl RangeBounds<i64> + Clone,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.trim().parse::<i64>().ok().filter(|n| range.contains(n));
        number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| {
            let bound = |bound: Bound<&i64>, step| match bound {
                Bound::Included(n) => Some(*n),
                Bound::Excluded(n) => Some(n + step),
                Bound::Unbounded => None,
            };
            match (bound(range.start_bound(), 1), bound(range.end_bound(), -1)) {
                (Some(least), Some(most)) => {
                    format!("must be a whole number from {least} to {most}")
                }
                // The type still has an upper bound.
                (Some(least), None) if is_at_least(text, least) => {
                    "the number is too large".to_owned()
                }
                (Some(least), None) => format!("must be a whole number, {least} or more"),
                (None, Some(most)) => format!("must be a whole number, {most} or less"),
                (None, None) => "must be a whole number".to_owned(),
            }
        })
    }
}

/// Whether `text` is a whole number of at least `least`, also beyond 64 bits.
fn is_at_least(text: &str, least: i64) -> bool {
    match text.trim().parse::<i64>() {
        Ok(number) => number >= least,
        Err(error) => *error.kind() == IntErrorKind::PosOverflow,
    }
}

/// Whether a model is named by a URL.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}
