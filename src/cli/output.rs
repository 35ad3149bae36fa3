//! Standard output, which carries only the result.

use super::failure::{Exit, Failure};
use crate::gguf::{self, PartFile};
use clap::ArgMatches;
use std::borrow::Cow;
use std::io::{self, IsTerminal, StdoutLock, Write};
use std::path::{Path, PathBuf};

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

/// Flags and words that name a file to write, and those that name a file to read, as clap has them.
const OUTPUTS: [&str; 9] =
    ["kl_divergence_base", "log_file", "out", "outfile", "output", "plot", "svg", "trace", "write"];
const INPUTS: [&str; 12] = [
    "binary_file",
    "chat_template_file",
    "file",
    "grammar_file",
    "imatrix",
    "input",
    "json_schema_file",
    "lora",
    "model",
    "prompt_file",
    "system_prompt_file",
    "tensor_type_file",
];

/// Refuses outputs that would replace an input of the same command, or one of `models`.
///
/// # Errors
/// [`Exit::Usage`]; the message names both.
pub(crate) fn check_outputs(given: &ArgMatches, models: &[PathBuf]) -> Result<(), Failure> {
    let paths = |id: &str| -> Vec<PathBuf> {
        let values = given.try_get_raw(id).ok().flatten();
        values.into_iter().flatten().map(PathBuf::from).collect()
    };
    for output in OUTPUTS.iter().flat_map(|id| paths(id)) {
        let is_output = |input: &PathBuf| gguf::is_same_file(input, &output);
        let inputs = INPUTS.iter().flat_map(|id| paths(id)).chain(models.iter().cloned());
        if let Some(input) = inputs.flat_map(|input| gguf::parts_by_name(&input)).find(is_output) {
            let link = if input == output { "" } else { ": both names lead to one file" };
            let message = format!(
                "the output '{}' would replace '{}', which this command reads{link}",
                output.display(),
                input.display()
            );
            return Err(Failure::usage(message).help("choose another output file"));
        }
    }
    Ok(())
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

/// Standard output and standard error are not compared on this system: handles of consoles and pipes have no numbers.
#[cfg(not(unix))]
pub(crate) fn stdout_is_stderr() -> bool {
    false
}

/// Text of a model for a terminal: control characters other than tabs and line breaks are replaced
/// by their pictures, so that no escape sequence can begin. Each character is replaced by itself,
/// so the pieces of a text need no state.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let keeps = |c: char| !c.is_control() || matches!(c, '\t' | '\n');
    if text.chars().all(keeps) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| match c {
        c if keeps(c) => c,
        '\0'..='\x1f' => {
            char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        '\x7f' => '\u{2421}',
        _ => char::REPLACEMENT_CHARACTER,
    };
    Cow::Owned(text.replace("\r\n", "\n").chars().map(shown).collect())
}

/// Writes the result. Errors become [`Failure::stdout`], which is silent for a closed pipe.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: StdoutLock<'static>,
    /// Whether standard output is a terminal, and no flag asks for raw text.
    cleans: bool,
}

impl Output {
    /// Locks standard output for the command.
    pub(crate) fn stdout() -> Self {
        Self::of_model(false)
    }

    /// As [`Output::stdout`]; with `raw`, [`Output::text`] changes nothing.
    pub(crate) fn of_model(raw: bool) -> Self {
        Self { stdout: io::stdout().lock(), cleans: !raw && io::stdout().is_terminal() }
    }

    /// Writes text; [`Output::flush`] makes it visible.
    pub(crate) fn write(&mut self, text: impl AsRef<[u8]>) -> Result<(), Failure> {
        let written = self.stdout.write_all(text.as_ref());
        written.map_err(|e| Failure::stdout(&e))
    }

    /// Writes text of a model or a file: to a terminal as [`visible`], else unchanged.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), Failure> {
        if self.cleans { self.write(&*visible(text)) } else { self.write(text) }
    }

    /// As [`Output::text`] for bytes that may be part of a character.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.cleans { self.text(&String::from_utf8_lossy(bytes)) } else { self.write(bytes) }
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.write(text)?;
        self.write("\n")
    }

    /// Flushes the text written so far. Called once per token and at the end of a command.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(|e| Failure::stdout(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_of_a_text_can_begin_an_escape_sequence() {
        assert!(matches!(visible("a\tb\nç 語 👍"), Cow::Borrowed(_)));
        assert_eq!(visible("\u{1b}]52;c;aGk=\u{7}"), "␛]52;c;aGk=␇");
        assert_eq!(visible("\u{9b}2J\u{7f}a\rb\r\nc"), "\u{fffd}2J␡a␍b\nc");
        // Cut anywhere, the pieces give the same text.
        let text = "x\u{1b}[31m é\u{9d}0;t\u{9c}\0";
        for (cut, _) in text.char_indices() {
            let (a, b) = text.split_at(cut);
            assert_eq!(format!("{}{}", visible(a), visible(b)), visible(text));
        }
        let all: String = ('\0'..='\u{ff}').filter(|c| !matches!(c, '\t' | '\n')).collect();
        assert!(!visible(&all).chars().any(char::is_control));
    }
}
