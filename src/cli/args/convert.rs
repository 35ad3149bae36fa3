//! The commands that make model files: `convert`, `split`, `merge`.

use super::choice::{Choice, choice, one_of};
use super::{CommonArgs, boolish, whole};
use crate::cli::failure::{Exit, Failure};
use crate::convert::{Conversion, Limit, OutType, Split};
use crate::gguf::Container;
use clap::Args;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Convert a Hugging Face folder to GGUF.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConvertArgs {
    /// Folder with config.json, the tokenizer, and safetensors or pytorch_model.bin
    #[arg(value_name = "HF_DIR")]
    pub(crate) model_folder: PathBuf,
    /// Folder with PowerInfer's predictors (model_0.pt, ...)
    #[arg(value_name = "PREDICTOR_DIR")]
    pub(crate) predictor_folder: Option<PathBuf>,
    /// Output file (--output); default: a file in the folder, with its name
    #[arg(short, long, alias = "output", value_name = "FILE")]
    pub(crate) outfile: Option<PathBuf>,
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
    choice("bf16", "bfloat16: the upper half of 32-bit floats", OutType::Bf16),
    choice("q8_0", "8-bit integers, one scale per 32 values", OutType::Q8_0),
    choice("auto", "bf16 if the checkpoint has it, else f16", OutType::Auto),
];

static CONTAINERS: [Choice<Container>; 2] = [
    choice("gguf", "GGUF", Container::Gguf),
    choice("pwri", "PowerInfer's container", Container::PowerInfer),
];

impl ConvertArgs {
    /// What to convert, and where to.
    ///
    /// # Errors
    /// Words that are not folders.
    pub(crate) fn job(&self) -> Result<Conversion, Failure> {
        let folder = &self.model_folder;
        check_checkpoint(folder)?;
        if let Some(file) = self.predictor_folder.as_ref().filter(|path| is_gguf(path)) {
            let message = format!("'{}' is not a folder of predictors", file.display());
            let help = format!("-o {} names the output file", file.display());
            return Err(Failure::usage(message).help(help));
        }
        let output = self.outfile.clone().unwrap_or_else(|| {
            let whole = folder.canonicalize().unwrap_or_else(|_| folder.clone());
            let mut name = whole.file_name().unwrap_or("model".as_ref()).to_owned();
            name.push(".gguf");
            folder.join(name)
        });
        Ok(Conversion {
            folder: folder.clone(),
            predictor: self.predictor_folder.clone(),
            output,
            out_type: self.outtype,
            container: self.container,
            pre: self.pre.clone(),
            name: self.model_name.clone(),
            force: self.force,
        })
    }
}

fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Rejects what is obviously not a checkpoint.
fn check_checkpoint(folder: &Path) -> Result<(), Failure> {
    if folder.join("config.json").exists() {
        return Ok(());
    }
    let shown = folder.display();
    let (why, help) = if is_gguf(folder) {
        ("is a GGUF file already", "`thermocline quantize` changes the type of its weights")
    } else if folder.is_dir() {
        ("is not a Hugging Face folder: it has no config.json", "name the folder of a checkpoint")
    } else {
        (
            "is not a folder",
            "checkpoints are not downloaded: `hf download USER/REPO --local-dir DIR` fetches one; `thermocline pull` fetches GGUF files",
        )
    };
    Err(Failure::new(Exit::Failed, format!("'{shown}' {why}")).help(help))
}

/// Split a model into several files: PREFIX-00001-of-00003.gguf and so on.
#[derive(Args, Clone, Debug)]
pub(crate) struct SplitArgs {
    /// GGUF file, or the first file of a split model
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,
    /// Prefix of the output file names; with --merge, the output file
    #[arg(value_name = "OUT_PREFIX")]
    pub(crate) prefix: PathBuf,
    /// Split the input; this is the default
    #[arg(long, env = "THERMOCLINE_ARG_SPLIT", value_parser = boolish())]
    #[arg(conflicts_with = "merge")]
    pub(crate) split: bool,
    /// Join the files of a split model, like `merge`
    #[arg(long, env = "THERMOCLINE_ARG_MERGE", value_parser = boolish())]
    #[arg(conflicts_with_all = ["dry_run", "no_tensor_first_split"])]
    pub(crate) merge: bool,
    /// Show the files and their sizes without writing them
    #[arg(long, env = "THERMOCLINE_ARG_DRY_RUN", value_parser = boolish())]
    pub(crate) dry_run: bool,
    /// Put only metadata into the first file
    #[arg(long, env = "THERMOCLINE_ARG_NO_TENSOR_FIRST_SPLIT", value_parser = boolish())]
    pub(crate) no_tensor_first_split: bool,
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
    pub(crate) fn job(&self) -> Split {
        Split {
            input: self.input.clone(),
            prefix: self.prefix.clone(),
            limit: self.limit(),
            no_tensor_first: self.no_tensor_first_split,
            force: self.force,
        }
    }

    fn limit(&self) -> Limit {
        self.split_max_size.or(self.split_max_tensors).unwrap_or(Limit::Tensors(MAX_TENSORS))
    }
}

fn max_tensors(text: &str) -> Result<Limit, Box<dyn Error + Send + Sync>> {
    match whole::<usize>(0..)(text)? {
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
}
