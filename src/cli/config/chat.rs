//! Options of a conversation.

use super::model::user_folder;
use super::text::{escaped, read_file};
use crate::cli::args::{ConversationArgs, ReasoningFormat, ReasoningWhen};
use crate::cli::failure::{Exit, Failure};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The flags about conversations, resolved.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConversationOptions {
    /// `run --chat`: format the prompt by the template.
    pub(crate) once: bool,
    /// Whether to start a conversation; `None` if the user did not say.
    pub(crate) wanted: Option<bool>,
    /// End after the first answer.
    pub(crate) single_turn: bool,
    /// The system message, escapes replaced.
    pub(crate) system: Option<String>,
    /// Source of the template.
    pub(crate) template: TemplateChoice,
    /// Further variables of the template.
    pub(crate) variables: Map<String, Value>,
    /// Separate reasoning from the answer.
    pub(crate) splits_reasoning: bool,
    /// Enter inserts a newline and a `\` at the end of a line sends; otherwise the reverse.
    pub(crate) multiline: bool,
    /// Path of the input history; `None` keeps none.
    pub(crate) history: Option<PathBuf>,
}

/// Source of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplateChoice {
    /// The model file's own, if it has one.
    OfModel,
    /// A template of the model file by name, else a built-in layout.
    Named(String),
    /// This Jinja text.
    Source(String),
}

impl ConversationOptions {
    /// # Errors
    /// Files that cannot be read, and variables that are not a JSON object.
    pub(super) fn resolve(args: &ConversationArgs, escape: bool) -> Result<Self, Failure> {
        Ok(Self {
            once: args.chat,
            wanted: args.conversation,
            single_turn: args.single_turn,
            system: system(args, escape)?,
            template: template(args)?,
            variables: variables(args)?,
            splits_reasoning: args.reasoning_format != ReasoningFormat::None,
            multiline: args.multiline_input,
            history: args.history.then(history).flatten(),
        })
    }
}

fn system(args: &ConversationArgs, escape: bool) -> Result<Option<String>, Failure> {
    let text = match (&args.system_prompt_file, &args.system_prompt) {
        (Some(path), _) => {
            let mut text = read_file(path)?;
            if text.ends_with('\n') {
                text.pop();
            }
            text
        }
        (None, Some(text)) => text.clone(),
        (None, None) => return Ok(None),
    };
    escaped(text, escape).map(|text| Some(text).filter(|text| !text.is_empty()))
}

fn template(args: &ConversationArgs) -> Result<TemplateChoice, Failure> {
    if let Some(path) = &args.chat_template_file {
        return read_template(path).map(TemplateChoice::Source);
    }
    Ok(match &args.chat_template {
        None => TemplateChoice::OfModel,
        Some(text) if text.contains("{{") || text.contains("{%") => {
            TemplateChoice::Source(text.clone())
        }
        Some(name) => TemplateChoice::Named(name.clone()),
    })
}

/// Reads at most the maximum size of a template, so that a wrong path (`/dev/zero`) does not hang.
fn read_template(path: &Path) -> Result<String, Failure> {
    use std::io::Read;
    let mut text = String::new();
    let most = crate::chat::MAX_TEMPLATE as u64 + 1;
    let read = std::fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text));
    read.map_err(|e| {
        let message = format!("cannot read the template in '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&e)
    })?;
    Ok(text)
}

fn variables(args: &ConversationArgs) -> Result<Map<String, Value>, Failure> {
    let mut variables = Map::new();
    let thinks = match args.reasoning {
        _ if args.reasoning_budget == 0 => Some(false),
        ReasoningWhen::On => Some(true),
        ReasoningWhen::Off => Some(false),
        ReasoningWhen::Auto => None,
    };
    if let Some(thinks) = thinks {
        variables.insert("enable_thinking".into(), thinks.into());
    }
    if let Some(text) = &args.chat_template_kwargs {
        let given: Map<String, Value> = serde_json::from_str(text).map_err(|e| {
            Failure::usage("--chat-template-kwargs is not a JSON object")
                .caused_by(&e)
                .help(r#"write it as {"enable_thinking": false}"#)
        })?;
        variables.extend(given);
    }
    Ok(variables)
}

/// The file of the input history.
fn history() -> Option<PathBuf> {
    #[allow(clippy::disallowed_methods)] // the environment is read on this floor
    let folder = user_state(|name| std::env::var_os(name))?;
    Some(folder.join("thermocline").join("chat_history"))
}

/// The user's folder for program state, by each system's convention.
fn user_state(env: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    user_folder(env, "XDG_STATE_HOME", ".local/state", "Library/Application Support")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn resolved(line: &[&str]) -> Result<ConversationOptions, Failure> {
        let words = [&["thermocline", "chat"][..], line].concat();
        let Command::Chat(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("chat was parsed");
        };
        ConversationOptions::resolve(&args.conversation, true)
    }

    #[test]
    fn a_template_is_a_name_or_a_text() {
        let choice = |text: &str| resolved(&["--chat-template", text]).unwrap().template;
        assert_eq!(choice("chatml"), TemplateChoice::Named("chatml".into()));
        assert_eq!(choice("{{ x }}"), TemplateChoice::Source("{{ x }}".into()));
        assert_eq!(resolved(&[]).unwrap().template, TemplateChoice::OfModel);
        let gone = resolved(&["--chat-template-file", "gone.jinja"]).unwrap_err();
        assert!(gone.message.contains("gone.jinja"));
    }

    #[test]
    fn variables_come_from_the_flags_and_the_json_wins() {
        let thinks =
            |line: &[&str]| resolved(line).unwrap().variables.get("enable_thinking").cloned();
        assert_eq!(thinks(&[]), None);
        assert_eq!(thinks(&["--reasoning=off"]), Some(false.into()));
        assert_eq!(thinks(&["--reasoning-budget", "0"]), Some(false.into()));
        let both = ["--reasoning=off", "--chat-template-kwargs", r#"{"enable_thinking":true}"#];
        assert_eq!(thinks(&both), Some(true.into()));
        for wrong in ["[]", "{", "1"] {
            let failure = resolved(&["--chat-template-kwargs", wrong]).unwrap_err();
            assert_eq!(failure.exit, Exit::Usage);
        }
    }

    #[test]
    fn a_system_message_has_its_escapes_replaced() {
        assert_eq!(resolved(&["--system-prompt", r"a\nb"]).unwrap().system.unwrap(), "a\nb");
        assert_eq!(resolved(&["--system-prompt", ""]).unwrap().system, None);
    }

    #[test]
    #[cfg(all(unix, not(target_os = "macos")))]
    fn the_history_is_in_the_state_folder() {
        let home = |name: &str| (name == "HOME").then(|| "/home/me".into());
        assert_eq!(user_state(home), Some("/home/me/.local/state".into()));
        assert_eq!(user_state(|_| None), None);
    }
}
