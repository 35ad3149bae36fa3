//! The commands that run no model: `info`, `tokenize`, `cache`, `completions`, `man`.

use super::{CommonArgs, HubArgs, boolish};
use crate::cli::failure::Failure;
use crate::cli::texts::{escaped, piped_text, read_file, read_stdin};
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

/// Show whether a model runs here, and what its file contains.
#[derive(Args, Clone, Debug)]
pub(crate) struct InfoArgs {
    /// GGUF file or USER/REPO[:QUANT]; default: the story model
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// List all tensors
    #[arg(long, env = "THERMOCLINE_ARG_TENSORS", value_parser = boolish())]
    pub(crate) tensors: bool,
    /// Print one JSON object, with all tensors
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Show the token ids of a text, like llama-tokenize.
#[derive(Args, Clone, Debug)]
pub(crate) struct TokenizeArgs {
    /// GGUF file or USER/REPO[:QUANT]; default: the story model
    ///
    /// A file with only a vocabulary is enough.
    #[arg(short, long, value_name = "FILE", env = "THERMOCLINE_ARG_MODEL")]
    pub(crate) model: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) hub: HubArgs,
    /// The text to tokenize
    #[arg(short, long, value_name = "TEXT")]
    #[arg(conflicts_with_all = ["file", "stdin"])]
    pub(crate) prompt: Option<String>,
    /// Read the text from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "stdin")]
    pub(crate) file: Option<PathBuf>,
    /// Read the text from standard input
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Tokenize each line separately
    #[arg(long, env = "THERMOCLINE_ARG_LINES", value_parser = boolish())]
    pub(crate) lines: bool,
    /// Print only the ids: [1, 2, 3]
    #[arg(long, env = "THERMOCLINE_ARG_IDS", value_parser = boolish())]
    pub(crate) ids: bool,
    /// Do not add a BOS token
    #[arg(long, env = "THERMOCLINE_ARG_NO_BOS", value_parser = boolish())]
    pub(crate) no_bos: bool,
    /// Treat the names of special tokens as text
    #[arg(long, env = "THERMOCLINE_ARG_NO_PARSE_SPECIAL", value_parser = boolish())]
    pub(crate) no_parse_special: bool,
    /// Process the escapes \n, \t, \", \\ and \xHH in the text (--no-escape)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_ESCAPE", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) escape: bool,
    /// Print control characters of tokens to a terminal unchanged
    #[arg(long, env = "THERMOCLINE_ARG_RAW", value_parser = boolish())]
    pub(crate) raw: bool,
    /// Print the number of tokens at the end
    #[arg(long, env = "THERMOCLINE_ARG_SHOW_COUNT", value_parser = boolish())]
    pub(crate) show_count: bool,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

impl TokenizeArgs {
    /// The texts to tokenize, with escape sequences replaced.
    ///
    /// # Errors
    /// No text was given, or its file cannot be read.
    pub(crate) fn texts(&self) -> Result<Vec<String>, Failure> {
        let text = match (&self.prompt, &self.file) {
            (Some(text), _) => text.clone(),
            (None, Some(path)) => read_file(path)?,
            (None, None) if self.stdin => read_stdin()?,
            (None, None) => piped_text()?.ok_or_else(|| {
                let help = "pass it with -p TEXT, -f FILE or --stdin";
                Failure::usage("no text to tokenize").help(help)
            })?,
        };
        if !self.lines {
            return Ok(vec![escaped(text, self.escape)?]);
        }
        let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
        lines.map(|line| escaped(line.into(), self.escape)).collect()
    }
}

/// List or delete the repacked weights that are cached on disk (`run --repack-cache`).
#[derive(Args, Clone, Debug)]
pub(crate) struct CacheArgs {
    /// Whether to list or delete the cached files
    #[arg(value_enum, default_value = "list")]
    pub(crate) action: CacheAction,
    /// Cache folder; default: in the user's cache
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_REPACK_CACHE")]
    pub(crate) repack_cache: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// The actions of `cache`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheAction {
    /// Print each file, its size and its model
    List,
    /// Delete the repacked weights; a later run makes them again
    Clear,
}

/// Print a completion script: `thermocline completions bash > /etc/bash_completion.d/thermocline`.
#[derive(Args, Clone, Debug)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Write the manual pages into a folder.
#[derive(Args, Clone, Debug)]
pub(crate) struct ManArgs {
    /// The folder; it is created
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
