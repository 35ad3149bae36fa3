//! Which model, where it lives, how it is computed.

use super::{DeviceArgs, ProcessorArgs, boolish};
use crate::cli::parse;
use clap::{Args, ValueEnum};
use runtime::Sparsity;
use std::path::PathBuf;

/// The model and how it is computed. `bench` has its own flags, which take lists.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// GGUF file; default: the built-in story model
    ///
    /// For a split model, the first file.
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Context size in tokens
    ///
    /// 0 uses the model's own size. By default, a size is chosen that fits the memory budget, and printed.
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_CTX_SIZE")]
    pub(crate) ctx_size: Option<u32>,
    /// Logical batch size: tokens of a prompt submitted together
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_BATCH", default_value_t = 2048)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) batch_size: u32,
    /// Physical batch size: tokens of a prompt computed together (-ub)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_UBATCH", default_value_t = 512)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) ubatch_size: u32,
    /// CPU threads for decode; -1 for the default
    #[arg(short, long, value_name = "N", env = "THERMOCLINE_ARG_THREADS", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(..=4096))]
    pub(crate) threads: i32,
    /// CPU threads for prefill (-tb); default: as --threads
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_THREADS_BATCH")]
    #[arg(value_parser = clap::value_parser!(i32).range(..=4096))]
    pub(crate) threads_batch: Option<i32>,
    /// Format of the keys in the KV cache (-ctk)
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_CACHE_TYPE_K", default_value = "f16")]
    pub(crate) cache_type_k: CacheTypeName,
    /// Format of the values in the KV cache (-ctv)
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_CACHE_TYPE_V", default_value = "f16")]
    pub(crate) cache_type_v: CacheTypeName,
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
    pub(crate) ffn_activation: Option<FfnActivation>,
    /// Which neurons to skip: exact, predicted, balanced, fast, off, or an error
    ///
    /// exact skips only neurons that contribute zero. predicted computes what the file's own predictor selects (PowerInfer
    /// files have one); without a predictor it is exact. balanced and fast, or the relative error that a feed-forward block may
    /// have (0.05), skip more by a trained predictor or thresholds; `run` and `chat` train them on first use. off computes
    /// every neuron.
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_SPARSITY", default_value = "predicted")]
    #[arg(value_parser = parse::sparsity)]
    pub(crate) sparsity: Sparsity,
    /// Lowest predictor score that counts as active; default: the file's, else 0
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

/// llama.cpp's names for the KV cache's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheTypeName {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8 bits, one scale for 32 values; the head size must be a multiple of 32.
    #[value(name = "q8_0")]
    Q8_0,
    /// Known to llama.cpp.
    #[value(name = "q4_0", hide = true)]
    Q4_0,
    /// Known to llama.cpp.
    #[value(name = "q4_1", hide = true)]
    Q4_1,
    /// Known to llama.cpp.
    #[value(name = "iq4_nl", hide = true)]
    Iq4Nl,
    /// Known to llama.cpp.
    #[value(name = "q5_0", hide = true)]
    Q5_0,
    /// Known to llama.cpp.
    #[value(name = "q5_1", hide = true)]
    Q5_1,
}

/// The function between the two halves of a feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FfnActivation {
    /// max(x, 0), on the gate
    Relu,
    /// x * sigmoid(x)
    Silu,
    /// x * Phi(x), approximated by tanh
    Gelu,
    /// x * Phi(x), exactly
    #[value(name = "gelu_erf")]
    GeluErf,
    /// max(x, 0) squared
    Relu2,
    /// max(x, 0), on gate and up
    Drelu,
}
