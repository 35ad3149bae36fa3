//! Flags that select the model and decide where and how it is computed.

use super::adapt::AdaptArgs;
use super::choice::{self, Choice, choice, one_of};
use super::{DeviceArgs, HubArgs, ProcessorArgs, Threads, boolish, threads, whole};
use crate::cli::folders::cache_folder;
use crate::cli::parse;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use hal::KvCache;
use hal::format::Format;
use runtime::{Computation, ContextSize, Options, Processor, Sparsity};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The model and how it is computed. `bench` has its own flags, which take lists.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// GGUF file or USER/REPO[:QUANT]; default: the story model
    ///
    /// For a split model, give the first file.
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// Context size in tokens
    ///
    /// 0 uses the size that the model was trained with. The default is that size, but at most 4096
    /// tokens, or more on a GPU where decode stays nearly as fast; 512 for `perplexity` and
    /// `imatrix`.
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_CTX_SIZE")]
    #[arg(value_parser = whole::<u32>(0..).map(context_size))]
    pub(crate) ctx_size: Option<ContextSize>,
    /// Logical batch size: tokens of a prompt submitted together
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_BATCH", default_value = "2048")]
    #[arg(value_parser = batch())]
    pub(crate) batch_size: NonZeroU32,
    /// Physical batch size: tokens of a prompt computed together (-ub)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_UBATCH", default_value = "512")]
    #[arg(value_parser = batch())]
    pub(crate) ubatch_size: NonZeroU32,
    /// CPU threads for decode; -1: one per physical core
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
    #[arg(value_delimiter = ',', value_parser = boolish())]
    pub(crate) mmap: Vec<bool>,
    /// Whether the model file is mapped and locked, in one word (-lm)
    ///
    /// It replaces --mmap and --mlock; auto leaves them as they are.
    #[arg(long, value_name = "MODE", env = "THERMOCLINE_ARG_LOAD_MODE", default_value = "auto")]
    #[arg(value_parser = one_of(&LOAD_MODES))]
    pub(crate) load_mode: LoadMode,
    /// Reject a model that needs more memory than this machine has
    ///
    /// By default, weights that do not fit stay on disk. With --no-mmap such a model is always
    /// rejected.
    #[arg(long, env = "THERMOCLINE_ARG_RAM_CHECK", value_parser = boolish())]
    pub(crate) ram_check: bool,
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
    /// The feed-forward activation, instead of the one in the file
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_FFN_ACTIVATION")]
    #[arg(value_parser = activation())]
    pub(crate) ffn_activation: Option<String>,
    /// Which neurons to skip: exact, predicted, balanced, fast, off, or 0.05
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
    pub(crate) adapt: AdaptArgs,
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

/// `--load-mode`: whether to map and to lock the file; `None` leaves that to other flags.
type LoadMode = Option<(bool, bool)>;

static LOAD_MODES: [Choice<LoadMode>; 6] = [
    choice("auto", "As --mmap and --mlock say", None),
    choice("none", "As --no-mmap: read the file into memory", Some((false, false))),
    choice("mmap", "Map the file", Some((true, false))),
    choice("mlock", "Read the file into memory and lock it", Some((false, true))),
    choice("mmap+mlock", "Map the file and lock it in memory", Some((true, true))),
    choice("dio", "As none; reads pass through the page cache", Some((false, false))),
];

impl PlacementArgs {
    /// The sparsity, placement and file-reading options that these flags set.
    pub(crate) fn computation(&self) -> Computation {
        let given = (self.mmap.last() != Some(&false), self.mlock);
        let (mmap, mlock) = self.load_mode.unwrap_or(given);
        Computation {
            mlock,
            mmap,
            must_fit: self.ram_check,
            repack: self.repack,
            cache: cache_folder(self.repack_cache.as_deref()),
            activation: self.ffn_activation.clone(),
            adapters: self.adapt.adapters(),
            rope: self.adapt.rope.overrides(),
            sparsity: self.sparsity,
            sparse_threshold: self.sparse_threshold,
            devices: self.devices.options(),
            processor: self.processor.options(),
        }
    }

    /// The options with each combination of the values of --mmap and --cpu-mask.
    pub(crate) fn computations(&self) -> Vec<Computation> {
        let masks: Vec<Processor> = self.processor.combinations();
        let with_mmap = |mmap: bool| {
            let computation = Computation { mmap, ..self.computation() };
            let masks = masks.clone().into_iter();
            masks.map(move |processor| Computation { processor, ..computation.clone() })
        };
        match self.load_mode {
            Some((mmap, _)) => with_mmap(mmap).collect(),
            None => self.mmap.iter().copied().flat_map(with_mmap).collect(),
        }
    }
}

/// llama.cpp's context sizes: 0 is the model's own size.
fn context_size(n: u32) -> ContextSize {
    NonZeroU32::new(n).map_or(ContextSize::OfModel, ContextSize::Tokens)
}

fn batch() -> impl TypedValueParser<Value = NonZeroU32> {
    let size = whole::<u32>(1..=1 << 20);
    size.map(|n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN))
}

/// The formats of the KV cache, [`hal::op::KV_FORMATS`].
static CACHE_TYPES: [Choice<Format>; 9] = [
    choice("f32", "32-bit floats", Format::F32),
    choice("f16", "16-bit floats", Format::F16),
    choice("bf16", "bfloat16: the upper half of 32-bit floats", Format::BF16),
    choice(
        "q8_0",
        "8-bit integers, one scale per 32 values; the head size must be a multiple of 32, as for all types below",
        Format::Q8_0,
    ),
    choice("q5_1", "5-bit integers, a scale and a minimum per 32 values", Format::Q5_1),
    choice("q5_0", "5-bit integers, a scale per 32 values", Format::Q5_0),
    choice("q4_1", "4-bit integers, a scale and a minimum per 32 values", Format::Q4_1),
    choice("q4_0", "4-bit integers, a scale per 32 values", Format::Q4_0),
    choice("iq4_nl", "4-bit codes, denser near zero, a scale per 32 values", Format::IQ4_NL),
];

/// Parses the format of a KV cache.
pub(super) fn cache_type() -> impl TypedValueParser<Value = Format> {
    choice::one_of(&CACHE_TYPES)
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
