//! Commands in a conversation: lines that begin with `/`.

use super::settings;

/// The meaning of an entered line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A message to the model.
    Message(String),
    /// Nothing.
    Empty,
    /// Clear the turns.
    Clear,
    /// Answer the last message again.
    Regenerate,
    /// Set the system message; without a text, show it.
    System(Option<String>),
    /// Change a setting; without a key, show all.
    Set(Option<(String, String)>),
    /// Show counts and speeds.
    Stats,
    /// Exit.
    Exit,
    /// List the commands.
    Help,
    /// An invalid command, with the message for it.
    Wrong(String),
}

/// Parses an entered line.
pub(crate) fn read(text: &str) -> Line {
    if text.trim().is_empty() {
        return Line::Empty;
    }
    let Some(command) = text.strip_prefix('/') else {
        return Line::Message(text.to_owned());
    };
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    let alone = |line: Line| match &given {
        None => line,
        Some(_) => Line::Wrong(format!("/{word} takes no argument")),
    };
    match word {
        "clear" => alone(Line::Clear),
        "regen" => alone(Line::Regenerate),
        "stats" => alone(Line::Stats),
        "exit" | "quit" | "bye" => alone(Line::Exit),
        "help" | "?" => alone(Line::Help),
        "system" => Line::System(given),
        "set" => set(rest),
        _ => Line::Wrong(format!("unknown command /{word}; /help lists all")),
    }
}

fn set(rest: &str) -> Line {
    // ollama's form has another word in between.
    let rest = rest.strip_prefix("parameter ").unwrap_or(rest).trim();
    match rest.split_once(char::is_whitespace) {
        _ if rest.is_empty() => Line::Set(None),
        Some((key, value)) => Line::Set(Some((key.to_owned(), value.trim().to_owned()))),
        None => Line::Wrong(format!("/set {rest} needs a value")),
    }
}

/// The text of `/help`.
pub(crate) fn help() -> Vec<String> {
    let mut lines: Vec<String> = [
        "/clear            start a new conversation; the system message stays",
        "/regen            answer the last message again",
        "/system [TEXT]    set the system message, or show it",
        "/set [KEY VALUE]  change a sampling parameter, or show them",
        "/stats            show token counts and speeds",
        "/exit             exit (also Ctrl-D)",
        "Ctrl-C stops an answer. End a line with \\ to continue it on the next one.",
    ]
    .map(str::to_owned)
    .into();
    lines.push(format!("Keys of /set: {}", settings::names().collect::<Vec<_>>().join(", ")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (text, line) in [
            ("Hello", Line::Message("Hello".into())),
            (" /clear", Line::Message(" /clear".into())),
            ("  ", Line::Empty),
            ("/clear", Line::Clear),
            ("/regen ", Line::Regenerate),
            ("/system", Line::System(None)),
            ("/system Be\nbrief", Line::System(Some("Be\nbrief".into()))),
            ("/set", Line::Set(None)),
            ("/set temp 0.5", Line::Set(Some(("temp".into(), "0.5".into())))),
            ("/set parameter temp 0.5", Line::Set(Some(("temp".into(), "0.5".into())))),
            ("/?", Line::Help),
            ("/bye", Line::Exit),
            ("/stats", Line::Stats),
        ] {
            assert_eq!(read(text), line, "{text:?}");
        }
        for wrong in ["/", "/clea", "/clear now", "/set temp", "/CLEAR", "//"] {
            assert!(matches!(read(wrong), Line::Wrong(_)), "{wrong:?}");
        }
    }
}
