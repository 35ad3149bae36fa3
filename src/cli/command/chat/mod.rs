//! `thermocline chat`, and what `run --chat` shares with it.

mod dialogue;
mod input;
mod meant;
mod settings;
mod show;
mod slash;
mod turn;

use super::engine::Trace;
use super::run;
use crate::cli::config::RunOptions;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use input::{Input, Typed};
pub(crate) use meant::meant;
use slash::Line;
use turn::{Answered, Chat};

/// Talks with a model: on a terminal with a prompt, else one line of standard input after the other.
///
/// # Errors
/// A model that cannot be loaded, a template that cannot be used; without a terminal, what ends a turn.
pub(crate) fn run(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    if options.conversation.wanted == Some(false) {
        let help = "without -no-cnv `chat` converses, `run` continues raw text";
        return Err(Failure::usage("`chat` is a conversation, and -no-cnv wants none").help(help));
    }
    // Before our own handler of Ctrl-C, which has to be the last to be set up.
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
        terminal.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves");
    }
    let ended = talk(&mut chat, &mut input, &interrupt, options);
    chat.close(&interrupt);
    let written = trace.finish(terminal);
    ended.and(written)
}

/// `run --chat`: one question, one answer.
///
/// # Errors
/// No question; as [`run`].
pub(super) fn once(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    let Some(text) = options.prompt.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Err(Failure::usage("--chat needs a message").help("give it with -p or -f"));
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
    // With -p and nobody there, the one answer is what is wanted.
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
                    chat.terminal.tell("Ctrl-D or /exit leaves");
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
            // A person may go on after what went wrong with one turn.
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

/// What is said or set between turns.
fn command(chat: &mut Chat<'_>, line: &Line) {
    let terminal = chat.terminal;
    match line {
        Line::Message(_) | Line::Regenerate | Line::Exit | Line::Empty => {}
        Line::Clear => {
            chat.clear();
            terminal.tell("the conversation is forgotten");
        }
        Line::System(Some(text)) => {
            chat.conversation.system = Some(text.clone());
            terminal.tell("the system message is set");
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
