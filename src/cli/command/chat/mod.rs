//! `thermocline chat`, and the code that `run --chat` shares with it.

mod dialogue;
mod input;
mod meant;
mod settings;
mod show;
mod slash;
mod turn;

use super::run;
use super::trace::Trace;
use crate::cli::config::RunOptions;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use input::{Input, Typed};
pub(crate) use meant::meant;
use slash::Line;
use turn::{Answered, Chat};

/// A conversation with a model: with a prompt on a terminal, otherwise one message per line of
/// standard input.
///
/// # Errors
/// A model that cannot be loaded, a template that cannot be used; without a terminal, errors that
/// end a turn.
pub(crate) fn run(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    if options.conversation.wanted == Some(false) {
        let help = "use `chat` without -no-cnv for a conversation, or `run` to continue raw text";
        return Err(
            Failure::usage("`chat` starts a conversation, but -no-cnv disables it").help(help)
        );
    }
    // Before our own Ctrl-C handler, which must be installed last.
    let mut input = Input::open(&options.conversation, terminal);
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(options.trace.as_deref())?;
    let learning = options.auto_profile.then_some(&interrupt);
    let mut ready = run::ready(&options.model, learning, terminal)?;
    if interrupt.is_set() {
        return Err(Failure::interrupted());
    }
    trace.watch(&mut ready.engine, "chat");
    let mut chat = Chat::new(options, ready, terminal)?;
    if input.is_person() {
        terminal.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D exits");
    }
    let ended = talk(&mut chat, &mut input, &interrupt, options);
    chat.close(&interrupt);
    let written = trace.finish(terminal);
    ended.and(written)
}

/// `run --chat`: one question, one answer.
///
/// # Errors
/// A missing question; as [`run`].
pub(super) fn once(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    let Some(text) = options.prompt.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Err(Failure::usage("--chat needs a message").help("pass it with -p or -f"));
    };
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(options.trace.as_deref())?;
    let learning = options.auto_profile.then_some(&interrupt);
    let mut ready = run::ready(&options.model, learning, terminal)?;
    trace.watch(&mut ready.engine, "chat");
    let load = ready.load;
    let mut chat = Chat::new(options, ready, terminal)?;
    let answered = chat.message(text, &interrupt);
    if options.perf || options.json {
        chat.report(Some(load));
    }
    chat.close(&interrupt);
    let written = trace.finish(terminal);
    match answered? {
        Answered::Interrupted => Err(Failure::interrupted()),
        Answered::Whole | Answered::Closed => written,
    }
}

fn talk(
    chat: &mut Chat<'_>,
    input: &mut Input,
    interrupt: &Interrupt,
    options: &RunOptions,
) -> Result<(), Failure> {
    let person = input.is_person();
    let mut first = options.prompt.clone();
    // With -p and without a terminal, only one answer is expected.
    let once = options.conversation.single_turn || first.is_some() && !person;
    loop {
        let line = match first.take() {
            Some(text) if text.trim().is_empty() => Line::Empty,
            Some(text) => {
                if person {
                    chat.terminal.tell(&format!("> {text}"));
                }
                Line::Message(text)
            }
            None => match input.next(interrupt)? {
                Typed::Text(text) => slash::read(&text),
                Typed::Interrupted if !person => return Err(Failure::interrupted()),
                Typed::Interrupted => {
                    chat.terminal.tell("Ctrl-D or /exit exits");
                    continue;
                }
                Typed::End => return Ok(()),
            },
        };
        let answered = match &line {
            Line::Exit => return Ok(()),
            Line::Message(text) => chat.message(text, interrupt),
            Line::Regenerate => chat.regenerate(interrupt),
            Line::Empty
            | Line::Clear
            | Line::System(_)
            | Line::Set(_)
            | Line::Stats
            | Line::Help
            | Line::Wrong(_) => {
                command(chat, &line);
                continue;
            }
        };
        match answered {
            Ok(Answered::Closed) => return Ok(()),
            Ok(Answered::Interrupted) if !person || once => return Err(Failure::interrupted()),
            Ok(Answered::Interrupted | Answered::Whole) => {
                if options.json || options.perf && chat.terminal.verbose > 0 {
                    chat.report(None);
                }
            }
            // An interactive user may continue after an error in one turn.
            Err(failure) if person && failure.exit.is_of_the_turn() => {
                chat.terminal.report(&failure);
            }
            Err(failure) => return Err(failure),
        }
        if once {
            return Ok(());
        }
    }
}

/// Runs a command entered between turns.
fn command(chat: &mut Chat<'_>, line: &Line) {
    let terminal = chat.terminal;
    match line {
        Line::Message(_) | Line::Regenerate | Line::Exit | Line::Empty => {}
        Line::Clear => {
            chat.clear();
            terminal.tell("the conversation was cleared");
        }
        Line::System(Some(text)) => {
            chat.conversation.system = Some(text.clone());
            terminal.tell("the system message was set");
        }
        Line::System(None) => match &chat.conversation.system {
            Some(text) => terminal.tell(text),
            None => terminal.tell("there is no system message"),
        },
        Line::Set(None) => terminal.tell(&chat.settings().shown()),
        Line::Set(Some((key, value))) => match chat.set(key, value) {
            Ok(()) => {}
            Err(why) => terminal.tell(&why),
        },
        Line::Stats => chat.stats().iter().for_each(|line| terminal.tell(line)),
        Line::Help => slash::help().iter().for_each(|line| terminal.tell(line)),
        Line::Wrong(why) => terminal.tell(why),
    }
}
