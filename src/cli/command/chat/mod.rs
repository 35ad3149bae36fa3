//! `thermocline chat`, and the code that `run --chat` shares with it.

mod dialogue;
mod input;
mod run_or_chat;
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

/// A conversation with a model: with a prompt on a terminal, otherwise one message per line of
/// standard input.
///
/// # Errors
/// A model that cannot be loaded, a template that cannot be used; without a terminal, errors that
/// end a turn.
pub(crate) fn run(args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
    if args.conversation.conversation == Some(false) {
        let help = "use `chat` without -no-cnv for a conversation, or `run` to continue raw text";
        return Err(
            Failure::usage("`chat` starts a conversation, but -no-cnv disables it").help(help)
        );
    }
    // Before our own Ctrl-C handler, which must be installed last.
    let mut input = Input::open(&args.conversation, terminal);
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(args.trace.as_deref())?;
    let learning = args.auto_profile.then_some(&interrupt);
    let mut ready = run::ready(&args.model, learning, terminal)?;
    if interrupt.is_set() {
        return Err(Failure::interrupted());
    }
    trace.watch(&mut ready.engine, "chat");
    let mut chat = Chat::new(args, ready, terminal)?;
    if input.is_person() {
        terminal.note("/help lists the commands, Ctrl-C stops an answer, Ctrl-D exits");
    }
    let ended = talk(&mut chat, &mut input, &interrupt, args);
    chat.close(&interrupt);
    let written = trace.finish(terminal);
    ended.and(written)
}

/// `run --chat`: one question, one answer.
///
/// # Errors
/// A missing question; as [`run`].
pub(super) fn once(args: &RunArgs, terminal: &Terminal) -> Result<(), Failure> {
    let Some(text) = args.prompt.as_deref().filter(|text| !text.trim().is_empty()) else {
        return Err(Failure::usage("--chat needs a message").help("pass it with -p or -f"));
    };
    let interrupt = Interrupt::install()?;
    let trace = Trace::open(args.trace.as_deref())?;
    let learning = args.auto_profile.then_some(&interrupt);
    let mut ready = run::ready(&args.model, learning, terminal)?;
    trace.watch(&mut ready.engine, "chat");
    let load = ready.load;
    let mut chat = Chat::new(args, ready, terminal)?;
    let answered = chat.message(text, &interrupt);
    if args.perf || args.json {
        chat.report(Some(load));
    }
    chat.close(&interrupt);
    let written = trace.finish(terminal);
    match answered? {
        TurnEnd::Interrupted => Err(Failure::interrupted()),
        TurnEnd::Whole | TurnEnd::Closed => written,
    }
}

fn talk(
    chat: &mut Chat<'_>,
    input: &mut Input,
    interrupt: &Interrupt,
    args: &RunArgs,
) -> Result<(), Failure> {
    let person = input.is_person();
    let mut first = args.prompt.clone();
    // With -p and without a terminal, only one answer is expected.
    let once = args.conversation.single_turn || first.is_some() && !person;
    loop {
        let line = match first.take() {
            Some(text) if text.trim().is_empty() => EnteredLine::Empty,
            Some(text) => {
                if person {
                    chat.terminal.tell(&format!("> {text}"));
                }
                EnteredLine::Message(text)
            }
            None => match input.next(interrupt)? {
                InputLine::Text(text) => slash::read(&text),
                InputLine::Interrupted if !person => return Err(Failure::interrupted()),
                InputLine::Interrupted => {
                    chat.terminal.tell("Ctrl-D or /exit exits");
                    continue;
                }
                InputLine::End => return Ok(()),
            },
        };
        let answered = match &line {
            EnteredLine::Exit => return Ok(()),
            EnteredLine::Message(text) => chat.message(text, interrupt),
            EnteredLine::Regenerate => chat.regenerate(interrupt),
            EnteredLine::Empty
            | EnteredLine::Clear
            | EnteredLine::System(_)
            | EnteredLine::Set(_)
            | EnteredLine::Stats
            | EnteredLine::Help
            | EnteredLine::Wrong(_) => {
                command(chat, &line);
                continue;
            }
        };
        match answered {
            Ok(TurnEnd::Closed) => return Ok(()),
            Ok(TurnEnd::Interrupted) if !person || once => return Err(Failure::interrupted()),
            Ok(TurnEnd::Interrupted | TurnEnd::Whole) => {
                if args.json || args.perf && chat.terminal.verbose > 0 {
                    chat.report(None);
                }
            }
            // An interactive user may continue after an error in one turn.
            Err(failure) if person && failure.exit.keeps_conversation() => {
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
fn command(chat: &mut Chat<'_>, line: &EnteredLine) {
    let terminal = chat.terminal;
    match line {
        EnteredLine::Message(_)
        | EnteredLine::Regenerate
        | EnteredLine::Exit
        | EnteredLine::Empty => {}
        EnteredLine::Clear => {
            chat.clear();
            terminal.tell("the conversation was cleared");
        }
        EnteredLine::System(Some(text)) => {
            chat.conversation.system = Some(text.clone());
            terminal.tell("the system message was set");
        }
        EnteredLine::System(None) => match &chat.conversation.system {
            Some(text) => terminal.tell(text),
            None => terminal.tell("there is no system message"),
        },
        EnteredLine::Set(None) => terminal.tell(&chat.settings().shown()),
        EnteredLine::Set(Some((key, value))) => match chat.set(key, value) {
            Ok(()) => {}
            Err(why) => terminal.tell(&why),
        },
        EnteredLine::Stats => chat.stats().iter().for_each(|line| terminal.tell(line)),
        EnteredLine::Help => slash::help().iter().for_each(|line| terminal.tell(line)),
        EnteredLine::Wrong(why) => terminal.tell(why),
    }
}
