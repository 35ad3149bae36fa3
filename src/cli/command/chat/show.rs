//! Prints an answer while it is generated.

use crate::chat::{Reasoning, ReplyPart as Part};
use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::cli::terminal::{REASONING, Terminal};
use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;

/// Prints an answer and keeps it. The answer goes to standard output. On a terminal its reasoning
/// goes there too, dimmed or between marks; otherwise it goes to standard error, so that a pipe
/// gets answers alone, or nowhere with `--log-disable`.
#[derive(Debug)]
pub(crate) struct AnswerOutput {
    reasoning: Option<Reasoning>,
    screen: Screen,
}

#[derive(Debug)]
struct Screen {
    output: Output,
    /// Standard output is a terminal.
    person: bool,
    color: bool,
    quiet: bool,
    /// The last part that was printed.
    last: Option<Part>,
    answer: String,
    failed: Option<Failure>,
}

impl AnswerOutput {
    /// For the text after `prompt`. If reasoning is not separated, all of it is the answer.
    pub(crate) fn new(prompt: &str, splits_reasoning: bool, terminal: &Terminal) -> AnswerOutput {
        AnswerOutput {
            reasoning: splits_reasoning.then(|| Reasoning::after(prompt)),
            screen: Screen {
                output: Output::stdout(),
                person: io::stdout().is_terminal(),
                color: terminal.color_stdout(),
                quiet: terminal.is_quiet(),
                last: None,
                answer: String::new(),
                failed: None,
            },
        }
    }

    /// Prints the next piece of the text.
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
    /// printed but belongs to neither.
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
        // Leading spaces are dropped: plain-text turns have one before the answer.
        let begins = part == Part::Answer && self.answer.is_empty();
        let text = if begins { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        if part == Part::Answer {
            self.answer.push_str(text);
        }
        let written = match (part, self.person) {
            (Part::Answer, _) => self.answer(text),
            (Part::Reasoning, true) => self.thought(text),
            (Part::Reasoning, false) => {
                self.aside(text);
                Ok(())
            }
        };
        self.last = Some(part);
        self.failed = written.and_then(|()| self.output.flush()).err();
    }

    fn answer(&mut self, text: &str) -> Result<(), Failure> {
        if self.last == Some(Part::Reasoning) {
            self.thought_ends()?;
        }
        self.output.write(text)
    }

    fn thought(&mut self, text: &str) -> Result<(), Failure> {
        if self.color {
            self.output.write(format!("{REASONING}{text}{REASONING:#}"))
        } else if self.last == Some(Part::Reasoning) {
            self.output.write(text)
        } else {
            self.output.write(format!("[reasoning]\n{text}"))
        }
    }

    fn thought_ends(&mut self) -> Result<(), Failure> {
        match (self.person, self.color) {
            (true, true) => self.output.write("\n\n"),
            (true, false) => self.output.write("\n[answer]\n"),
            (false, _) => {
                self.aside("\n");
                Ok(())
            }
        }
    }

    /// Prints reasoning when standard output is not a terminal.
    fn aside(&self, text: &str) {
        if !self.quiet {
            // A closed standard error leaves no way to report it.
            let _ = write!(io::stderr(), "{text}");
        }
    }

    fn end(mut self, after: &str) -> Result<String, Failure> {
        if let Some(failure) = self.failed.take() {
            return Err(failure);
        }
        if self.last == Some(Part::Reasoning) && !self.person {
            self.aside("\n");
        }
        self.output.write(after)?;
        let open = match self.last {
            _ if !after.is_empty() => !after.ends_with('\n'),
            Some(Part::Reasoning) => self.person,
            Some(Part::Answer) | None => !self.answer.ends_with('\n'),
        };
        if open {
            self.output.write("\n")?;
        }
        self.output.flush()?;
        Ok(self.answer)
    }
}
