//! Tab completes the commands of a conversation, the keys of `/set`, and files.

use super::{settings, slash};
use rustyline::completion::{Completer, FilenameCompleter};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper, Result};
use std::cell::Cell;

/// Completes lines that begin with `/`. Other lines are text, where Tab does nothing.
pub(super) struct CommandCompleter {
    files: FilenameCompleter,
    /// Whether the line that is being edited has text.
    has_text: Cell<bool>,
}

impl std::fmt::Debug for CommandCompleter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CommandCompleter")
    }
}

impl CommandCompleter {
    pub(super) fn new() -> Self {
        Self { files: FilenameCompleter::new(), has_text: Cell::new(false) }
    }

    /// Forgets the last line.
    pub(super) fn begin(&self) {
        self.has_text.set(false);
    }

    /// Whether the last line had text when it was ended.
    pub(super) fn has_text(&self) -> bool {
        self.has_text.get()
    }
}

/// Where the unfinished word of `line` begins, and the words that it may become; `None` if it is
/// not a command or the name of a setting.
fn words(line: &str) -> Option<(usize, Vec<String>)> {
    let command = line.strip_prefix('/')?;
    let start = line.rfind(char::is_whitespace).map_or(0, |at| at + 1);
    let begun = &line[start..];
    let matching = |names: &mut dyn Iterator<Item = String>| {
        let found = names.filter(|name| name.starts_with(begun)).collect();
        Some((start, found))
    };
    match command.split_whitespace().collect::<Vec<_>>()[..] {
        _ if start == 0 => matching(&mut slash::COMMANDS.iter().map(|name| format!("/{name} "))),
        ["set"] => matching(&mut settings::names().map(|name| format!("{name} "))),
        ["set", _] if !begun.is_empty() => {
            matching(&mut settings::names().map(|name| format!("{name} ")))
        }
        _ => None,
    }
}

impl Completer for CommandCompleter {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _context: &Context<'_>,
    ) -> Result<(usize, Vec<String>)> {
        let line = line.get(..pos).unwrap_or(line);
        if let Some(found) = words(line) {
            return Ok(found);
        }
        if line.starts_with("/save ") || line.starts_with("/load ") {
            let (start, files) = self.files.complete_path(line, pos)?;
            return Ok((start, files.into_iter().map(|file| file.replacement).collect()));
        }
        Ok((pos, Vec::new()))
    }
}

impl Hinter for CommandCompleter {
    type Hint = String;

    /// Called after each change of the line; gives no hint.
    fn hint(&self, line: &str, _pos: usize, _context: &Context<'_>) -> Option<String> {
        self.has_text.set(!line.is_empty());
        None
    }
}

impl Highlighter for CommandCompleter {}
impl Validator for CommandCompleter {}
impl Helper for CommandCompleter {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_settings_are_completed() {
        assert_eq!(words("/cl"), Some((0, vec!["/clear ".to_owned()])));
        let all = words("/").unwrap().1;
        assert!(all.len() == slash::COMMANDS.len() && all.contains(&"/set ".to_owned()));
        assert_eq!(words("/set top-k"), Some((5, vec!["top-k ".to_owned()])));
        assert_eq!(words("/set te").unwrap(), (5, vec!["temp ".to_owned()]));
        assert!(words("/set ").unwrap().1.contains(&"timings ".to_owned()));
        assert_eq!(words("/set temp 0"), None);
        assert_eq!(words("/nothing"), Some((0, Vec::new())));
        assert_eq!(words("What is /cl"), None);
        for name in slash::COMMANDS {
            let read = slash::read(&format!("/{name} x y"));
            let unknown =
                slash::EnteredLine::Wrong(format!("unknown command /{name}; /help lists all"));
            assert_ne!(read, unknown);
        }
    }
}
