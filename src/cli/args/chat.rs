//! What makes a prompt a conversation. `run` and `chat` take the same flags, as llama-cli does.

use super::boolish;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// llama.cpp's flags about conversations and their templates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct ConversationArgs {
    /// With `run`: write the prompt as a user's message by the template, answer it and end
    #[arg(long, env = "THERMOCLINE_ARG_CHAT", value_parser = boolish())]
    pub(crate) chat: bool,
    /// Whether to converse where no command is named (-cnv, -no-cnv); else it is decided by the model and the terminal
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_CONVERSATION")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) conversation: Option<bool>,
    /// End after the first answer (-st)
    #[arg(long, env = "THERMOCLINE_ARG_SINGLE_TURN", value_parser = boolish())]
    pub(crate) single_turn: bool,
    /// What the model is told about its part (-sys)
    #[arg(long, value_name = "TEXT", overrides_with = "system_prompt_file")]
    pub(crate) system_prompt: Option<String>,
    /// The same from a file, less one line end at its end (-sysf)
    #[arg(long, value_name = "FILE", overrides_with = "system_prompt")]
    pub(crate) system_prompt_file: Option<PathBuf>,
    /// The template: a name in the model file, a known layout such as chatml, or Jinja text
    #[arg(long, value_name = "NAME|JINJA", env = "THERMOCLINE_ARG_CHAT_TEMPLATE")]
    pub(crate) chat_template: Option<String>,
    /// The template from a file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_FILE")]
    pub(crate) chat_template_file: Option<PathBuf>,
    /// Further variables of the template, as a JSON object: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_KWARGS")]
    pub(crate) chat_template_kwargs: Option<String>,
    /// none leaves reasoning in the answer; else it is dimmed and not sent back
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_THINK", default_value = "auto")]
    pub(crate) reasoning_format: ReasoningFormat,
    /// Sets the template's enable_thinking; auto leaves it to the template (-rea)
    #[arg(long, value_name = "on|off|auto", env = "THERMOCLINE_ARG_REASONING")]
    #[arg(default_value = "auto")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) reasoning: ReasoningWhen,
    /// -1 leaves reasoning alone, 0 asks the template for none
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_THINK_BUDGET", default_value_t = -1)]
    #[arg(value_parser = clap::value_parser!(i32).range(-1..=0))]
    pub(crate) reasoning_budget: i32,
    /// A line goes on in the next one unless it ends in \, the reverse of what is usual (-mli)
    #[arg(long, env = "THERMOCLINE_ARG_MULTILINE_INPUT", value_parser = boolish())]
    pub(crate) multiline_input: bool,
    /// Keep what is typed in a file of the user's state folder, for the next time (--no-history)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_HISTORY", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) history: bool,
}

/// `--reasoning-format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReasoningFormat {
    /// Reasoning is told from the answer.
    #[value(alias = "deepseek", alias = "deepseek-legacy")]
    Auto,
    /// All is answer.
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
