//! The user's input: with a line editor on a terminal, otherwise line by line.

use crate::cli::args::ConversationArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

/// Maximum number of history entries.
const HISTORY: usize = 1000;
/// A longer line is most likely the wrong file.
const LONGEST: usize = 16 << 20;

/// The source of messages.
#[derive(Debug)]
pub(crate) struct Input {
    source: Source,
    /// Whether a line continues on the next one unless it ends in a backslash.
    multiline: bool,
}

#[derive(Debug)]
enum Source {
    /// A terminal, with a prompt.
    Editor(Box<Editor<(), FileHistory>>, Option<PathBuf>),
    /// A pipe, a file, or a terminal whose output is redirected: no prompt, only answers.
    Lines,
}

/// A line of input, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    /// A message or a command.
    Text(String),
    /// Ctrl-C at the prompt, or since the last answer.
    Interrupted,
    /// Ctrl-D, or the end of the input.
    End,
}

impl Input {
    /// An editor if input and output are both terminals.
    pub(crate) fn open(args: &ConversationArgs, terminal: &Terminal) -> Input {
        let person = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let source = match person.then(|| editor(args.history_file(), terminal)).flatten() {
            Some((editor, history)) => Source::Editor(Box::new(editor), history),
            None => Source::Lines,
        };
        Input { source, multiline: args.multiline_input }
    }

    /// Whether the input is interactive.
    pub(crate) fn is_person(&self) -> bool {
        matches!(self.source, Source::Editor(..))
    }

    /// The next message, its lines joined.
    ///
    /// # Errors
    /// Input that cannot be read or is not UTF-8.
    pub(crate) fn next(&mut self, interrupt: &Interrupt) -> Result<InputLine, Failure> {
        let mut text = String::new();
        loop {
            let first = text.is_empty();
            let line = match self.line(first, interrupt)? {
                InputLine::Text(line) => line,
                // An unfinished line counts, since a file may lack the final line end.
                InputLine::End if !first => return Ok(InputLine::Text(text)),
                other @ (InputLine::End | InputLine::Interrupted) => return Ok(other),
            };
            // A command is a single line in multi-line mode too.
            let command = first && line.starts_with('/') && !line.ends_with('\\');
            let (line, slash) = match line.strip_suffix('\\') {
                Some(line) => (line, true),
                None => (&line[..], false),
            };
            text.push_str(line);
            if slash == self.multiline || command {
                self.remember(&text);
                return Ok(InputLine::Text(text));
            }
            text.push('\n');
        }
    }

    fn line(&mut self, first: bool, interrupt: &Interrupt) -> Result<InputLine, Failure> {
        match &mut self.source {
            Source::Editor(editor, _) => {
                let read = editor.readline(if first { "> " } else { ". " });
                interrupt.clear();
                match read {
                    Ok(line) => Ok(InputLine::Text(line)),
                    Err(ReadlineError::Eof) => Ok(InputLine::End),
                    Err(ReadlineError::Interrupted) => Ok(InputLine::Interrupted),
                    Err(e) => Err(unreadable().caused_by(&e)),
                }
            }
            Source::Lines => {
                if !interrupt.arm() {
                    interrupt.clear();
                    return Ok(InputLine::Interrupted);
                }
                let line = plain_line();
                interrupt.clear();
                line
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if let Source::Editor(editor, history) = &mut self.source {
            // A history that cannot be written does not end the conversation.
            let _ = editor.add_history_entry(text);
            if let Some(path) = history {
                let _ = editor.append_history(path);
            }
        }
    }
}

fn editor(
    history: Option<PathBuf>,
    terminal: &Terminal,
) -> Option<(Editor<(), FileHistory>, Option<PathBuf>)> {
    let config = Config::builder().max_history_size(HISTORY).ok()?.build();
    let mut editor = Editor::with_config(config).ok()?;
    let history = history.filter(|path| {
        let made = path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok());
        if !made {
            terminal.detail(&format!(
                "the input history is not kept: no folder for {}",
                path.display()
            ));
        }
        made
    });
    if let Some(path) = &history
        && path.exists()
        && let Err(e) = editor.load_history(path)
    {
        terminal.note(&format!("cannot read the input history in {}: {e}", path.display()));
    }
    Some((editor, history))
}

fn plain_line() -> Result<InputLine, Failure> {
    let mut line = Vec::new();
    let mut stdin = std::io::stdin().lock();
    loop {
        let available = stdin.fill_buf().map_err(|e| unreadable().caused_by(&e))?;
        if available.is_empty() {
            break;
        }
        let end = available.iter().position(|&byte| byte == b'\n');
        let n = end.map_or(available.len(), |at| at + 1);
        line.extend_from_slice(&available[..n]);
        stdin.consume(n);
        if end.is_some() {
            break;
        }
        if line.len() > LONGEST {
            return Err(Failure::new(Exit::Failed, "a line on standard input is too long"));
        }
    }
    if line.is_empty() {
        return Ok(InputLine::End);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    match String::from_utf8(line) {
        Ok(line) => Ok(InputLine::Text(line)),
        Err(e) => Err(unreadable().caused_by(&e)),
    }
}

fn unreadable() -> Failure {
    Failure::new(Exit::Failed, "cannot read standard input")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ctrl_c_between_two_lines_is_heard_before_the_next_is_read() {
        let mut input = Input { source: Source::Lines, multiline: false };
        let interrupt = Interrupt::unhandled();
        interrupt.press();
        assert_eq!(input.next(&interrupt), Ok(InputLine::Interrupted));
        assert!(!interrupt.is_set(), "it is reported once");
    }
}
