//! Prints an answer while it is generated.

use crate::chat::{Reasoning, ReplyPart as Part};
use crate::cli::failure::Failure;
use crate::cli::output::{Output, visible};
use crate::cli::terminal::{REASONING, Terminal};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

/// Prints an answer and collects its text. The answer goes to standard output. On a terminal, so
/// does the reasoning, dimmed or under a heading. In a pipe, the reasoning goes to standard error,
/// so that the pipe gets only answers; `--log-disable` drops it.
#[derive(Debug)]
pub(crate) struct AnswerOutput {
    reasoning: Option<Reasoning>,
    screen: Screen,
}

#[derive(Debug)]
struct Screen {
    output: Output,
    /// Whether standard output is a terminal.
    to_terminal: bool,
    color: bool,
    quiet: bool,
    cleans_stderr: bool,
    /// The section that was printed last: reasoning or answer.
    last: Option<Part>,
    answer: String,
    failed: Option<Failure>,
}

impl AnswerOutput {
    /// Output for the text after `prompt`. Without `splits_reasoning`, all text is part of the
    /// answer. With `raw`, control characters reach a terminal.
    pub(crate) fn new(
        prompt: &str,
        splits_reasoning: bool,
        raw: bool,
        terminal: &Terminal,
    ) -> AnswerOutput {
        AnswerOutput {
            reasoning: splits_reasoning.then(|| Reasoning::after(prompt)),
            screen: Screen {
                output: Output::of_model(raw),
                cleans_stderr: !raw && io::stderr().is_terminal(),
                to_terminal: io::stdout().is_terminal(),
                color: terminal.color_stdout(),
                quiet: terminal.is_quiet(),
                last: None,
                answer: String::new(),
                failed: None,
            },
        }
    }

    pub(crate) fn piece(&mut self, piece: &str) -> ControlFlow<()> {
        match &mut self.reasoning {
            Some(reasoning) => {
                reasoning.push(piece, &mut |part, text| self.screen.show(part, text))
            }
            None => self.screen.show(Part::Answer, piece),
        }
        match self.screen.failed {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Ends the text and its line, and returns the answer without its reasoning. `after` is
    /// printed, but not added to the answer.
    ///
    /// # Errors
    /// Standard output cannot be written.
    pub(crate) fn end(mut self, after: &str) -> Result<String, Failure> {
        if let Some(reasoning) = self.reasoning.take() {
            reasoning.finish(&mut |part, text| self.screen.show(part, text));
        }
        self.screen.end(after)
    }
}

impl Screen {
    fn show(&mut self, part: Part, text: &str) {
        if text.is_empty() || self.failed.is_some() {
            return;
        }
        // An answer to a plain-text prompt begins with a space: drop leading white space.
        let begins = part == Part::Answer && self.answer.is_empty();
        let text = if begins { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        if part == Part::Answer {
            self.answer.push_str(text);
        }
        let written = match (part, self.to_terminal) {
            (Part::Answer, _) => self.answer(text),
            (Part::Reasoning, true) => self.write_reasoning(text),
            (Part::Reasoning, false) => {
                self.write_stderr(text);
                Ok(())
            }
        };
        self.last = Some(part);
        self.failed = written.and_then(|()| self.output.flush()).err();
    }

    fn answer(&mut self, text: &str) -> Result<(), Failure> {
        if self.last == Some(Part::Reasoning) {
            self.end_reasoning()?;
        }
        self.output.text(text)
    }

    fn write_reasoning(&mut self, text: &str) -> Result<(), Failure> {
        if self.color {
            self.output.write(format!("{REASONING}"))?;
            self.output.text(text)?;
            return self.output.write(format!("{REASONING:#}"));
        } else if self.last != Some(Part::Reasoning) {
            self.output.write("[reasoning]\n")?;
        }
        self.output.text(text)
    }

    fn end_reasoning(&mut self) -> Result<(), Failure> {
        match (self.to_terminal, self.color) {
            (true, true) => self.output.write("\n\n"),
            (true, false) => self.output.write("\n[answer]\n"),
            (false, _) => {
                self.write_stderr("\n");
                Ok(())
            }
        }
    }

    /// Prints reasoning when standard output is not a terminal.
    fn write_stderr(&self, text: &str) {
        if !self.quiet {
            // If standard error is closed, the failure cannot be reported anywhere.
            let text = if self.cleans_stderr { visible(text) } else { text.into() };
            let _ = write!(io::stderr(), "{text}");
        }
    }

    fn end(mut self, after: &str) -> Result<String, Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if self.last == Some(Part::Reasoning) && !self.to_terminal {
            self.write_stderr("\n");
        }
        self.output.text(after)?;
        let open = match self.last {
            _ if !after.is_empty() => !after.ends_with('\n'),
            Some(Part::Reasoning) => self.to_terminal,
            Some(Part::Answer) | None => !self.answer.ends_with('\n'),
        };
        if open {
            self.output.write("\n")?;
        }
        self.output.flush()?;
        Ok(self.answer)
    }
}
