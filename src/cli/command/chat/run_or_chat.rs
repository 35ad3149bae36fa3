//! Decides between `run` and `chat`, and which flags about conversations apply.

use std::io::IsTerminal;

use clap::ArgMatches;
use clap::parser::ValueSource;

use crate::chat::Templates;
use crate::cli::args::{Command, ReasoningWhen, RunArgs};
use crate::cli::failure::Failure;
use crate::cli::terminal::Terminal;

/// The command to run. If it is not `named`: a conversation on a terminal with a model that has a
/// chat template, and wherever `-cnv` asks for one. `given` are the words of the command line and
/// of the environment, `command` what they were parsed as.
///
/// # Errors
/// Flags that contradict each other; flags about a conversation without a conversation.
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
    if asked.unwrap_or_else(|| !named && !args.conversation.chat && suits(args)) {
        return Ok(Command::Chat(args.clone()));
    }
    if !args.conversation.chat {
        given.check_raw(args, terminal)?;
    }
    Ok(command)
}

/// Whether the terminal is interactive and the model has a template. The loader reports a model
/// that cannot be read.
fn suits(args: &RunArgs) -> bool {
    let person = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let given =
        args.conversation.chat_template.is_some() || args.conversation.chat_template_file.is_some();
    let in_file = || {
        let file = runtime::file(args.model.model.as_deref()).ok()?;
        let templates = Templates::from_metadata(file.metadata()).ok()?;
        templates.default_source().map(drop)
    };
    person && (given || in_file().is_some())
}

/// # Errors
/// Flags that contradict each other.
fn check(args: &RunArgs) -> Result<(), Failure> {
    let talk = &args.conversation;
    if talk.chat && talk.conversation.is_some() {
        let flag = if talk.conversation == Some(true) {
            "-cnv starts a conversation"
        } else {
            "-no-cnv continues raw text"
        };
        let message = format!("--chat answers one message, but {flag}");
        return Err(Failure::usage(message).help("remove one of the two"));
    }
    if talk.reasoning == ReasoningWhen::On && talk.reasoning_budget == 0 {
        let message = "--reasoning on enables reasoning, but --reasoning-budget 0 disables it";
        return Err(Failure::usage(message).help("remove one of the two"));
    }
    Ok(())
}

/// The sources of the values of `run` and `chat`.
struct ValueSources<'a>(&'a ArgMatches);

impl ValueSources<'_> {
    fn on_the_line(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::CommandLine)
    }

    fn by_environment(&self, id: &str) -> bool {
        self.0.value_source(id) == Some(ValueSource::EnvVariable)
    }

    /// Whether the command line sets `id`, and `other` is only set by the environment or earlier
    /// on the command line.
    fn beats(&self, id: &str, other: &str) -> bool {
        let before = || self.on_the_line(other) && self.0.index_of(other) < self.0.index_of(id);
        self.on_the_line(id) && (self.by_environment(other) || before())
    }

    /// The command line overrides the environment, also where the two use different flags for one
    /// setting.
    fn drop_overridden(&self, args: &mut RunArgs, named: bool) {
        let talk = &mut args.conversation;
        // clap's overrides do not work here: a value from the environment would conflict with one
        // on the command line.
        if self.beats("chat_template", "chat_template_file") {
            talk.chat_template_file = None;
        }
        if self.beats("chat_template_file", "chat_template") {
            talk.chat_template = None;
        }
        if self.on_the_line("reasoning") && self.by_environment("reasoning_budget") {
            talk.reasoning_budget = -1;
        }
        let budget = self.on_the_line("reasoning_budget") && talk.reasoning_budget == 0;
        if budget && self.by_environment("reasoning") {
            talk.reasoning = ReasoningWhen::Auto;
        }
        if self.on_the_line("conversation") && self.by_environment("chat") {
            talk.chat = false;
        }
        // The environment decides only if no command is named; --chat counts as a named command.
        let named = named || self.on_the_line("chat");
        if named && self.by_environment("conversation") {
            talk.conversation = None;
        }
    }

    /// Rejects flags that only apply to conversations.
    ///
    /// # Errors
    /// Such a flag on the command line. In the environment it is only noted, since it may be meant
    /// for other runs.
    fn check_raw(&self, args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
        let talk = &args.conversation;
        let flags = [
            ("system_prompt", talk.system_prompt.is_some()),
            ("system_prompt_file", talk.system_prompt_file.is_some()),
            ("chat_template", talk.chat_template.is_some()),
            ("chat_template_file", talk.chat_template_file.is_some()),
            ("chat_template_kwargs", talk.chat_template_kwargs.is_some()),
            ("reasoning", talk.reasoning != ReasoningWhen::Auto),
            ("reasoning_budget", talk.reasoning_budget == 0),
            ("single_turn", talk.single_turn),
        ];
        for (id, _) in flags.into_iter().filter(|(_, counts)| *counts) {
            let flag = format!("--{}", id.replace('_', "-"));
            if self.on_the_line(id) {
                let message =
                    format!("{flag} applies to conversations, but this run continues raw text");
                let help = "--chat formats the prompt as a message and answers it, -cnv starts a conversation";
                return Err(Failure::usage(message).help(help));
            }
            if self.by_environment(id) {
                terminal.note(&format!(
                    "{flag}, set by the environment, only applies to conversations; this run continues raw text"
                ));
            }
        }
        Ok(())
    }
}
