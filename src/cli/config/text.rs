//! Reads texts from arguments, files and standard input.

use crate::cli::args::TokenizeArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::parse;
use std::io::Read;
use std::path::{Path, PathBuf};

/// `thermocline tokenize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenizeOptions {
    /// The file; `None` is the built-in model.
    pub(crate) model: Option<PathBuf>,
    /// The texts, escapes replaced.
    pub(crate) texts: Vec<String>,
    /// Print only the ids, as one list per text.
    pub(crate) ids: bool,
    /// Add the start and end tokens that the model expects.
    pub(crate) add_special: bool,
    /// Parse names of special tokens in the text as these tokens.
    pub(crate) parse_special: bool,
    /// Print the count at the end.
    pub(crate) show_count: bool,
}

impl TokenizeOptions {
    /// # Errors
    /// A missing or unreadable text.
    pub(crate) fn resolve(args: &TokenizeArgs) -> Result<Self, Failure> {
        let text = match (&args.prompt, &args.file, args.stdin) {
            (Some(text), _, _) => text.clone(),
            (None, Some(path), _) => read_file(path)?,
            (None, None, true) => read_stdin()?,
            (None, None, false) => {
                let help = "pass it with -p TEXT, -f FILE or --stdin";
                return Err(Failure::usage("no text to tokenize").help(help));
            }
        };
        let texts = if args.lines {
            let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
            lines.map(|line| escaped(line.into(), args.escape)).collect::<Result<_, _>>()?
        } else {
            vec![escaped(text, args.escape)?]
        };
        Ok(Self {
            model: args.model.clone(),
            texts,
            ids: args.ids,
            add_special: !args.no_bos,
            parse_special: !args.no_parse_special,
            show_count: args.show_count,
        })
    }
}

/// Reads a text file; `-` is standard input.
///
/// # Errors
/// [`Exit::Failed`], naming the file.
pub(crate) fn read_file(path: &Path) -> Result<String, Failure> {
    if path.as_os_str() == "-" {
        return read_stdin();
    }
    std::fs::read_to_string(path).map_err(|e| {
        let message = format!("cannot read the text in '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&e)
    })
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

/// The text, with its escapes replaced if `escape` is set.
///
/// # Errors
/// [`Exit::Usage`] if `\xHH` produces invalid UTF-8.
pub(super) fn escaped(text: String, escape: bool) -> Result<String, Failure> {
    if !escape {
        return Ok(text);
    }
    parse::unescape(&text).ok_or_else(|| {
        Failure::usage("the \\xHH escapes in the text produce invalid UTF-8")
            .help("--no-escape keeps backslashes unchanged")
    })
}
