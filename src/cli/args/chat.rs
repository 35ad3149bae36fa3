//! Flags that turn a prompt into a conversation. `run` and `chat` take the same flags, as llama-cli does.

use super::boolish;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// llama.cpp's flags about conversations and their templates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct ConversationArgs {
    /// With `run`: format the prompt as a user message, answer it and exit
    #[arg(long, env = "THERMOCLINE_ARG_CHAT", value_parser = boolish())]
    pub(crate) chat: bool,
    /// Start a conversation when no command is given (-cnv, -no-cnv)
    ///
    /// By default, a conversation starts on a terminal if the model has a chat template.
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_CONVERSATION")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) conversation: Option<bool>,
    /// Exit after the first answer (-st)
    #[arg(long, env = "THERMOCLINE_ARG_SINGLE_TURN", value_parser = boolish())]
    pub(crate) single_turn: bool,
    /// The system message (-sys)
    #[arg(long, value_name = "TEXT", overrides_with = "system_prompt_file")]
    pub(crate) system_prompt: Option<String>,
    /// Read the system message from a file (-sysf)
    ///
    /// One line break at the end of the file is removed.
    #[arg(long, value_name = "FILE", overrides_with = "system_prompt")]
    pub(crate) system_prompt_file: Option<PathBuf>,
    /// The chat template: a known name such as chatml, or Jinja text
    ///
    /// A name refers to a template of the model file first, then to the built-in layouts.
    #[arg(long, value_name = "NAME|JINJA", env = "THERMOCLINE_ARG_CHAT_TEMPLATE")]
    pub(crate) chat_template: Option<String>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_FILE")]
    pub(crate) chat_template_file: Option<PathBuf>,
    /// Variables for the template, as JSON: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_KWARGS")]
    pub(crate) chat_template_kwargs: Option<String>,
    /// How to treat reasoning in answers
    ///
    /// auto dims it and does not send it back to the model; none leaves it in the answer.
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_THINK", default_value = "auto")]
    pub(crate) reasoning_format: ReasoningFormat,
    /// Set the template's enable_thinking (-rea)
    #[arg(long, value_name = "on|off|auto", env = "THERMOCLINE_ARG_REASONING")]
    #[arg(default_value = "auto")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) reasoning: ReasoningWhen,
    /// Reasoning budget: -1 for no limit, 0 for no reasoning
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_THINK_BUDGET", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=0))]
    pub(crate) reasoning_budget: i32,
    /// Enter inserts a newline; end a line with \ to send (-mli)
    #[arg(long, env = "THERMOCLINE_ARG_MULTILINE_INPUT", value_parser = boolish())]
    pub(crate) multiline_input: bool,
    /// Keep the input history in the user's state folder (--no-history)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_HISTORY", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) history: bool,
}

/// `--reasoning-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningFormat {
    /// Reasoning is separated from the answer.
    #[value(alias = "deepseek", alias = "deepseek-legacy")]
    Auto,
    /// Reasoning stays in the answer.
    None,
}

/// `--reasoning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningWhen {
    /// The template is asked to reason.
    #[value(alias = "true", alias = "1")]
    On,
    /// The template is asked not to.
    #[value(alias = "false", alias = "0")]
    Off,
    /// The template decides.
    Auto,
}
