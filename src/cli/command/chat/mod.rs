//! `thermocline chat`, and the code that `run --chat` shares with it.

mod complete;
pub(super) mod dialogue;
mod input;
mod run_or_chat;
mod saved;
mod settings;
mod show;
mod slash;
mod turn;

use super::run;
use super::trace::Trace;
use crate::cli::args::RunArgs;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use input::{Input, InputLine};
pub(crate) use run_or_chat::run_or_chat;
use slash::EnteredLine;
use turn::{Chat, TurnEnd};

/// Holds a conversation: with a line editor on a terminal, otherwise with one message per line of
/// standard input.
///
/// # Errors
/// `-no-cnv`, a model or template that cannot be used, a trace that cannot be written, an
/// interrupt; without a terminal, also any error that ends a turn.
pub(crate) fn run(args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
    if args.conversation.conversation == Some(false) {
        let help = "use `chat` without -no-cnv for a conversation, or `run` to continue raw text";
        return Err(
            Failure::usage("`chat` starts a conversation, but -no-cnv disables it").help(help)
        );
    }
    // The line editor installs a Ctrl-C handler too; ours must be installed last.
    let mut input = Input::open(&args.conversation, terminal);
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(args.trace.as_deref())?;
    let mut ready = run::load_model(&args.model, args.auto_profile, &interrupt, terminal)?;
    if interrupt.is_set() {
        return Err(Failure::interrupted());
    }
    trace.watch(&mut ready.engine, "chat");
    let mut chat = Chat::new(args, ready, terminal)?;
    if input.is_interactive() {
        terminal.note(&chat.banner());
        terminal.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D exits");
        chat.show_timings(args.perf);
    } else {
        chat.show_timings(args.perf && terminal.verbose > 0);
    }
    let ended = converse(&mut chat, &mut input, &interrupt, args);
    let saved = chat.close(&interrupt);
    let written = trace.finish(terminal);
    ended.and(saved).and(written)
}

/// `run --chat`: answers one message.
///
/// # Errors
/// A missing message; otherwise as [`run`].
pub(super) fn answer_one_message(args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
    let Some(text) = args.prompt.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Err(Failure::usage("--chat needs a message").help("pass it with -p or -f"));
    };
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(args.trace.as_deref())?;
    let mut ready = run::load_model(&args.model, args.auto_profile, &interrupt, terminal)?;
    trace.watch(&mut ready.engine, "chat");
    let load = ready.load;
    let mut chat = Chat::new(args, ready, terminal)?;
    let answered = chat.message(text, &interrupt);
    if args.perf || args.json {
        chat.report(Some(load));
    }
    let saved = chat.close(&interrupt);
    let written = trace.finish(terminal);
    match answered? {
        TurnEnd::Interrupted => Err(Failure::interrupted()),
        TurnEnd::Complete | TurnEnd::Closed | TurnEnd::Command => saved.and(written),
    }
}

fn converse(
    chat: &mut Chat<'_>,
    input: &mut Input,
    interrupt: &Interrupt,
    args: &RunArgs,
) -> Result<(), Failure> {
    let interactive = input.is_interactive();
    let mut first = args.prompt.clone();
    // With -p and without a terminal, the command exits after one answer.
    let once = args.conversation.single_turn || first.is_some() && !interactive;
    let mut interrupted = false;
    loop {
        let line = match first.take() {
            Some(text) if text.trim().is_empty() => EnteredLine::Empty,
            Some(text) => {
                if interactive {
                    chat.terminal.print_unlabelled(&format!("> {text}"));
                }
                EnteredLine::Message(text)
            }
            None => match input.next(interrupt)? {
                InputLine::Text(text) => slash::read(&text),
                InputLine::Interrupted if !interactive => return Err(Failure::interrupted()),
                // Two in a row at an empty line exit, as in llama-cli.
                InputLine::Interrupted if interrupted => return Ok(()),
                InputLine::Interrupted => {
                    interrupted = true;
                    chat.terminal.print_unlabelled("press Ctrl-C again to exit, or Ctrl-D");
                    continue;
                }
                InputLine::Dropped => {
                    interrupted = false;
                    continue;
                }
                InputLine::End => return Ok(()),
            },
        };
        interrupted = false;
        let answered = match &line {
            EnteredLine::Save(path) => saved::save(chat, path).map(|()| TurnEnd::Command),
            EnteredLine::Load(path) => saved::load(chat, path).map(|()| TurnEnd::Command),
            EnteredLine::Exit => return Ok(()),
            EnteredLine::Message(text) => chat.message(text, interrupt),
            EnteredLine::Regenerate => chat.regenerate(interrupt),
            EnteredLine::Empty
            | EnteredLine::Clear
            | EnteredLine::System(_)
            | EnteredLine::Set(_)
            | EnteredLine::Show
            | EnteredLine::Stats
            | EnteredLine::Help
            | EnteredLine::Wrong(_) => {
                command(chat, &line);
                continue;
            }
        };
        match answered {
            Ok(TurnEnd::Closed) => return Ok(()),
            Ok(TurnEnd::Command) => continue,
            Ok(TurnEnd::Interrupted) if !interactive || once => return Err(Failure::interrupted()),
            Ok(TurnEnd::Interrupted | TurnEnd::Complete) => {
                if args.json || chat.settings().timings {
                    chat.report(None);
                }
            }
            // An interactive user may continue after an error in one turn.
            Err(failure) if interactive && failure.exit.keeps_conversation() => {
                chat.terminal.report(&failure);
            }
            Err(failure) => return Err(failure),
        }
        if once {
            return Ok(());
        }
    }
}

/// Runs a command that cannot fail; [`converse`] handles the other lines.
fn command(chat: &mut Chat<'_>, line: &EnteredLine) {
    let terminal = chat.terminal;
    match line {
        EnteredLine::Message(_)
        | EnteredLine::Regenerate
        | EnteredLine::Save(_)
        | EnteredLine::Load(_)
        | EnteredLine::Exit
        | EnteredLine::Empty => {}
        EnteredLine::Clear => {
            chat.clear();
            terminal.print_unlabelled("the conversation was cleared");
        }
        EnteredLine::System(Some(text)) => {
            chat.conversation.system = Some(text.clone());
            terminal.print_unlabelled("the system message was set");
        }
        EnteredLine::System(None) => match &chat.conversation.system {
            Some(text) => text.lines().for_each(|line| terminal.print_unlabelled(line)),
            None => terminal.print_unlabelled("there is no system message"),
        },
        EnteredLine::Set(None) => terminal.print_unlabelled(&chat.settings().settings_line()),
        EnteredLine::Set(Some((key, value))) => match chat.set(key, value) {
            Ok(()) => terminal.print_unlabelled(&format!("{key} is {value} now")),
            Err(why) => terminal.print_unlabelled(&why),
        },
        EnteredLine::Show => terminal.print_unlabelled(&chat.banner()),
        EnteredLine::Stats => chat.stats().iter().for_each(|line| terminal.print_unlabelled(line)),
        EnteredLine::Help => slash::help().iter().for_each(|line| terminal.print_unlabelled(line)),
        EnteredLine::Wrong(why) => terminal.print_unlabelled(why),
    }
}
