//! Commands in a conversation: lines that begin with `/`.

use std::path::PathBuf;

use super::settings;

/// The commands without their `/`, for completion.
pub(crate) const COMMANDS: [&str; 11] =
    ["bye", "clear", "exit", "help", "load", "regen", "save", "set", "show", "stats", "system"];

/// The meaning of an entered line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EnteredLine {
    /// A message to the model.
    Message(String),
    Empty,
    /// Remove all turns from the conversation.
    Clear,
    /// Answer the last message again.
    Regenerate,
    /// Set the system message; without a text, show it.
    System(Option<String>),
    /// Change a setting; without a key, show all.
    Set(Option<(String, String)>),
    /// Save the conversation in a file.
    Save(PathBuf),
    /// Replace the conversation with a saved one.
    Load(PathBuf),
    /// Show the model, its context and devices.
    Show,
    /// Show counts and speeds.
    Stats,
    Exit,
    /// List the commands.
    Help,
    /// An invalid command, with a message for the user.
    Wrong(String),
}

pub(crate) fn read(text: &str) -> EnteredLine {
    if text.trim().is_empty() {
        return EnteredLine::Empty;
    }
    let Some(command) = text.strip_prefix('/') else {
        return EnteredLine::Message(text.to_owned());
    };
    let (word, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let given = (!rest.is_empty()).then(|| rest.to_owned());
    let alone = |line: EnteredLine| match &given {
        None => line,
        Some(_) => EnteredLine::Wrong(format!("/{word} takes no argument")),
    };
    match word {
        "clear" => alone(EnteredLine::Clear),
        "regen" => alone(EnteredLine::Regenerate),
        "stats" => alone(EnteredLine::Stats),
        "exit" | "quit" | "bye" => alone(EnteredLine::Exit),
        "help" | "?" => EnteredLine::Help,
        // ollama's `/show info`.
        "show" => EnteredLine::Show,
        "system" => EnteredLine::System(given.map(|text| unquoted(&text))),
        "save" => with_file(word, given, EnteredLine::Save),
        "load" => with_file(word, given, EnteredLine::Load),
        "set" => set(rest),
        _ => EnteredLine::Wrong(format!("unknown command /{word}; /help lists all")),
    }
}

/// The text without quotes around it.
fn unquoted(text: &str) -> String {
    let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    inner.filter(|inner| !inner.contains('"')).unwrap_or(text).to_owned()
}

fn with_file(
    word: &str,
    given: Option<String>,
    line: impl FnOnce(PathBuf) -> EnteredLine,
) -> EnteredLine {
    match given {
        Some(path) => line(path.into()),
        None => EnteredLine::Wrong(format!("/{word} needs a file")),
    }
}

fn set(rest: &str) -> EnteredLine {
    // ollama's form is `/set parameter KEY VALUE`.
    let rest = rest.strip_prefix("parameter ").unwrap_or(rest).trim();
    match rest.split_once(char::is_whitespace) {
        _ if rest.is_empty() => EnteredLine::Set(None),
        // ollama's form.
        Some(("system", text)) => EnteredLine::System(Some(unquoted(text.trim()))),
        Some(("format", _)) => {
            EnteredLine::Wrong("-j '{}' when the program starts makes answers JSON".to_owned())
        }
        Some((key, value)) => EnteredLine::Set(Some((key.to_owned(), value.trim().to_owned()))),
        // ollama's forms.
        None if rest == "verbose" => EnteredLine::Set(Some(("timings".into(), "on".into()))),
        None if rest == "quiet" => EnteredLine::Set(Some(("timings".into(), "off".into()))),
        None => match rest.split_once('=') {
            Some((key, value)) => EnteredLine::Set(Some((key.to_owned(), value.to_owned()))),
            None => EnteredLine::Wrong(format!("/set {rest} needs a value")),
        },
    }
}

/// The text of `/help`.
pub(crate) fn help() -> Vec<String> {
    let mut lines: Vec<String> = [
        "/clear            start a new conversation; the system message stays",
        "/regen            answer the last message again",
        "/system [TEXT]    set the system message, or show it",
        "/set [KEY VALUE]  change a sampling parameter, or show them",
        "/save FILE        save the conversation and its prompt cache",
        "/load FILE        continue a saved conversation",
        "/show             show the model, its context and devices",
        "/stats            show token counts and speeds",
        "/exit             exit (also Ctrl-D)",
        "Ctrl-C stops an answer, twice at the prompt exits; Tab completes commands and keys.",
        "A line that ends in \\ continues on the next one; a message between \"\"\" may span several.",
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
    fn entered_lines_are_classified() {
        for (text, line) in [
            ("Hello", EnteredLine::Message("Hello".into())),
            (" /clear", EnteredLine::Message(" /clear".into())),
            ("  ", EnteredLine::Empty),
            ("/clear", EnteredLine::Clear),
            ("/regen ", EnteredLine::Regenerate),
            ("/system", EnteredLine::System(None)),
            ("/system Be\nbrief", EnteredLine::System(Some("Be\nbrief".into()))),
            ("/set", EnteredLine::Set(None)),
            ("/set temp 0.5", EnteredLine::Set(Some(("temp".into(), "0.5".into())))),
            ("/set parameter temp 0.5", EnteredLine::Set(Some(("temp".into(), "0.5".into())))),
            ("/save a b.bin ", EnteredLine::Save("a b.bin".into())),
            ("/load talk", EnteredLine::Load("talk".into())),
            ("/?", EnteredLine::Help),
            ("/? shortcuts", EnteredLine::Help),
            ("/show info", EnteredLine::Show),
            ("/set system Be brief", EnteredLine::System(Some("Be brief".into()))),
            ("/set system \"Be brief\"", EnteredLine::System(Some("Be brief".into()))),
            ("/set temp=1", EnteredLine::Set(Some(("temp".into(), "1".into())))),
            ("/bye", EnteredLine::Exit),
            ("/stats", EnteredLine::Stats),
            ("/set verbose", EnteredLine::Set(Some(("timings".into(), "on".into())))),
        ] {
            assert_eq!(read(text), line, "{text:?}");
        }
        for wrong in ["/", "/clea", "/clear now", "/set temp", "/save", "/load ", "/CLEAR", "//"] {
            assert!(matches!(read(wrong), EnteredLine::Wrong(_)), "{wrong:?}");
        }
    }
}
