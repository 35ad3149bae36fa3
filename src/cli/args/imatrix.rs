//! `thermocline imatrix`.

use super::perplexity::{Limit, chunk_limit};
use super::{CommonArgs, ModelArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::texts::{piped_text, read_prompt};
use clap::builder::TypedValueParser;
use clap::{Args, ValueEnum};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Collect an importance matrix for `quantize --imatrix`: how large the inputs of each matrix are on
/// a text.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Importance matrix")]
pub(crate) struct ImatrixArgs {
    /// File with the text; - is standard input
    #[arg(short, long, value_name = "FILE", overrides_with = "prompt")]
    pub(crate) file: Option<PathBuf>,
    /// The text
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// Output file (--output-file)
    #[arg(short, long, alias = "output-file", value_name = "FILE", default_value = "imatrix.gguf")]
    #[arg(env = "THERMOCLINE_ARG_IMATRIX_OUTPUT")]
    pub(crate) output: PathBuf,
    /// Form of the output file
    #[arg(
        long,
        value_name = "FORM",
        env = "THERMOCLINE_ARG_OUTPUT_FORMAT",
        default_value = "gguf"
    )]
    pub(crate) output_format: ImatrixFormat,
    /// Number of chunks to use; -1 is all
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_CHUNKS", default_value = "-1")]
    #[arg(value_parser = whole::<i32>(-1..).try_map(chunk_limit))]
    pub(crate) chunks: Limit,
    /// Number of chunks to skip first (--from-chunk)
    #[arg(long, alias = "from-chunk", value_name = "N", env = "THERMOCLINE_ARG_CHUNK")]
    #[arg(default_value = "0", value_parser = whole::<u32>(0..).map(|n| n as usize))]
    pub(crate) chunk: usize,
    /// Write the output file every N chunks (-ofreq)
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_OUTPUT_FREQUENCY")]
    #[arg(default_value = "10", value_parser = frequency)]
    pub(crate) output_frequency: Frequency,
    /// Keep a copy of the output file every N chunks; 0 keeps none
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_SAVE_FREQUENCY")]
    #[arg(default_value = "0", value_parser = frequency)]
    pub(crate) save_frequency: Frequency,
    /// Add the sums of an existing file; may be repeated
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_IN_FILE")]
    pub(crate) in_file: Vec<PathBuf>,
    /// Also collect the inputs of the output matrix
    #[arg(long, env = "THERMOCLINE_ARG_PROCESS_OUTPUT", value_parser = boolish())]
    pub(crate) process_output: bool,
    /// Also measure the perplexity (--no-ppl)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_PPL", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) ppl: bool,
    /// Read special tokens in the text
    #[arg(long, env = "THERMOCLINE_ARG_PARSE_SPECIAL", value_parser = boolish())]
    pub(crate) parse_special: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `--output-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ImatrixFormat {
    /// GGUF, as llama.cpp writes it.
    Gguf,
    /// The older form without counts per expert.
    Dat,
}

/// A number of chunks; `None` for never.
pub(crate) type Frequency = Option<NonZeroUsize>;

fn frequency(text: &str) -> Result<Frequency, String> {
    whole::<u32>(0..)(text).map(|n| NonZeroUsize::new(n as usize))
}

impl ImatrixArgs {
    /// The text, read as llama.cpp reads a prompt file; `None` if only files are to be merged.
    ///
    /// # Errors
    /// No text was given, or its file cannot be read.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        if let Some(text) = &self.prompt {
            return Ok(Some(text.clone()));
        }
        match &self.file {
            Some(path) => read_prompt(path).map(Some),
            None if !self.in_file.is_empty() => Ok(None),
            None => match piped_text()? {
                Some(text) => Ok(Some(text)),
                None => Err(Failure::usage("no text to collect the inputs on")
                    .help("pass it with -f FILE; a few hundred kilobytes are enough")),
            },
        }
    }

    /// The name of the text in the output file; `None` without a file.
    pub(crate) fn dataset(&self) -> Option<String> {
        let file = self.file.as_deref().filter(|_| self.prompt.is_none());
        file.map(|path: &Path| path.display().to_string())
    }
}
