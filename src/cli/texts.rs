//! Reads texts from files and standard input.

use super::failure::{Exit, Failure};
use super::parse;
use hal::Bytes;
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

/// Maximum size of a text from a file or from standard input, which may have no end.
const MAX_TEXT: Bytes = Bytes(1 << 30);

/// Reads all of `from`, at most `most`.
///
/// # Errors
/// The I/O error; one with the limit if there is more.
pub(crate) fn read_limited(from: impl Read, most: Bytes) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(most.0.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most.0 { Err(too_large(most)) } else { Ok(bytes) }
}

fn too_large(most: Bytes) -> io::Error {
    let message = format!("it has more than {most}, the most that is read");
    io::Error::new(io::ErrorKind::FileTooLarge, message)
}

/// As [`read_limited`], for UTF-8.
///
/// # Errors
/// As [`read_limited`]; bytes that are not UTF-8.
pub(crate) fn read_text(from: impl Read, most: Bytes) -> io::Result<String> {
    let text = String::from_utf8(read_limited(from, most)?);
    text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the text is not valid UTF-8"))
}

/// Reads a text file; `-` is standard input.
///
/// # Errors
/// [`Exit::Failed`]; the message names the file.
pub(crate) fn read_file(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return read_stdin();
    }
    let read = || {
        let file = File::open(path)?;
        // The length of a pipe or device is 0.
        if file.metadata()?.len() > MAX_TEXT.0 {
            return Err(too_large(MAX_TEXT));
        }
        read_text(file, MAX_TEXT)
    };
    read().map_err(|e| {
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
    if io::stdin().is_terminal() {
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
    read_text(io::stdin().lock(), MAX_TEXT).map_err(|e| {
        Failure::new(Exit::Failed, "cannot read the text on standard input").caused_by(&e)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_text_is_refused_with_the_limit() {
        let error = read_text(io::repeat(0), Bytes(4096)).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 4.00 KiB, the most that is read");
        assert_eq!(read_text(&b"four"[..], Bytes(4)).unwrap(), "four");
        assert!(read_text(&b"\xFF"[..], Bytes(4)).is_err());
        // A character that the limit cuts does not hide the reason.
        let cut = read_text("12é".as_bytes(), Bytes(3)).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::FileTooLarge);
    }
}
