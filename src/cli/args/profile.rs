//! `thermocline profile`.

use super::{CommonArgs, ModelArgs, boolish, whole};
use crate::cli::failure::Failure;
use crate::cli::texts::read_file;
use clap::Args;
use clap::builder::TypedValueParser;
use std::path::PathBuf;

/// Flags of `profile`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Profile")]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) source: ProfileSourceArgs,
    /// Evaluate PowerInfer's choice of GPU neurons (MODEL.generated.gpuidx)
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_COMPARE")]
    pub(crate) compare: Option<PathBuf>,
    /// Draw the profile as an SVG file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PLOT")]
    pub(crate) plot: Option<PathBuf>,
    /// Print the report as one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// Flags for the text of a profile and its output file.
#[derive(Args, Clone, Debug)]
pub(crate) struct ProfileSourceArgs {
    /// File with the text; - is standard input; default: a varied built-in text
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Maximum number of tokens to use
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOKENS")]
    #[arg(value_parser = whole::<u32>(1..).map(|n| n as usize))]
    pub(crate) tokens: Option<usize>,
    /// Output file; default: MODEL.thermocline.gguf beside the model
    ///
    /// If the model's folder is not writable, the default is in the user's cache.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_OUT")]
    pub(crate) out: Option<PathBuf>,
    /// Start over and replace an existing profile
    #[arg(long, env = "THERMOCLINE_ARG_RESTART", value_parser = boolish())]
    pub(crate) restart: bool,
    /// Import PowerInfer's counts (activation_0.pt, ...) from this folder
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_IMPORT", conflicts_with_all = ["file", "tokens"])]
    pub(crate) import: Option<PathBuf>,
}

impl ProfileSourceArgs {
    /// The user's text; `None` selects the built-in text.
    ///
    /// # Errors
    /// A text that cannot be read.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        self.file.as_deref().map(read_file).transpose()
    }

    /// Whether the user asks for a new profile.
    pub(crate) fn wants_new_profile(&self) -> bool {
        self.restart || self.file.is_some() || self.tokens.is_some()
    }
}
