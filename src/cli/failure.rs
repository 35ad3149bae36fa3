//! Failures of a command: a sentence, its causes, a hint, and an exit code.

use std::error::Error;
use std::fmt;
use std::io;

/// Why the process exits. The numbers are part of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// The reader of standard output closed the pipe.
    ClosedPipe,
    /// The run failed.
    Failed,
    /// Invalid command line.
    Usage,
    /// The model file is invalid or not supported.
    BadModel,
    /// Not enough memory.
    Memory,
    /// A requested backend or device is not available.
    BackendMissing,
    /// Ctrl-C.
    Interrupted,
}

impl Exit {
    /// Whether a conversation may continue after this failure.
    pub(crate) fn keeps_conversation(self) -> bool {
        self == Self::Failed
    }

    /// The process exit code.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::ClosedPipe => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::BadModel => 3,
            Self::Memory => 4,
            Self::BackendMissing => 5,
            Self::Interrupted => 130,
        }
    }
}

/// The error that a command returns. A failure with an empty message prints nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    /// The `error:` line.
    pub(crate) message: String,
    /// The `caused by:` lines, nearest first.
    pub(crate) causes: Vec<String>,
    /// The `help:` line.
    pub(crate) help: Option<String>,
}

impl Failure {
    /// A failure with only a message.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { exit, message, causes: Vec::new(), help: None }
    }

    /// A failure with `error` as its message, and the error's sources as `caused by:` lines.
    pub(crate) fn chain(exit: Exit, error: &dyn Error) -> Self {
        let failure = Self::new(exit, error.to_string());
        match error.source() {
            Some(source) => failure.caused_by(source),
            None => failure,
        }
    }

    /// The error of a flag's value parser, if clap wraps one.
    pub(crate) fn of_clap(error: &clap::Error) -> Option<&Self> {
        error.source()?.downcast_ref()
    }

    /// An invalid command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// Whether this is [`Failure::interrupted`].
    pub(crate) fn is_silent_interrupt(&self) -> bool {
        matches!(self.exit, Exit::Interrupted) && self.message.is_empty()
    }

    /// Ctrl-C; prints nothing.
    pub(crate) fn interrupted() -> Self {
        Self::new(Exit::Interrupted, "")
    }

    /// Writing to standard output failed. A closed pipe (`| head`) is not an error.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if is_closed_pipe(error) {
            Self::new(Exit::ClosedPipe, "")
        } else {
            Self::new(Exit::Failed, "cannot write to standard output").caused_by(error)
        }
    }

    /// Adds an error and its sources as `caused by:` lines.
    pub(crate) fn caused_by(mut self, error: &dyn Error) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            let text = error.to_string();
            // Some errors repeat their source in their own text.
            if !self.causes.last().is_some_and(|last| last.ends_with(&text)) {
                self.causes.push(text);
            }
            next = error.source();
        }
        self
    }

    /// Adds the `help:` line.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

/// Whether the reader of a pipe ended. Windows has three codes for it, of which the standard library knows two.
fn is_closed_pipe(error: &io::Error) -> bool {
    const ERROR_PIPE_NOT_CONNECTED: i32 = 233;
    let unknown = cfg!(windows) && error.raw_os_error() == Some(ERROR_PIPE_NOT_CONNECTED);
    error.kind() == io::ErrorKind::BrokenPipe || unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_follow_the_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] io::Error);
        let outer = Outer(io::Error::other("inner"));
        let failure = Failure::new(Exit::Failed, "it").caused_by(&outer);
        assert_eq!(failure.causes, ["outer", "inner"]);
    }

    #[test]
    fn a_cause_is_not_repeated() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Outer(#[source] io::Error);
        let outer = Outer(io::Error::other("inner"));
        assert_eq!(Failure::new(Exit::Failed, "it").caused_by(&outer).causes, ["outer: inner"]);
    }

    #[test]
    fn a_closed_pipe_exits_silently_with_0() {
        let failure = Failure::stdout(&io::ErrorKind::BrokenPipe.into());
        assert_eq!((failure.exit.code(), failure.message.as_str()), (0, ""));
        let full = Failure::stdout(&io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit.code(), 1);
    }
}
