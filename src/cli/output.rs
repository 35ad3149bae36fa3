//! Standard output, which carries only the result.

use super::failure::{Exit, Failure};
use crate::gguf::PartFile;
use std::io::{self, StdoutLock, Write};
use std::path::Path;

/// Writes a file in addition to the result, such as a plot. A regular file is written under a
/// temporary name and renamed, so that no partial file remains; anything else, such as a pipe, is
/// written directly.
///
/// # Errors
/// [`Exit::Failed`]; the message names the path.
pub(crate) fn write_file(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |e: &dyn std::error::Error| {
        Failure::new(Exit::Failed, format!("cannot write '{}'", path.display())).caused_by(e)
    };
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, text).map_err(|e| failed(&e));
    }
    // Write to the target of a symbolic link, so that the link itself stays.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut part = PartFile::create(&target).map_err(|e| failed(&e))?;
    part.write_all(text.as_bytes()).map_err(|e| failed(&e))?;
    part.commit().map_err(|e| failed(&e))
}

/// Whether standard output and standard error are the same file, pipe or terminal, as after
/// `2>&1`.
#[cfg(unix)]
pub(crate) fn stdout_is_stderr() -> bool {
    use std::os::fd::{AsFd, BorrowedFd};
    use std::os::unix::fs::MetadataExt;
    let identity = |stream: BorrowedFd<'_>| {
        let file = std::fs::File::from(stream.try_clone_to_owned().ok()?);
        let metadata = file.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    let output = identity(io::stdout().as_fd());
    output.is_some() && output == identity(io::stderr().as_fd())
}

/// Standard output and standard error are not compared on this system.
#[cfg(not(unix))]
pub(crate) fn stdout_is_stderr() -> bool {
    false
}

/// Writes the result. Errors become [`Failure::stdout`], which is silent for a closed pipe.
#[derive(Debug)]
pub(crate) struct Output(StdoutLock<'static>);

impl Output {
    /// Locks standard output for the command.
    pub(crate) fn stdout() -> Self {
        Self(io::stdout().lock())
    }

    /// Writes text; [`Output::flush`] makes it visible.
    pub(crate) fn write(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let written = self.0.write_all(text.as_ref());
        written.map_err(|e| Failure::stdout(&e))
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text)?;
        self.write("\n")
    }

    /// Flushes the text written so far. Called once per token and at the end of a command.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.0.flush().map_err(|e| Failure::stdout(&e))
    }
}
