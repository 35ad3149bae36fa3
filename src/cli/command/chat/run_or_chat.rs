//! Chooses between `run` and `chat`, and checks the flags that only apply to conversations.

use std::io::IsTerminal;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::chat::Templates;
use crate::cli::args::{Command, ReasoningWhen, RunArgs};
use crate::cli::failure::Failure;
use crate::cli::terminal::Terminal;

/// Returns the command to run. If the user named no command (`named` is false), a terminal and a
/// chat template select `chat`, unless `--chat` or `-no-cnv` is set; `-cnv` always selects it.
/// `command` holds the parsed flags, `given` whether each came from the command line or the
/// environment.
///
/// # Errors
/// Flags that contradict each other; conversation flags when `run` continues raw text.
pub(crate) fn run_or_chat(
    mut command: Command,
    named: bool,
    given: &ArgMatches,
    terminal: &Terminal,
) -> Result<Command, Failure> {
    let (Command::Run(args) | Command::Chat(args)) = &mut command else {
        return Ok(command);
    };
    let given = ValueSources(given);
    given.drop_overridden(args, named);
    check(args)?;
    let Command::Run(args) = &command else {
        return Ok(command);
    };
    let asked = args.conversation.conversation;
    if asked.unwrap_or_else(|| !named && !args.conversation.chat && suits_chat(args)) {
        return Ok(Command::Chat(args.clone()));
    }
    if !args.conversation.chat {
        given.check_raw(args, terminal)?;
    }
    Ok(command)
}

/// Whether input and output are terminals, and a flag or the model file provides a chat template.
/// A model that cannot be read counts as having none; the loader reports the error later.
fn suits_chat(args: &RunArgs) -> bool {
    let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let given = args.conversation.template.is_chosen();
    let in_file = || {
        let file = runtime::file(args.model.model.as_deref()).ok()?;
        let templates = Templates::from_metadata(file.metadata()).ok()?;
        templates.default_source().map(drop)
    };
    interactive && (given || in_file().is_some())
}

/// Rejects flags that contradict each other.
fn check(args: &RunArgs) -> Result<(), Failure> {
    let conversation = &args.conversation;
    if conversation.chat && conversation.conversation.is_some() {
        let (flag, effect) = if conversation.conversation == Some(true) {
            ("-cnv", "starts a conversation")
        } else {
            ("-no-cnv", "continues raw text")
        };
        let message = format!("--chat answers one message, but {flag} {effect}");
        return Err(Failure::usage(message).help(format!("remove --chat or {flag}")));
    }
    if conversation.template.reasoning == ReasoningWhen::On
        && conversation.template.reasoning_budget == 0
    {
        let message = "--reasoning on enables reasoning, but --reasoning-budget 0 disables it";
        let help = "remove --reasoning on or --reasoning-budget 0";
        return Err(Failure::usage(message).help(help));
    }
    Ok(())
}

/// Whether each value of `run` or `chat` came from the command line or the environment.
struct ValueSources<'a>(&'a ArgMatches);

impl ValueSources<'_> {
    fn set_on_command_line(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    fn set_in_environment(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::EnvVariable)
    }

    /// Whether the command line sets `id`, and `other` is only set by the environment or earlier
    /// on the command line.
    fn overrides(&self, id: &str, other: &str) -> bool {
        let before =
            || self.set_on_command_line(other) && self.0.index_of(other) < self.0.index_of(id);
        self.set_on_command_line(id) && (self.set_in_environment(other) || before())
    }

    /// Drops values that the command line overrides with another flag: from the environment, and
    /// an earlier `--chat-template` or `--chat-template-file`.
    fn drop_overridden(&self, args: &mut RunArgs, named: bool) {
        let conversation = &mut args.conversation;
        // clap's `overrides_with` does not work for these flags: a value from the environment would
        // conflict with a value on the command line.
        if self.overrides("chat_template", "chat_template_file") {
            conversation.template.chat_template_file = None;
        }
        if self.overrides("chat_template_file", "chat_template") {
            conversation.template.chat_template = None;
        }
        if self.set_on_command_line("reasoning") && self.set_in_environment("reasoning_budget") {
            conversation.template.reasoning_budget = -1;
        }
        let budget = self.set_on_command_line("reasoning_budget")
            && conversation.template.reasoning_budget == 0;
        if budget && self.set_in_environment("reasoning") {
            conversation.template.reasoning = ReasoningWhen::Auto;
        }
        if self.set_on_command_line("conversation") && self.set_in_environment("chat") {
            conversation.chat = false;
        }
        // The environment decides only if no command is named; --chat counts as a named command.
        let named = named || self.set_on_command_line("chat");
        if named && self.set_in_environment("conversation") {
            conversation.conversation = None;
        }
    }

    /// Rejects flags that only apply to conversations.
    ///
    /// # Errors
    /// Such a flag on the command line. In the environment, the flag may be meant for other runs,
    /// so it only causes a note.
    fn check_raw(&self, args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
        let conversation = &args.conversation;
        let flags = [
            ("system_prompt", conversation.system_prompt.is_some()),
            ("system_prompt_file", conversation.system_prompt_file.is_some()),
            ("chat_template", conversation.template.chat_template.is_some()),
            ("chat_template_file", conversation.template.chat_template_file.is_some()),
            ("chat_template_kwargs", conversation.template.chat_template_kwargs.is_some()),
            ("reasoning", conversation.template.reasoning != ReasoningWhen::Auto),
            ("reasoning_budget", conversation.template.reasoning_budget == 0),
            ("single_turn", conversation.single_turn),
        ];
        for (id, _) in flags.into_iter().filter(|(_, counts)| *counts) {
            let flag = format!("--{}", id.replace('_', "-"));
            if self.set_on_command_line(id) {
                let message =
                    format!("{flag} applies to conversations, but this run continues raw text");
                let help = "--chat formats the prompt as a message and answers it, -cnv starts a conversation";
                return Err(Failure::usage(message).help(help));
            }
            if self.set_in_environment(id) {
                terminal.note(&format!(
                    "{flag}, set by the environment, only applies to conversations; this run continues raw text"
                ));
            }
        }
        Ok(())
    }
}
