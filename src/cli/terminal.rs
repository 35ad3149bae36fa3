//! Output other than the result: notes, failures, colour.

use super::args::ColorWhen;
use super::failure::Failure;
use super::log_file::LogFile;
use super::wrap::wrapped_after;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use serde_json::json;
use serve::timestamp;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use terminal_size::{Width, terminal_size_of};

const ERROR: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Cyan.on_default().bold();
const HELP: Style = AnsiColor::Green.on_default().bold();
/// Style of an echoed prompt.
pub(crate) const PROMPT: Style = AnsiColor::Yellow.on_default();
/// Style of reasoning.
pub(crate) const REASONING: Style = Style::new().dimmed();

/// Prints notes and failures. Standard output carries only the result; this type writes everything
/// else to standard error.
#[derive(Clone, Debug)]
pub(crate) struct Terminal {
    color_stdout: bool,
    color_stderr: bool,
    quiet: bool,
    /// `--log-file`.
    log: Option<LogFile>,
    /// Whether lines are JSON objects.
    json: bool,
    /// Notes that become a part of a JSON object instead of lines.
    held: Option<Arc<Mutex<Vec<String>>>>,
    /// How often `-v` was given.
    pub(crate) verbose: u8,
}

impl Terminal {
    /// Derives colour from `--color`, the environment, and whether the streams are terminals.
    pub(crate) fn new(when: ColorWhen, quiet: bool, verbose: u8) -> Self {
        #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
        let env = |name: &str| std::env::var_os(name);
        Self {
            color_stdout: wants_color(when, takes_color(&io::stdout()), env),
            color_stderr: wants_color(when, takes_color(&io::stderr()), env),
            quiet,
            log: None,
            json: false,
            held: None,
            verbose,
        }
    }

    /// Makes notes and errors JSON objects, as the lines of the server's log.
    pub(crate) fn log_json(&mut self) {
        self.json = true;
    }

    /// Copies everything that is printed from now on to the file at `path`.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn log_to(&mut self, path: Option<&Path>) -> Result<(), Failure> {
        self.log = path.map(LogFile::open).transpose()?;
        Ok(())
    }

    /// Whether the result may be coloured.
    pub(crate) fn color_stdout(&self) -> bool {
        self.color_stdout
    }

    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Erases the line of the cursor, which may have a progress bar.
    pub(crate) fn erase_line(&self) {
        if self.shows_progress() {
            // Failing to write to a terminal is not worth a message.
            let _ = AutoStream::always(io::stderr()).write_all(b"\r\x1b[2K");
        }
    }

    /// A copy that prints only errors.
    pub(crate) fn quiet(&self) -> Self {
        Self { quiet: true, ..self.clone() }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Holds notes back from now on, for [`Terminal::take_held`].
    pub(crate) fn hold_notes(&mut self) {
        self.held = Some(Arc::default());
    }

    /// The notes since the last call, if notes are held back.
    pub(crate) fn take_held(&self) -> Vec<String> {
        let held =
            self.held.as_ref().map(|held| held.lock().unwrap_or_else(PoisonError::into_inner));
        held.map(|mut notes| std::mem::take(&mut *notes)).unwrap_or_default()
    }

    /// Prints one `note:` line on standard error; nothing with `--log-disable`.
    pub(crate) fn note(&self, text: &str) {
        if self.quiet {
            return;
        }
        match &self.held {
            Some(held) => held.lock().unwrap_or_else(PoisonError::into_inner).push(text.to_owned()),
            None => self.line(NOTE, "note", text),
        }
    }

    /// Prints a line that the user asked for on standard error, without a label.
    pub(crate) fn print_unlabelled(&self, text: &str) {
        let text = printable(text);
        self.copy_to_log(&text);
        // If standard error is closed, the failure cannot be reported anywhere.
        let _ = writeln!(io::stderr(), "{}", folded(text, 0, stderr_width()));
    }

    /// Prints a line of the server's log on standard error.
    pub(crate) fn print_log(&self, line: &str) {
        if self.quiet {
            return;
        }
        let line = printable(line);
        self.copy_to_log(&line);
        // If standard error is closed, the failure cannot be reported anywhere.
        let _ = writeln!(io::stderr(), "{line}");
    }

    /// Prints a `note:` line with `-v` only.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose > 0 {
            self.note(text);
        }
    }

    /// Prints the notes that were held back, where no JSON object has them.
    pub(crate) fn release_notes(&self) {
        for note in self.take_held() {
            self.line(NOTE, "note", &note);
        }
    }

    /// Prints a failure on standard error: `error:`, `caused by:` and `help:` lines.
    pub(crate) fn report(&self, failure: &Failure) {
        if failure.message.is_empty() {
            return;
        }
        self.line(ERROR, "error", &failure.message);
        for cause in &failure.causes {
            self.line(ERROR, "caused by", cause);
        }
        if let Some(help) = &failure.help {
            self.line(HELP, "help", help);
        }
    }

    fn copy_to_log(&self, line: &str) {
        if let Some(problem) = self.log.as_ref().and_then(|log| log.line(line)) {
            self.print(NOTE, "note", &problem);
        }
    }

    fn line(&self, style: Style, label: &str, text: &str) {
        if self.json {
            let time = timestamp(SystemTime::now());
            let line = json!({ "time": time, "level": label, "message": printable(text) });
            let line = line.to_string();
            self.copy_to_log(&line);
            // If standard error is closed, the failure cannot be reported anywhere.
            let _ = writeln!(io::stderr(), "{line}");
            return;
        }
        self.copy_to_log(&format!("{label}: {}", printable(text)));
        self.print(style, label, text);
    }

    fn print(&self, style: Style, label: &str, text: &str) {
        let choice = if self.color_stderr {
            anstream::ColorChoice::Always
        } else {
            anstream::ColorChoice::Never
        };
        let mut stderr = AutoStream::new(io::stderr(), choice);
        let text = folded(printable(text), label.len() + 2, stderr_width());
        // If standard error is closed, the failure cannot be reported anywhere.
        let _ = writeln!(stderr, "{style}{label}:{style:#} {text}");
    }
}

/// The width of the terminal that standard error is; `None` for a file or a pipe.
fn stderr_width() -> Option<usize> {
    terminal_size_of(io::stderr()).map(|(Width(width), _)| usize::from(width))
}

/// Minimum width of the text beside a label. A narrower terminal breaks lines itself.
const MIN_TEXT: usize = 30;

/// The text after a label of `indent` characters, wrapped if it is longer than a line of a terminal
/// of this width. A log keeps each note on one line.
fn folded(text: String, indent: usize, width: Option<usize>) -> String {
    match width {
        Some(width) if width >= indent + MIN_TEXT && text.chars().count() > width - indent => {
            wrapped_after(indent, &text, width)
        }
        Some(_) | None => text,
    }
}

/// A number and a noun, in the plural unless the number is 1.
pub(crate) fn counted(n: usize, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Untrusted text with its control characters escaped, so that it cannot control the terminal and
/// stays on one line.
pub(crate) fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Whether `stream` is a terminal that knows escape sequences.
#[cfg(not(windows))]
fn takes_color(stream: &impl IsTerminal) -> bool {
    stream.is_terminal()
}

/// See the definition for other systems.
#[cfg(windows)]
fn takes_color(stream: &(impl IsTerminal + std::os::windows::io::AsHandle)) -> bool {
    stream.is_terminal() && super::windows::takes_escapes(stream)
}

/// `--color on|off` decides; else `NO_COLOR`, then `CLICOLOR_FORCE` and `FORCE_COLOR`, then
/// `TERM=dumb`, then `is_terminal`. Empty variables are ignored, and so are `CLICOLOR_FORCE=0` and
/// `FORCE_COLOR=0`.
fn wants_color(when: ColorWhen, is_terminal: bool, env: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = |name| env(name).is_some_and(|v| !v.is_empty());
    let forces = |name| set(name) && env(name).is_some_and(|v| v != "0");
    match when {
        ColorWhen::On => true,
        ColorWhen::Off => false,
        ColorWhen::Auto if set("NO_COLOR") => false,
        ColorWhen::Auto if forces("CLICOLOR_FORCE") || forces("FORCE_COLOR") => true,
        ColorWhen::Auto => is_terminal && env("TERM").is_none_or(|t| t != "dumb"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uses_color(when: ColorWhen, tty: bool, vars: &[(&str, &str)]) -> bool {
        wants_color(when, tty, |name| {
            let found = vars.iter().find(|(n, _)| *n == name);
            found.map(|(_, v)| OsString::from(v))
        })
    }

    #[test]
    fn only_a_terminal_wraps_notes() {
        let note = "word ".repeat(10) + "end";
        assert_eq!(folded(note.clone(), 6, None), note);
        assert_eq!(folded(note.clone(), 6, Some(60)), note, "it fits");
        assert_eq!(folded(note.clone(), 6, Some(20)), note, "too narrow");
        let lines = folded(note, 6, Some(40));
        assert_eq!(lines, "word word word word word word word\n      word word word end");
        assert_eq!(folded("a   b".to_owned(), 6, Some(40)), "a   b", "spaces stay");
    }

    #[test]
    fn one_thing_is_singular() {
        assert_eq!([0, 1, 2].map(|n| counted(n, "token")), ["0 tokens", "1 token", "2 tokens"]);
    }

    #[test]
    fn flags_and_variables_decide_about_colour() {
        use ColorWhen::{Auto, Off, On};
        assert!(uses_color(Auto, true, &[]));
        assert!(!uses_color(Auto, false, &[]));
        assert!(!uses_color(Auto, true, &[("NO_COLOR", "1")]));
        assert!(uses_color(Auto, true, &[("NO_COLOR", "")]));
        assert!(uses_color(Auto, false, &[("CLICOLOR_FORCE", "1")]));
        assert!(!uses_color(Auto, false, &[("CLICOLOR_FORCE", "0")]));
        assert!(!uses_color(Auto, true, &[("NO_COLOR", "1"), ("FORCE_COLOR", "1")]));
        assert!(!uses_color(Auto, true, &[("TERM", "dumb")]));
        assert!(uses_color(On, false, &[("NO_COLOR", "1")]));
        assert!(!uses_color(Off, true, &[("FORCE_COLOR", "1")]));
    }
}
