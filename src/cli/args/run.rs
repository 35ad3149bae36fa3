//! `thermocline run` and `thermocline chat`.

use super::{
    CommonArgs, ConstraintArgs, ConversationArgs, ModelArgs, SamplingArgs, boolish, whole,
};
use crate::cli::failure::Failure;
use crate::cli::texts::{escaped, piped_text, read_file, read_prompt};
use clap::Args;
use clap::builder::TypedValueParser;
use std::path::PathBuf;

/// Continue a text. The text goes to standard output, everything else to standard error.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Text")]
pub(crate) struct RunArgs {
    /// The prompt; in a conversation, the first message
    #[arg(short, long, value_name = "TEXT", overrides_with_all = ["file", "binary_file"])]
    pub(crate) prompt: Option<String>,
    /// Read the prompt from a file; - is standard input
    ///
    /// One line break at the end of the file is removed.
    #[arg(short, long, alias = "prompt-file", value_name = "FILE")]
    #[arg(overrides_with_all = ["prompt", "binary_file"])]
    pub(crate) file: Option<PathBuf>,
    /// Read the prompt from a file unchanged (-bf)
    #[arg(long, value_name = "FILE", overrides_with_all = ["prompt", "file"])]
    pub(crate) binary_file: Option<PathBuf>,
    /// Process the escapes \n, \t, \", \\ and \xHH in the prompt (--no-escape)
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
    /// Number of tokens to generate
    ///
    /// -1 generates until the model ends the text, -2 until the context is full.
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        env = "THERMOCLINE_ARG_N_PREDICT",
        default_value = "-1"
    )]
    #[arg(aliases = ["n-predict"], value_parser = whole::<i32>(-2..).map(length))]
    pub(crate) predict: Length,
    /// Stop before this text; may be repeated
    #[arg(short, long, value_name = "TEXT", env = "THERMOCLINE_ARG_STOP", visible_alias = "stop")]
    pub(crate) reverse_prompt: Vec<String>,
    /// When the context is full, drop the older half of the tokens and continue
    #[arg(
        long,
        value_name = "on|off",
        env = "THERMOCLINE_ARG_CONTEXT_SHIFT",
        default_value = "off"
    )]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) context_shift: bool,
    /// Number of prompt tokens that a context shift keeps; -1 keeps all
    ///
    /// In a conversation, everything before the first user message is always kept.
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_KEEP", default_value = "0")]
    #[arg(value_parser = whole::<i32>(-1..).map(keep))]
    pub(crate) keep: KeptTokens,
    /// File for the KV cache of the prompt: reused, then updated
    ///
    /// A run that begins with the same tokens does not compute them again. The file is valid only
    /// for the same model.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_PROMPT_CACHE")]
    pub(crate) prompt_cache: Option<PathBuf>,
    /// Also keep generated tokens in the file of --prompt-cache
    #[arg(long, env = "THERMOCLINE_ARG_PROMPT_CACHE_ALL", value_parser = boolish())]
    pub(crate) prompt_cache_all: bool,
    /// Do not update the file of --prompt-cache
    #[arg(long, env = "THERMOCLINE_ARG_PROMPT_CACHE_RO", value_parser = boolish())]
    pub(crate) prompt_cache_ro: bool,
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
    /// Print the tokens of the prompt on standard error
    #[arg(long, env = "THERMOCLINE_ARG_VERBOSE_PROMPT", value_parser = boolish())]
    pub(crate) verbose_prompt: bool,
    /// Print special tokens as well (-sp)
    #[arg(long, env = "THERMOCLINE_ARG_SPECIAL", value_parser = boolish())]
    pub(crate) special: bool,
    /// Write control characters of the text to a terminal unchanged
    ///
    /// Without it, a terminal shows a picture of each, so that a model or file cannot control it.
    /// Files and pipes always get the text unchanged.
    #[arg(long, env = "THERMOCLINE_ARG_RAW", value_parser = boolish())]
    pub(crate) raw: bool,
    /// Print timings and density on standard error at the end (--no-perf)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_PERF", default_value = "on")]
    #[arg(alias = "show-timings")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) perf: bool,
    /// Print timings, density and notes on standard error as JSON
    #[arg(long, env = "THERMOCLINE_ARG_JSON", value_parser = boolish())]
    pub(crate) json: bool,
    /// Write a timeline for ui.perfetto.dev or chrome://tracing
    ///
    /// The timeline has a row for each device, with attention and neurons of each layer, copies and
    /// hand-offs.
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_TRACE")]
    pub(crate) trace: Option<PathBuf>,
    /// Collect profiles and train predictors automatically (--no-auto-profile)
    ///
    /// Until the model has a profile, each run ends by collecting a part of it, for at most a
    /// second. Before a run, missing predictors or thresholds that --sparsity needs are trained.
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_AUTO_PROFILE", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) auto_profile: bool,
    #[command(flatten)]
    pub(crate) conversation: ConversationArgs,
    #[command(flatten)]
    pub(crate) constraint: ConstraintArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) common: CommonArgs,
}

/// `-n`: how long to generate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// Until the model ends the text.
    Endless,
    /// Until the context is full.
    FillContext,
    /// At most this number of tokens.
    Tokens(u32),
}

pub(super) fn length(n: i32) -> Length {
    match u32::try_from(n) {
        Ok(n) => Length::Tokens(n),
        Err(_) if n == -1 => Length::Endless,
        Err(_) => Length::FillContext,
    }
}

impl Length {
    /// The limit, if the user set one.
    pub(crate) fn tokens(self) -> Option<usize> {
        match self {
            Self::Endless | Self::FillContext => None,
            Self::Tokens(n) => Some(n as usize),
        }
    }
}

/// `--keep`: the tokens that a context shift keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeptTokens {
    /// The whole prompt.
    Prompt,
    /// This number of tokens from the start of the prompt.
    Tokens(u32),
}

fn keep(n: i32) -> KeptTokens {
    u32::try_from(n).map_or(KeptTokens::Prompt, KeptTokens::Tokens)
}

impl RunArgs {
    /// Uses piped text as the prompt if no flag gives one.
    ///
    /// # Errors
    /// Standard input cannot be read or is not UTF-8.
    pub(crate) fn with_piped_text(mut self) -> Result<Self, Failure> {
        let has_text = self.prompt.is_some() || self.file.is_some() || self.binary_file.is_some();
        if !has_text {
            self.prompt = piped_text()?;
        }
        Ok(self)
    }

    /// Puts the text that is piped to the program before the prompt, as ollama does for a prompt
    /// without a flag.
    ///
    /// # Errors
    /// Standard input cannot be read or is not UTF-8.
    pub(crate) fn prepend_piped_text(&mut self) -> Result<(), Failure> {
        if let (Some(piped), Some(prompt)) = (piped_text()?, &mut self.prompt) {
            *prompt = format!("{piped}\n{prompt}");
        }
        Ok(())
    }

    /// Reads the files that flags name and replaces escapes. Afterwards `prompt`, `reverse_prompt`,
    /// `system_prompt` and `chat_template` hold the final texts. Call it once: a second call would
    /// replace escapes again.
    ///
    /// # Errors
    /// A file that cannot be read; escapes that produce invalid UTF-8.
    pub(crate) fn resolve(mut self) -> Result<Self, Failure> {
        let prompt = match (self.file.take(), self.binary_file.take()) {
            (Some(path), _) => Some(read_prompt(&path)?),
            (None, Some(path)) => Some(read_file(&path)?),
            (None, None) => self.prompt.take(),
        };
        self.prompt = prompt.map(|text| escaped(text, self.escape)).transpose()?;
        let stops = self.reverse_prompt.into_iter().map(|stop| escaped(stop, self.escape));
        self.reverse_prompt = stops.collect::<Result<_, _>>()?;
        self.conversation = self.conversation.resolve(self.escape)?;
        self.constraint = self.constraint.resolve()?;
        self.sampling = self.sampling.resolve(self.escape)?;
        Ok(self)
    }
}
