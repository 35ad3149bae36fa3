//! Output other than the result: notes, failures, colour.

use super::args::ColorWhen;
use super::failure::Failure;
use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

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
    /// How often `-v` was given.
    pub(crate) verbose: u8,
}

impl Terminal {
    /// Derives colour from `--color`, the environment, and whether the streams are terminals.
    pub(crate) fn new(when: ColorWhen, quiet: bool, verbose: u8) -> Self {
        #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
        let env = |name: &str| std::env::var_os(name);
        Self {
            color_stdout: wants_color(when, io::stdout().is_terminal(), env),
            color_stderr: wants_color(when, io::stderr().is_terminal(), env),
            quiet,
            verbose,
        }
    }

    /// Whether the result may be coloured.
    pub(crate) fn color_stdout(&self) -> bool {
        self.color_stdout
    }

    pub(crate) fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// A copy that prints only errors.
    pub(crate) fn quiet(&self) -> Self {
        Self { quiet: true, ..self.clone() }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Prints one `note:` line on standard error; nothing with `--log-disable`.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            self.line(NOTE, "note", text);
        }
    }

    /// Prints a line that the user asked for on standard error, without a label.
    pub(crate) fn print_unlabelled(&self, text: &str) {
        // If standard error is closed, the failure cannot be reported anywhere.
        let _ = writeln!(io::stderr(), "{}", printable(text));
    }

    /// Prints a `note:` line with `-v` only.
    pub(crate) fn detail(&self, text: &str) {
        if self.verbose > 0 {
            self.note(text);
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

    fn line(&self, style: Style, label: &str, text: &str) {
        let choice = if self.color_stderr {
            anstream::ColorChoice::Always
        } else {
            anstream::ColorChoice::Never
        };
        let mut stderr = AutoStream::new(io::stderr(), choice);
        let text = printable(text);
        // If standard error is closed, the failure cannot be reported anywhere.
        let _ = writeln!(stderr, "{style}{label}:{style:#} {text}");
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
