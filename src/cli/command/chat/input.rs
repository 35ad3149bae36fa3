//! Reads the user's messages: with a line editor on a terminal, otherwise line by line.

use super::complete::CommandCompleter;
use crate::cli::args::ConversationArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal::Terminal;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

/// Maximum number of history entries.
const MAX_HISTORY: usize = 1000;
/// Maximum bytes of a line. A longer line is most likely from a wrong file.
const MAX_LINE: usize = 16 << 20;

/// The source of messages.
#[derive(Debug)]
pub(crate) struct Input {
    source: Source,
    /// Whether a message continues on the next line unless the line ends in a backslash.
    multiline: bool,
}

#[derive(Debug)]
enum Source {
    /// A terminal, with a prompt.
    Editor(Box<Editor<CommandCompleter, FileHistory>>, Option<PathBuf>),
    /// Plain lines from a pipe, a file, or a terminal with redirected output; no prompt is shown.
    Lines,
}

/// A line of input, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InputLine {
    /// A message or a command.
    Text(String),
    /// Ctrl-C, pressed at an empty prompt or since the last answer.
    Interrupted,
    /// Ctrl-C in a line with text or in a message of several lines, which is dropped; or Ctrl-D
    /// before the quotes that end a message.
    Dropped,
    /// Ctrl-D, or the end of the input.
    End,
}

impl Input {
    /// Opens a line editor if input and output are both terminals, else reads plain lines.
    pub(crate) fn open(args: &ConversationArgs, terminal: &Terminal) -> Input {
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let source = match interactive.then(|| editor(args.history_file(), terminal)).flatten() {
            Some((editor, history)) => Source::Editor(Box::new(editor), history),
            None => Source::Lines,
        };
        Input { source, multiline: args.multiline_input }
    }

    /// Whether a line editor reads the input.
    pub(crate) fn is_interactive(&self) -> bool {
        matches!(self.source, Source::Editor(..))
    }

    /// The next message or command. Lines that continue a message are joined by newlines.
    ///
    /// # Errors
    /// Input that cannot be read or is not UTF-8; a line longer than [`MAX_LINE`].
    pub(crate) fn next(&mut self, interrupt: &Interrupt) -> Result<InputLine, Failure> {
        let mut message = MessageLines { multiline: self.multiline, ..Default::default() };
        loop {
            let first = message.n == 0;
            let line = match self.line(first, interrupt)? {
                InputLine::Text(line) => line,
                InputLine::End if message.is_quoted && self.is_interactive() => {
                    return Ok(InputLine::Dropped);
                }
                // The input ended before the continuation line: return the lines so far.
                InputLine::End if !first => return Ok(InputLine::Text(message.text)),
                InputLine::Interrupted if !first => return Ok(InputLine::Dropped),
                other @ (InputLine::End | InputLine::Interrupted | InputLine::Dropped) => {
                    return Ok(other);
                }
            };
            if message.push(&line) {
                self.remember(&message.text);
                return Ok(InputLine::Text(message.text));
            }
        }
    }

    fn line(&mut self, first: bool, interrupt: &Interrupt) -> Result<InputLine, Failure> {
        match &mut self.source {
            Source::Editor(editor, _) => {
                editor.helper().iter().for_each(|helper| helper.begin());
                let read = editor.readline(if first { "> " } else { ". " });
                interrupt.clear();
                match read {
                    Ok(line) => Ok(InputLine::Text(line)),
                    Err(ReadlineError::Eof) => Ok(InputLine::End),
                    Err(ReadlineError::Interrupted) => {
                        let typed = editor.helper().is_some_and(CommandCompleter::has_text);
                        Ok(if typed { InputLine::Dropped } else { InputLine::Interrupted })
                    }
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

/// Begins and ends a message of several lines, as in ollama.
const QUOTES: &str = "\"\"\"";

/// A message that is entered line by line.
#[derive(Debug, Default)]
struct MessageLines {
    text: String,
    /// Number of lines so far.
    n: usize,
    /// Whether a message continues on the next line unless the line ends in a backslash.
    multiline: bool,
    /// Whether the message stands between [`QUOTES`].
    is_quoted: bool,
}

impl MessageLines {
    /// Adds a line, and returns whether the message is complete.
    fn push(&mut self, line: &str) -> bool {
        let first = self.n == 0;
        self.n += 1;
        let quoted = line
            .split_once(QUOTES)
            .filter(|(before, _)| first && ["", "/system", "/set system"].contains(&before.trim()));
        let line = match quoted {
            Some((command, line)) => {
                self.is_quoted = true;
                if !command.trim().is_empty() {
                    self.text.push_str("/system ");
                }
                line
            }
            None => line,
        };
        if self.is_quoted {
            // A line break beside the quotes is not part of the message.
            if self.n > 1 && !self.text.is_empty() && self.text != "/system " {
                self.text.push('\n');
            }
            let end = line.trim_end().strip_suffix(QUOTES);
            self.text.push_str(end.unwrap_or(line));
            if end.is_some() {
                self.text.truncate(self.text.trim_end_matches('\n').len());
            }
            return end.is_some();
        }
        // A command such as /help ends with its line, even in multi-line mode.
        let command = first && line.starts_with('/') && !line.ends_with('\\');
        let (line, slash) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        if !first {
            self.text.push('\n');
        }
        self.text.push_str(line);
        slash == self.multiline || command
    }
}

fn editor(
    history: Option<PathBuf>,
    terminal: &Terminal,
) -> Option<(Editor<CommandCompleter, FileHistory>, Option<PathBuf>)> {
    let config = Config::builder().max_history_size(MAX_HISTORY).ok()?;
    let config = config.completion_type(CompletionType::List).build();
    let mut editor = Editor::with_config(config).ok()?;
    editor.set_helper(Some(CommandCompleter::new()));
    let history = history.filter(|path| {
        let made = path.parent().is_some_and(|folder| std::fs::create_dir_all(folder).is_ok());
        if !made {
            terminal.detail(&format!(
                "the input history is not saved: cannot create the folder of {}",
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
        if line.len() > MAX_LINE {
            return Err(Failure::new(
                Exit::Failed,
                "a line on standard input is longer than 16 MiB",
            ));
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

    /// The message of these lines, and whether it is complete.
    fn message(lines: &[&str], multiline: bool) -> (String, bool) {
        let mut message = MessageLines { multiline, ..MessageLines::default() };
        let complete = lines.iter().map(|line| message.push(line)).collect::<Vec<_>>();
        let (last, before) = complete.split_last().unwrap();
        assert!(!before.contains(&true), "{lines:?} ends early");
        (message.text, *last)
    }

    #[test]
    fn messages_may_have_several_lines() {
        let complete = |lines: &[&str], text: &str| {
            assert_eq!(message(lines, false), (text.to_owned(), true), "{lines:?}");
        };
        complete(&["Hi"], "Hi");
        complete(&["a\\", "b"], "a\nb");
        complete(&["\"\"\"one line\"\"\""], "one line");
        complete(&["\"\"\"a", "", "  b", "c\"\"\""], "a\n\n  b\nc");
        complete(&["\"\"\"", "fn a() {\\", "}", "\"\"\" "], "fn a() {\\\n}");
        complete(&["/set system \"\"\"You are", "Bob\"\"\""], "/system You are\nBob");
        complete(&["/system \"\"\"", "Be brief", "\"\"\""], "/system Be brief");
        assert_eq!(message(&["\"\"\"a", "/help"], false), ("a\n/help".to_owned(), false));
        assert_eq!(message(&["a", "b\\"], true), ("a\nb".to_owned(), true));
        assert_eq!(message(&["/help"], true), ("/help".to_owned(), true));
    }

    #[test]
    fn ctrl_c_between_two_lines_is_reported_before_the_next_line() {
        let mut input = Input { source: Source::Lines, multiline: false };
        let interrupt = Interrupt::unhandled();
        interrupt.press();
        assert_eq!(input.next(&interrupt), Ok(InputLine::Interrupted));
        assert!(!interrupt.is_set(), "it is reported once");
    }
}
