//! The commands that make model files: `convert`, `quantize`, `split`, `merge`.

use super::{CommonArgs, boolish};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Make a GGUF file of a Hugging Face folder.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConvertArgs {
    /// The folder with config.json, the tokenizer, and safetensors or pytorch_model.bin
    #[arg(value_name = "HF_DIR")]
    pub(crate) model_folder: PathBuf,
    /// A folder with PowerInfer's predictors, model_0.pt and so on
    #[arg(value_name = "PREDICTOR_DIR")]
    pub(crate) predictor_folder: Option<PathBuf>,
    /// The file to be (--output)
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) outfile: PathBuf,
    /// The type of most weights; auto is bf16 where the checkpoint has it, else f16
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTTYPE", default_value = "auto")]
    pub(crate) outtype: OutTypeName,
    /// gguf, or pwri for PowerInfer; without a word pwri where there is a predictor
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_CONTAINER")]
    pub(crate) container: Option<ContainerName>,
    /// The name of the pre-tokenizer, where tokenizer.json has one without a known name
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_PRE")]
    pub(crate) pre: Option<String>,
    /// The model's name in the file; without it the last part of `_name_or_path` in config.json, else the folder's name
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_MODEL_NAME")]
    pub(crate) model_name: Option<String>,
    /// Replace a file of that name
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
    /// By the checkpoint.
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

/// Copy a model with its weights in another type.
#[derive(Args, Clone, Debug)]
pub(crate) struct QuantizeArgs {
    /// A GGUF file, or the first of several
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// The file to be
    #[arg(value_name = "OUT")]
    pub(crate) outfile: PathBuf,
    /// The mix of types: Q4_K_M, Q8_0 and others
    #[arg(value_name = "TYPE")]
    pub(crate) target: String,
    /// Every tensor in the one type, no mix
    #[arg(long, env = "THERMOCLINE_ARG_PURE", value_parser = boolish())]
    pub(crate) pure: bool,
    /// The type of the output matrix
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTPUT_TENSOR_TYPE")]
    pub(crate) output_tensor_type: Option<String>,
    /// The type of the embedding
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_TOKEN_EMBEDDING_TYPE")]
    pub(crate) token_embedding_type: Option<String>,
    /// Leave the output matrix as it is
    #[arg(long, env = "THERMOCLINE_ARG_LEAVE_OUTPUT_TENSOR", value_parser = boolish())]
    pub(crate) leave_output_tensor: bool,
    /// Take tensors that are quantised already, too; it loses quality
    #[arg(long, env = "THERMOCLINE_ARG_ALLOW_REQUANTIZE", value_parser = boolish())]
    pub(crate) allow_requantize: bool,
    /// Replace a file of that name
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Cut a model into several files: PREFIX-00001-of-00003.gguf and so on.
#[derive(Args, Clone, Debug)]
pub(crate) struct SplitArgs {
    /// A GGUF file, or the first of several
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// How the names of the parts begin
    #[arg(value_name = "OUT_PREFIX")]
    pub(crate) prefix: PathBuf,
    /// Most tensors in a part; 128 where no limit is given
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_SPLIT_MAX_TENSORS")]
    #[arg(conflicts_with = "split_max_size")]
    pub(crate) split_max_tensors: Option<usize>,
    /// Most bytes of tensors in a part: a number and M or G
    #[arg(long, value_name = "N(M|G)", env = "THERMOCLINE_ARG_SPLIT_MAX_SIZE")]
    pub(crate) split_max_size: Option<String>,
    /// Replace files of those names
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Join the parts of a model into one file.
#[derive(Args, Clone, Debug)]
pub(crate) struct MergeArgs {
    /// One of the parts
    #[arg(value_name = "FIRST")]
    pub(crate) input: PathBuf,
    /// The file to be
    #[arg(value_name = "OUT")]
    pub(crate) outfile: PathBuf,
    /// Replace a file of that name
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
