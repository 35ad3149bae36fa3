//! The commands that make model files: `convert`, `quantize`, `split`, `merge`.

use super::{CommonArgs, boolish};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Convert a Hugging Face folder to GGUF.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json, the tokenizer, and safetensors or pytorch_model.bin
    #[arg(value_name = "HF_DIR")]
    pub(crate) model_folder: PathBuf,
    /// Folder with PowerInfer's predictors (model_0.pt, ...)
    #[arg(value_name = "PREDICTOR_DIR")]
    pub(crate) predictor_folder: Option<PathBuf>,
    /// Output file (--output)
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) outfile: PathBuf,
    /// Type of most weights; auto: bf16 if the checkpoint has it, else f16
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTTYPE", default_value = "auto")]
    pub(crate) outtype: OutTypeName,
    /// Container: gguf, or pwri for PowerInfer; default: pwri with predictors
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_CONTAINER")]
    pub(crate) container: Option<ContainerName>,
    /// Name of the pre-tokenizer, if tokenizer.json has an unknown one
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_PRE")]
    pub(crate) pre: Option<String>,
    /// The model's name in the file
    ///
    /// Default: the last part of `_name_or_path` in config.json, else the folder's name.
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_MODEL_NAME")]
    pub(crate) model_name: Option<String>,
    /// Replace an existing file
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `--outtype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutTypeName {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// The upper half of 32-bit floats.
    Bf16,
    /// 8 bits and a scale for 32 values.
    #[value(name = "q8_0")]
    Q8_0,
    /// Chosen by the checkpoint.
    Auto,
}

/// `--container`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ContainerName {
    /// GGUF.
    Gguf,
    /// PowerInfer's.
    Pwri,
}

/// Copy a model with its weights quantised to another type.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// GGUF file, or the first file of a split model
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT")]
    pub(crate) outfile: PathBuf,
    /// Type or mix, for example Q4_K_M or Q8_0
    #[arg(value_name = "TYPE")]
    pub(crate) target: String,
    /// Use one type for every tensor, no mix
    #[arg(long, env = "THERMOCLINE_ARG_PURE", value_parser = boolish())]
    pub(crate) pure: bool,
    /// Type of the output matrix
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTPUT_TENSOR_TYPE")]
    pub(crate) output_tensor_type: Option<String>,
    /// Type of the embedding
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_TOKEN_EMBEDDING_TYPE")]
    pub(crate) token_embedding_type: Option<String>,
    /// Do not quantise the output matrix
    #[arg(long, env = "THERMOCLINE_ARG_LEAVE_OUTPUT_TENSOR", value_parser = boolish())]
    pub(crate) leave_output_tensor: bool,
    /// Also requantise quantised tensors; this loses quality
    #[arg(long, env = "THERMOCLINE_ARG_ALLOW_REQUANTIZE", value_parser = boolish())]
    pub(crate) allow_requantize: bool,
    /// Replace an existing file
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Cut a model into several files: PREFIX-00001-of-00003.gguf and so on.
#[derive(Args, Clone, Debug)]
pub(crate) struct SplitArgs {
    /// GGUF file, or the first file of a split model
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Prefix of the output file names
    #[arg(value_name = "OUT_PREFIX")]
    pub(crate) prefix: PathBuf,
    /// Maximum number of tensors per file; default: 128
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_SPLIT_MAX_TENSORS")]
    #[arg(conflicts_with = "split_max_size")]
    pub(crate) split_max_tensors: Option<usize>,
    /// Maximum size of the tensors per file: a number with M or G
    #[arg(long, value_name = "N(M|G)", env = "THERMOCLINE_ARG_SPLIT_MAX_SIZE")]
    pub(crate) split_max_size: Option<String>,
    /// Replace existing files
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Join a split model into one file.
#[derive(Args, Clone, Debug)]
pub(crate) struct MergeArgs {
    /// One file of the split model
    #[arg(value_name = "FIRST")]
    pub(crate) input: PathBuf,
    /// Output file
    #[arg(value_name = "OUT")]
    pub(crate) outfile: PathBuf,
    /// Replace an existing file
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
