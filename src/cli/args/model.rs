//! Flags that select the model and decide where and how it is computed.

use super::choice::{self, Choice, choice};
use super::{DeviceArgs, ProcessorArgs, Threads, boolish, threads};
use crate::cli::failure::Failure;
use crate::cli::folders::cache_folder;
use crate::cli::parse;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hal::KvCache;
use hal::format::Format;
use runtime::{Computation, ContextSize, Options, Sparsity};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The model and how it is computed. `bench` has its own flags, which take lists.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// GGUF file; default: the built-in story model
    ///
    /// For a split model, give the first file.
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Context size in tokens
    ///
    /// 0 uses the model's own size. By default, the command chooses a size that fits the memory
    /// budget, and prints it.
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_CTX_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).map(context_size))]
    pub(crate) ctx_size: Option<ContextSize>,
    /// Logical batch size: tokens of a prompt submitted together
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_BATCH", default_value = "2048")]
    #[arg(value_parser = batch())]
    pub(crate) batch_size: NonZeroU32,
    /// Physical batch size: tokens of a prompt computed together (-ub)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_UBATCH", default_value = "512")]
    #[arg(value_parser = batch())]
    pub(crate) ubatch_size: NonZeroU32,
    /// CPU threads for decode; -1 for the default
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_THREADS", default_value = "-1")]
    #[arg(value_parser = threads())]
    pub(crate) threads: Threads,
    /// CPU threads for prefill (-tb); default: as --threads
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_THREADS_BATCH")]
    #[arg(value_parser = threads())]
    pub(crate) threads_batch: Option<Threads>,
    /// Format of the keys in the KV cache (-ctk)
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_CACHE_TYPE_K", default_value = "f16")]
    #[arg(value_parser = cache_type())]
    pub(crate) cache_type_k: Format,
    /// Format of the values in the KV cache (-ctv)
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_CACHE_TYPE_V", default_value = "f16")]
    #[arg(value_parser = cache_type())]
    pub(crate) cache_type_v: Format,
    #[command(flatten)]
    pub(crate) placement: PlacementArgs,
}

/// Memory and computation: the same flags for every command that runs a model.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Memory and computation")]
pub(crate) struct PlacementArgs {
    /// Lock the weights in memory, up to the system's limit (ulimit -l)
    #[arg(long, env = "THERMOCLINE_ARG_MLOCK", value_parser = boolish())]
    pub(crate) mlock: bool,
    /// Memory-map the model file instead of reading it (--no-mmap, or -mmp 0)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_MMAP", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) mmap: bool,
    /// Repack weights where that is faster (--no-repack, -nr)
    ///
    /// When off, the file's own layout is used.
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_REPACK", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) repack: bool,
    /// Folder for cached repacked weights, or off
    ///
    /// Default: a folder in the user's cache.
    #[arg(long, value_name = "DIR|off", env = "THERMOCLINE_ARG_REPACK_CACHE")]
    pub(crate) repack_cache: Option<PathBuf>,
    /// The feed-forward activation, for a file that does not state it
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_FFN_ACTIVATION")]
    #[arg(value_parser = activation())]
    pub(crate) ffn_activation: Option<String>,
    /// Which neurons to skip: exact, predicted, balanced, fast, off, or an error
    ///
    /// exact skips only neurons that contribute zero. predicted computes the neurons that the
    /// file's own predictor selects (PowerInfer files have one); without a predictor it is exact.
    /// balanced and fast skip more neurons, with a trained predictor or thresholds. So does a
    /// number such as 0.05, the tolerated relative error of a feed-forward block. `run` and `chat`
    /// train the predictor or thresholds on first use. off computes every neuron.
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_SPARSITY", default_value = "predicted")]
    #[arg(value_parser = parse::sparsity)]
    pub(crate) sparsity: Sparsity,
    /// Minimum predictor score of an active neuron; default: the file's, else 0
    #[arg(long, value_name = "SCORE", env = "THERMOCLINE_ARG_SPARSE_THRESHOLD")]
    #[arg(allow_negative_numbers = true, value_parser = parse::number)]
    pub(crate) sparse_threshold: Option<f32>,
    /// Print the available devices and exit
    #[arg(long, env = "THERMOCLINE_ARG_LIST_DEVICES", value_parser = boolish())]
    pub(crate) list_devices: bool,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    #[command(flatten)]
    pub(crate) processor: ProcessorArgs,
}

impl ModelArgs {
    /// The runtime options that these flags set.
    pub(crate) fn options(&self) -> Options {
        Options {
            n_ctx: self.ctx_size,
            n_ubatch: self.ubatch_size.min(self.batch_size),
            n_parallel: NonZeroU32::MIN,
            threads: self.threads,
            threads_batch: self.threads_batch.unwrap_or(self.threads),
            kv_formats: KvCache { k: self.cache_type_k, v: self.cache_type_v },
            computation: self.placement.computation(),
        }
    }
}

impl PlacementArgs {
    /// The sparsity, placement and file-reading options that these flags set.
    pub(crate) fn computation(&self) -> Computation {
        Computation {
            mlock: self.mlock,
            mmap: self.mmap,
            repack: self.repack,
            cache: cache_folder(self.repack_cache.as_deref()),
            activation: self.ffn_activation.clone(),
            sparsity: self.sparsity,
            sparse_threshold: self.sparse_threshold,
            devices: self.devices.options(),
            processor: self.processor.options(),
        }
    }
}

/// llama.cpp's context sizes: 0 is the model's own size.
fn context_size(n: u32) -> ContextSize {
    NonZeroU32::new(n).map_or(ContextSize::OfModel, ContextSize::Tokens)
}

fn batch() -> impl TypedValueParser<Value = NonZeroU32> {
    let size = clap::value_parser!(u32).range(1..=1 << 20);
    size.map(|n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN))
}

/// The supported formats of the KV cache.
static CACHE_TYPES: [Choice<Format>; 4] = [
    choice("f32", "32-bit floats", Format::F32),
    choice("f16", "16-bit floats", Format::F16),
    choice("bf16", "The upper half of 32-bit floats", Format::BF16),
    choice(
        "q8_0",
        "8-bit integers, one scale per 32 values; the head size must be a multiple of 32",
        Format::Q8_0,
    ),
];

/// KV cache formats of llama.cpp that are not supported yet.
const OTHER_CACHE_TYPES: [&str; 5] = ["q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"];

/// Parses the format of a KV cache.
pub(super) fn cache_type() -> impl TypedValueParser<Value = Format> {
    let others = OTHER_CACHE_TYPES.map(|name| PossibleValue::new(name).hide(true));
    let names = CACHE_TYPES.iter().map(choice::possible_value).chain(others);
    PossibleValuesParser::new(names).try_map(|name| {
        choice::find(&CACHE_TYPES, &name).ok_or_else(|| {
            Failure::usage(format!("a KV cache in {name} is not supported yet"))
                .help("-ctk and -ctv take f16, f32, bf16 and q8_0")
        })
    })
}

/// The name of a KV cache's format.
pub(crate) fn cache_type_name(format: Format) -> &'static str {
    choice::name_of(&CACHE_TYPES, &format).unwrap_or(format.name())
}

/// Parses the name of a feed-forward activation function, as model files spell it.
fn activation() -> PossibleValuesParser {
    let known = [
        ("relu", "max(x, 0), on the gate"),
        ("silu", "x * sigmoid(x)"),
        ("gelu", "x * Phi(x), approximated by tanh"),
        ("gelu_erf", "x * Phi(x), exactly"),
        ("relu2", "max(x, 0) squared"),
        ("drelu", "max(x, 0), on gate and up"),
    ];
    PossibleValuesParser::new(known.map(|(name, help)| PossibleValue::new(name).help(help)))
}
