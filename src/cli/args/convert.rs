//! The commands that make model files: `convert`, `quantize`, `split`, `merge`.

use super::choice::{Choice, choice, one_of};
use super::{CommonArgs, boolish};
use crate::cli::failure::Failure;
use crate::convert::{Conversion, Limit, OutType, Quantization, Target};
use crate::gguf::Container;
use clap::Args;
use hal::format::Format;
use std::error::Error;
use std::path::PathBuf;
use std::str::FromStr;

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
    #[arg(value_parser = one_of(&OUT_TYPES))]
    pub(crate) outtype: OutType,
    /// Container: gguf, or pwri for PowerInfer; default: pwri with predictors
    #[arg(long, value_name = "KIND", env = "THERMOCLINE_ARG_CONTAINER")]
    #[arg(value_parser = one_of(&CONTAINERS))]
    pub(crate) container: Option<Container>,
    /// Name of the pre-tokenizer, if tokenizer.json has an unknown one
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_PRE")]
    pub(crate) pre: Option<String>,
    /// The model's name in the file
    ///
    /// Default: the last path component of `_name_or_path` in config.json, else the folder's name.
    #[arg(long, value_name = "NAME", env = "THERMOCLINE_ARG_MODEL_NAME")]
    pub(crate) model_name: Option<String>,
    /// Replace an existing file
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

static OUT_TYPES: [Choice<OutType>; 5] = [
    choice("f32", "32-bit floats", OutType::F32),
    choice("f16", "16-bit floats", OutType::F16),
    choice("bf16", "The upper half of 32-bit floats", OutType::Bf16),
    choice("q8_0", "8-bit integers, one scale per 32 values", OutType::Q8_0),
    choice("auto", "bf16 if the checkpoint has it, else f16", OutType::Auto),
];

static CONTAINERS: [Choice<Container>; 2] = [
    choice("gguf", "GGUF", Container::Gguf),
    choice("pwri", "PowerInfer's container", Container::PowerInfer),
];

impl ConvertArgs {
    pub(crate) fn job(&self) -> Conversion {
        Conversion {
            folder: self.model_folder.clone(),
            predictor: self.predictor_folder.clone(),
            output: self.outfile.clone(),
            out_type: self.outtype,
            container: self.container,
            pre: self.pre.clone(),
            name: self.model_name.clone(),
            force: self.force,
        }
    }
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
    #[arg(value_name = "TYPE", value_parser = target)]
    pub(crate) target: Target,
    /// Use one type for every tensor, no mix
    #[arg(long, env = "THERMOCLINE_ARG_PURE", value_parser = boolish())]
    pub(crate) pure: bool,
    /// Type of the output matrix
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_OUTPUT_TENSOR_TYPE")]
    #[arg(value_parser = tensor_type)]
    pub(crate) output_tensor_type: Option<Format>,
    /// Type of the embedding
    #[arg(long, value_name = "TYPE", env = "THERMOCLINE_ARG_TOKEN_EMBEDDING_TYPE")]
    #[arg(value_parser = tensor_type)]
    pub(crate) token_embedding_type: Option<Format>,
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

impl QuantizeArgs {
    pub(crate) fn job(&self) -> Quantization {
        Quantization {
            input: self.input.clone(),
            output: self.outfile.clone(),
            target: self.target,
            pure: self.pure,
            output_type: self.output_tensor_type,
            embedding_type: self.token_embedding_type,
            leave_output: self.leave_output_tensor,
            requantize: self.allow_requantize,
            force: self.force,
        }
    }
}

fn target(name: &str) -> Result<Target, Failure> {
    Ok(Target::from_str(name)?)
}

/// Parses the type of a single tensor; the name of a mix is an error.
fn tensor_type(name: &str) -> Result<Format, Failure> {
    let known: Vec<Format> = Target::all().map(Target::format).collect();
    let found = Format::from_str(name).ok().filter(|format| known.contains(format));
    found.ok_or_else(|| {
        let mut names: Vec<&str> = known.iter().map(|format| format.name()).collect();
        names.dedup();
        Failure::usage(format!("tensors cannot be quantised to `{name}`"))
            .help(format!("supported types: {}", names.join(", ")))
    })
}

/// Split a model into several files: PREFIX-00001-of-00003.gguf and so on.
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
    #[arg(conflicts_with = "split_max_size", value_parser = max_tensors)]
    pub(crate) split_max_tensors: Option<Limit>,
    /// Maximum size of the tensors per file: 500M, 2G
    #[arg(long, value_name = "N(M|G)", env = "THERMOCLINE_ARG_SPLIT_MAX_SIZE")]
    #[arg(value_parser = max_size)]
    pub(crate) split_max_size: Option<Limit>,
    /// Replace existing files
    #[arg(short, long, env = "THERMOCLINE_ARG_FORCE", value_parser = boolish())]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Default maximum number of tensors per file, as in llama.cpp.
const MAX_TENSORS: usize = 128;

impl SplitArgs {
    pub(crate) fn limit(&self) -> Limit {
        self.split_max_size.or(self.split_max_tensors).unwrap_or(Limit::Tensors(MAX_TENSORS))
    }
}

fn max_tensors(text: &str) -> Result<Limit, Box<dyn Error + Send + Sync>> {
    match text.parse()? {
        0 => Err(Failure::usage(
            "--split-max-tensors cannot be 0: each file has at least one tensor",
        )
        .into()),
        n => Ok(Limit::Tensors(n)),
    }
}

fn max_size(text: &str) -> Result<Limit, Failure> {
    let wrong =
        || Failure::usage(format!("--split-max-size: '{text}' is not a size such as 500M or 2G"));
    let unit = match text.chars().last() {
        Some('M' | 'm') => 1_000_000,
        Some('G' | 'g') => 1_000_000_000,
        Some(_) | None => return Err(wrong()),
    };
    let number = text[..text.len() - 1].parse::<u64>().ok().filter(|&n| n > 0);
    number.and_then(|n| n.checked_mul(unit)).map(Limit::Bytes).ok_or_else(wrong)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn split(words: &[&str]) -> Result<Limit, clap::Error> {
        let words = ["thermocline", "split", "a", "b"].iter().chain(words);
        let Command::Split(args) = Cli::try_parse_from(words)?.command else {
            panic!("the parsed command is not the expected one");
        };
        Ok(args.limit())
    }

    #[test]
    fn split_limits_are_parsed() {
        assert_eq!(split(&[]).unwrap(), Limit::Tensors(128));
        assert_eq!(split(&["--split-max-size", "3G"]).unwrap(), Limit::Bytes(3_000_000_000));
        assert_eq!(split(&["--split-max-size", "500M"]).unwrap(), Limit::Bytes(500_000_000));
        for wrong in ["", "G", "3", "3T", "-1G", "0M", "99999999999999999999G", "\u{e9}"] {
            assert!(split(&[&format!("--split-max-size={wrong}")]).is_err(), "{wrong}");
        }
        let error = split(&["--split-max-tensors", "0"]).unwrap_err();
        assert!(Failure::of_clap(&error).unwrap().message.contains("at least one tensor"));
    }

    #[test]
    fn tensor_types_are_parsed() {
        assert_eq!(tensor_type("q6_k").unwrap(), Format::Q6_K);
        assert!(tensor_type("U32").is_err());
        assert!(tensor_type("x").unwrap_err().help.unwrap().contains("Q8_0"));
    }
}
