//! Conversation flags. `run` and `chat` accept the same flags, because llama-cli has one set of
//! flags for both modes.

use super::{boolish, whole};
use crate::cli::failure::{Exit, Failure};
use crate::cli::folders;
use crate::cli::texts::{escaped, read_prompt};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value};
use std::convert::Infallible;
use std::io::Read;
use std::path::{Path, PathBuf};

/// llama.cpp's flags for conversations and chat templates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct ConversationArgs {
    /// With `run`: format the prompt as a user message, answer it and exit
    #[arg(long, env = "THERMOCLINE_ARG_CHAT", value_parser = boolish())]
    pub(crate) chat: bool,
    /// Start a conversation (-cnv) or continue raw text (-no-cnv)
    ///
    /// Default without a command: a conversation if there is a chat template or a conversation
    /// flag.
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
    #[command(flatten)]
    pub(crate) template: TemplateArgs,
    /// Enter inserts a newline; end a line with \ to send (-mli)
    #[arg(long, env = "THERMOCLINE_ARG_MULTILINE_INPUT", value_parser = boolish())]
    pub(crate) multiline_input: bool,
    /// Keep the input history in the user's state folder (--no-history)
    #[arg(long, value_name = "on|off", env = "THERMOCLINE_ARG_HISTORY", default_value = "on")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    #[arg(value_parser = boolish())]
    pub(crate) history: bool,
}

/// Flags about the chat template and about reasoning, which the server has too.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Conversation")]
pub(crate) struct TemplateArgs {
    /// The chat template: a known name such as chatml, or Jinja text
    ///
    /// A name selects a template of the model file, or else a built-in template. A text with spaces
    /// or tags is a template.
    #[arg(long, value_name = "NAME|JINJA", env = "THERMOCLINE_ARG_CHAT_TEMPLATE")]
    #[arg(value_parser = template)]
    pub(crate) chat_template: Option<TemplateChoice>,
    /// Read the chat template from a file
    #[arg(long, value_name = "FILE", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_FILE")]
    pub(crate) chat_template_file: Option<PathBuf>,
    /// Variables for the template, as JSON: {"enable_thinking": false}
    #[arg(long, value_name = "JSON", env = "THERMOCLINE_ARG_CHAT_TEMPLATE_KWARGS")]
    #[arg(value_parser = variables)]
    pub(crate) chat_template_kwargs: Option<Variables>,
    /// How to treat reasoning in answers
    ///
    /// auto dims the reasoning and does not send it back to the model; none keeps it in the answer.
    #[arg(long, value_name = "HOW", env = "THERMOCLINE_ARG_THINK", default_value = "auto")]
    pub(crate) reasoning_format: ReasoningFormat,
    /// Set the template's enable_thinking variable (-rea)
    #[arg(long, value_name = "on|off|auto", env = "THERMOCLINE_ARG_REASONING")]
    #[arg(default_value = "auto")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "on")]
    pub(crate) reasoning: ReasoningWhen,
    /// Set the template's reasoning_effort variable: low, medium, high
    #[arg(long, value_name = "LEVEL", env = "THERMOCLINE_ARG_REASONING_EFFORT")]
    pub(crate) reasoning_effort: Option<String>,
    /// Reasoning budget: -1 for no limit, 0 for no reasoning
    #[arg(long, value_name = "N", env = "THERMOCLINE_ARG_THINK_BUDGET", default_value_t = -1)]
    #[arg(value_parser = whole::<i32>(-1..=0))]
    pub(crate) reasoning_budget: i32,
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
    /// Set enable_thinking to true.
    #[value(alias = "true", alias = "1")]
    On,
    /// Set enable_thinking to false.
    #[value(alias = "false", alias = "0")]
    Off,
    /// Leave enable_thinking to the template.
    Auto,
}

/// A chat template that the user chose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplateChoice {
    /// The model file's template of this name, else the built-in template.
    Named(String),
    /// Jinja text.
    Source(String),
}

fn template(text: &str) -> Result<TemplateChoice, Infallible> {
    // Names have no spaces: other text is a template, even one without tags.
    let is_source =
        text.contains("{{") || text.contains("{%") || text.contains(char::is_whitespace);
    let choice = if is_source { TemplateChoice::Source } else { TemplateChoice::Named };
    Ok(choice(text.to_owned()))
}

/// Reads at most one byte more than a template may have, so that `/dev/zero` does not hang.
fn read_template(path: &Path) -> Result<TemplateChoice, Failure> {
    let mut text = String::new();
    let most = crate::chat::MAX_TEMPLATE as u64 + 1;
    let read = std::fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text));
    read.map_err(|e| {
        let message = format!("cannot read the template in '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&e)
    })?;
    Ok(TemplateChoice::Source(text))
}

/// Variables of a template.
pub(crate) type Variables = Map<String, Value>;

fn variables(text: &str) -> Result<Variables, Failure> {
    serde_json::from_str(text).map_err(|e| {
        Failure::usage("--chat-template-kwargs is not a JSON object")
            .caused_by(&e)
            .help(r#"write it as {"enable_thinking": false}"#)
    })
}

impl ConversationArgs {
    /// Reads the files that flags name, and replaces escape sequences in the system message.
    ///
    /// # Errors
    /// A file that cannot be read; escapes that produce invalid UTF-8.
    pub(super) fn resolve(mut self, escape: bool) -> Result<Self, Failure> {
        let system = match self.system_prompt_file.take() {
            Some(path) => Some(read_prompt(&path)?),
            None => self.system_prompt,
        };
        let system = system.map(|text| escaped(text, escape)).transpose()?;
        self.system_prompt = system.filter(|text| !text.is_empty());
        self.template = self.template.resolve()?;
        Ok(self)
    }

    /// Path of the input history; `None` if no history is kept.
    pub(crate) fn history_file(&self) -> Option<PathBuf> {
        if self.history { folders::chat_history() } else { None }
    }
}

impl TemplateArgs {
    /// Replaces the file flag with the file's text.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub(crate) fn resolve(mut self) -> Result<Self, Failure> {
        if let Some(path) = self.chat_template_file.take() {
            self.chat_template = Some(read_template(&path)?);
        }
        Ok(self)
    }

    /// Whether the user selects a template.
    pub(crate) fn is_chosen(&self) -> bool {
        self.chat_template.is_some() || self.chat_template_file.is_some()
    }

    /// The template's variables. --chat-template-kwargs overrides the reasoning flags.
    pub(crate) fn variables(&self) -> Variables {
        let thinks = match self.reasoning {
            _ if self.reasoning_budget == 0 => Some(false),
            ReasoningWhen::On => Some(true),
            ReasoningWhen::Off => Some(false),
            ReasoningWhen::Auto => None,
        };
        let thinks = thinks.map(|thinks| ("enable_thinking".to_owned(), thinks.into()));
        let effort = self.reasoning_effort.as_deref();
        let effort = effort.map(|effort| ("reasoning_effort".to_owned(), effort.into()));
        thinks
            .into_iter()
            .chain(effort)
            .chain(self.chat_template_kwargs.clone().unwrap_or_default())
            .collect()
    }

    /// Whether reasoning is separated from the answer.
    pub(crate) fn splits_reasoning(&self) -> bool {
        self.reasoning_format != ReasoningFormat::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn parsed(line: &[&str]) -> Result<ConversationArgs, clap::Error> {
        let words = [&["thermocline", "chat"][..], line].concat();
        let Command::Chat(args) = Cli::try_parse_from(words)?.command else {
            panic!("the parsed command is not chat");
        };
        Ok(args.conversation)
    }

    fn resolved(line: &[&str]) -> Result<ConversationArgs, Failure> {
        parsed(line).unwrap().resolve(true)
    }

    #[test]
    fn a_template_is_a_name_or_a_text() {
        let choice =
            |text: &str| resolved(&["--chat-template", text]).unwrap().template.chat_template;
        assert_eq!(choice("chatml"), Some(TemplateChoice::Named("chatml".into())));
        for source in ["{{ x }}", "A text without tags."] {
            assert_eq!(choice(source), Some(TemplateChoice::Source(source.into())));
        }
        assert_eq!(resolved(&[]).unwrap().template.chat_template, None);
        let gone = resolved(&["--chat-template-file", "gone.jinja"]).unwrap_err();
        assert!(gone.message.contains("gone.jinja"));
    }

    #[test]
    fn variables_come_from_the_flags_and_the_json_wins() {
        let thinks = |line: &[&str]| {
            resolved(line).unwrap().template.variables().get("enable_thinking").cloned()
        };
        assert_eq!(thinks(&[]), None);
        assert_eq!(thinks(&["--reasoning=off"]), Some(false.into()));
        assert_eq!(thinks(&["--reasoning-budget", "0"]), Some(false.into()));
        let effort = resolved(&["--reasoning-effort", "low"]).unwrap().template.variables();
        assert_eq!(effort.get("reasoning_effort"), Some(&"low".into()));
        let both = ["--reasoning=off", "--chat-template-kwargs", r#"{"enable_thinking":true}"#];
        assert_eq!(thinks(&both), Some(true.into()));
        for wrong in ["[]", "{", "1"] {
            let error = parsed(&["--chat-template-kwargs", wrong]).unwrap_err();
            assert_eq!(Failure::of_clap(&error).unwrap().exit, Exit::Usage);
        }
    }

    #[test]
    fn a_system_message_has_its_escapes_replaced() {
        let system = |text| resolved(&["--system-prompt", text]).unwrap().system_prompt;
        assert_eq!(system(r"a\nb").as_deref(), Some("a\nb"));
        assert_eq!(system(""), None);
    }
}
