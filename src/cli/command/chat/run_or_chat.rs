//! Chooses between `run` and `chat`, and checks the flags that only apply to conversations.

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::chat::Templates;
use crate::cli::args::{Command, ReasoningWhen, RunArgs};
use crate::cli::failure::Failure;
use crate::cli::terminal::Terminal;

/// Returns the command to run. If the user named no command (`named` is false), a flag about
/// conversations or a chat template selects `chat`, as in llama-cli, unless `--chat` or `-no-cnv`
/// is set; `-cnv` always selects it. `command` holds the parsed flags, `given` whether each came
/// from the command line or the environment.
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
    let suits = || given.first_chat_flag(args).is_some() || has_template(args);
    if asked.unwrap_or_else(|| !named && !args.conversation.chat && suits()) {
        return Ok(Command::Chat(args.clone()));
    }
    if !args.conversation.chat {
        given.check_raw(args, terminal)?;
    }
    Ok(command)
}

/// Whether the user chose a chat template or the model has one. A model that cannot be read counts
/// as having none; the loader reports the error later.
fn has_template(args: &RunArgs) -> bool {
    let in_file = || {
        let file = runtime::file(args.model.model.as_deref()).ok()?;
        let templates = Templates::from_metadata(file.metadata()).ok()?;
        templates.default_source().map(drop)
    };
    args.conversation.template.is_chosen() || in_file().is_some()
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
        if let Some(id) = self.first_chat_flag(args) {
            let flag = long_flag(id);
            let message =
                format!("{flag} applies to conversations, but this run continues raw text");
            let help =
                "--chat formats the prompt as a message and answers it, -cnv starts a conversation";
            return Err(Failure::usage(message).help(help));
        }
        for id in chat_flags(args).filter(|id| self.set_in_environment(id)) {
            terminal.note(&format!(
                "{}, set by the environment, only applies to conversations; this run continues raw text",
                long_flag(id)
            ));
        }
        Ok(())
    }

    /// The first flag on the command line that only applies to conversations.
    fn first_chat_flag(&self, args: &RunArgs) -> Option<&'static str> {
        chat_flags(args).find(|id| self.set_on_command_line(id))
    }
}

fn long_flag(id: &str) -> String {
    format!("--{}", id.replace('_', "-"))
}

/// The flags with an effect that only apply to conversations, by clap's id.
fn chat_flags(args: &RunArgs) -> impl Iterator<Item = &'static str> {
    let conversation = &args.conversation;
    let flags = [
        ("system_prompt", conversation.system_prompt.is_some()),
        ("system_prompt_file", conversation.system_prompt_file.is_some()),
        ("chat_template", conversation.template.chat_template.is_some()),
        ("chat_template_file", conversation.template.chat_template_file.is_some()),
        ("chat_template_kwargs", conversation.template.chat_template_kwargs.is_some()),
        ("reasoning", conversation.template.reasoning != ReasoningWhen::Auto),
        ("reasoning_budget", conversation.template.reasoning_budget == 0),
        ("reasoning_effort", conversation.template.reasoning_effort.is_some()),
        ("single_turn", conversation.single_turn),
    ];
    flags.into_iter().filter(|(_, counts)| *counts).map(|(id, _)| id)
}
