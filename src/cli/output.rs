//! Standard output: the result and nothing else.

use super::failure::Failure;
use std::io::{self, StdoutLock, Write};

/// Writes the result. A reader that went away comes back as the quiet [`Failure::stdout`].
#[derive(Debug)]
pub(crate) struct Output(StdoutLock<'static>);

impl Output {
    /// Locks standard output for the command.
    pub(crate) fn stdout() -> Self {
        Self(io::stdout().lock())
    }

    /// Writes text. It is surely visible after the next [`Output::flush`].
    pub(crate) fn write(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let written = self.0.write_all(text.as_ref());
        written.map_err(|e| Failure::stdout(&e))
    }

    /// Writes text and a line end.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text)?;
        self.write("\n")
    }

    /// Shows what was written so far: once per token, and at the end of a command.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|e| Failure::stdout(&e))
    }
}
