//! `thermocline run` and `thermocline chat`.

use super::{CommonArgs, ConversationArgs, ModelArgs, SamplingArgs, boolish};
use clap::Args;
use std::path::PathBuf;

/// Where text comes from and how it goes on. It goes to standard output, all else to standard error.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Text")]
pub(crate) struct RunArgs {
    /// The prompt; in a conversation, the first message
    #[arg(short, long, value_name = "TEXT", overrides_with_all = ["file", "binary_file"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file, less one line end at its end; - is standard input
    #[arg(short, long, value_name = "FILE", overrides_with_all = ["prompt", "binary_file"])]
    pub(crate) file: Option<PathBuf>,
    /// Read the prompt from a file as it is (-bf)
    #[arg(long, value_name = "FILE", overrides_with_all = ["prompt", "file"])]
    pub(crate) binary_file: Option<PathBuf>,
    /// Take \n, \t, \", \\ and \xHH in the prompt as characters (--no-escape)
    #[arg(
        short,
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_ESCAPE",
        default_value = "on"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) escape: bool,
    /// Tokens to generate; -1 until the model ends, -2 until the context is full
    #[arg(short = 'n', long, value_name = "N", env = "THERMOCLINE_ARG_N_PREDICT", default_value_t = -1)]
    #[arg(aliases = ["n-predict"], value_parser = clap::value_parser!(i32).range(-2..))]
    pub(crate) predict: i32,
    /// Stop before this text; may be repeated
    #[arg(short, long, value_name = "TEXT", env = "THERMOCLINE_ARG_STOP", visible_alias = "stop")]
    pub(crate) reverse_prompt: Vec<String>,
    /// When the context is full, drop the older half of the text and go on
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_CONTEXT_SHIFT",
        default_value = "off"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) context_shift: bool,
    /// Prompt tokens that a context shift keeps; -1 all. In a conversation, what stands before the first message always stays
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_KEEP", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..))]
    pub(crate) keep: i32,
    /// Print the prompt before its continuation (--no-display-prompt)
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_DISPLAY_PROMPT",
        default_value = "on"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) display_prompt: bool,
    /// List the tokens of the prompt on standard error
    #[arg(long, env = "THERMOCLINE_ARG_VERBOSE_PROMPT", value_parser = boolish())]
    pub(crate) verbose_prompt: bool,
    /// Print special tokens too (-sp)
    #[arg(long, env = "THERMOCLINE_ARG_SPECIAL", value_parser = boolish())]
    pub(crate) special: bool,
    /// Timings and density on standard error at the end (--no-perf)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_PERF", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) perf: bool,
    /// Timings and density as one JSON object
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    /// Write what ran when on which device to this file, for ui.perfetto.dev or chrome://tracing: a row for each device,
    /// each layer's parts, copies and hand-offs
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TRACE")]
    pub(crate) trace: Option<PathBuf>,
    /// Take a short profile of a model that has none from what is done with it, for at most a second after the text; and
    /// where --sparsity needs a predictor or thresholds that nobody has made, make them first (--no-auto-profile)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_AUTO_PROFILE", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) auto_profile: bool,
    #[command(flatten)]
    pub(crate) conversation: ConversationArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}
