//! `thermocline profile`.

use super::{CommonArgs, ModelArgs, boolish};
use clap::Args;
use std::path::PathBuf;

/// Find out which neurons of a model fire how often, how much they count and which fire together, by running a text
/// through it; keep that in a file beside the model. A run that was stopped goes on where it was.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Profile")]
pub(crate) struct ProfileArgs {
    /// The text; - is standard input; without it a varied text that comes with the program
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Tokens of the text to use, at most
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_TOKENS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tokens: Option<u32>,
    /// The file to keep it in; without it MODEL.thermocline.gguf beside the model, or in the user's cache where the
    /// model's folder cannot be written
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_OUT")]
    pub(crate) out: Option<PathBuf>,
    /// Begin anew, whatever is there of this or another model
    #[arg(long, env = "THERMOCLINE_ARG_RESTART", value_parser = boolish())]
    pub(crate) restart: bool,
    /// Take PowerInfer's counts, activation_0.pt and so on in this folder, instead of running a text
    #[arg(long, value_name = "DIR", env = "THERMOCLINE_ARG_IMPORT", conflicts_with_all = ["file", "tokens"])]
    pub(crate) import: Option<PathBuf>,
    /// Say how good the choice in PowerInfer's file of this kind is (MODEL.generated.gpuidx)
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_COMPARE")]
    pub(crate) compare: Option<PathBuf>,
    /// Draw the profile as an SVG picture
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PLOT")]
    pub(crate) plot: Option<PathBuf>,
    /// The report as one JSON object on standard output
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
