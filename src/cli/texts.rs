//! Reads texts from files and standard input.

use super::failure::{Exit, Failure};
use super::parse;
use std::io::{IsTerminal, Read};
use std::path::Path;

/// Reads a text file; `-` is standard input.
///
/// # Errors
/// [`Exit::Failed`]; the message names the file.
pub(crate) fn read_file(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return read_stdin();
    }
    std::fs::read_to_string(path).map_err(|e| {
        let message = format!("cannot read the text in '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&e)
    })
}

/// As [`read_file`], without one line break at the end, as llama.cpp reads prompts.
///
/// # Errors
/// As [`read_file`].
pub(crate) fn read_prompt(path: &Path) -> Result<String, Failure> {
    let mut text = read_file(path)?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(text)
}

/// The text that is piped to the program, without one line break at the end; `None` if standard
/// input is a terminal or empty.
///
/// # Errors
/// As [`read_stdin`].
pub(crate) fn piped_text() -> Result<Option<String>, Failure> {
    if std::io::stdin().is_terminal() {
        return Ok(None);
    }
    let mut text = read_stdin()?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Some(text).filter(|text| !text.is_empty()))
}

/// Reads all of standard input.
///
/// # Errors
/// [`Exit::Failed`] if it cannot be read or is not UTF-8.
pub(crate) fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().lock().read_to_string(&mut text);
    read.map_err(|e| {
        Failure::new(Exit::Failed, "cannot read the text on standard input").caused_by(&e)
    })?;
    Ok(text)
}

/// The text, with escape sequences such as `\n` replaced if `escape` is set.
///
/// # Errors
/// [`Exit::Usage`] if `\xHH` produces invalid UTF-8.
pub(crate) fn escaped(text: String, escape: bool) -> Result<String, Failure> {
    if !escape {
        return Ok(text);
    }
    parse::unescape(&text).ok_or_else(|| {
        Failure::usage("the \\xHH escapes in the text produce invalid UTF-8")
            .help("--no-escape keeps backslashes unchanged")
    })
}
