//! Runs the command lines in `posted.txt`, which says what happens to each.
#![cfg(unix)]

use std::path::Path;

use crate::support::packed::families;

use super::{models, program, run_as, stderr, stdout, words};

/// What `posted.txt` says about a line.
enum Expected<'a> {
    /// Exits with 0 and prints a note with this text.
    Runs(&'a str),
    /// The only error is that the model does not exist.
    Flags,
    /// Exits with 2 and prints this text.
    Refused(&'a str),
}

impl Expected<'_> {
    fn parse(text: &str) -> Expected<'_> {
        match text.split_once([' ', ',']) {
            None if text == "runs" => Expected::Runs(""),
            None if text == "flags" => Expected::Flags,
            Some(("runs", note)) => Expected::Runs(note.trim_start()),
            Some(("refused", says)) => Expected::Refused(says),
            _ => panic!("{text}: runs, flags or refused"),
        }
    }

    /// The exit code and a part of the messages.
    fn result(&self) -> (i32, &str) {
        match self {
            Expected::Runs(note) => (0, note),
            Expected::Flags => (3, "gone.gguf"),
            Expected::Refused(says) => (2, says),
        }
    }
}

#[test]
fn posted_lines_do_what_the_list_says() {
    let (folder, story, chat) = models();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (text, out) = (path("text.txt"), path("out"));
    let moe = families().join("qwen3moe.gguf").to_str().unwrap().to_owned();
    std::fs::write(&text, include_str!("../../assets/calibration.txt")).unwrap();
    let replaced =
        [("STORY", &story), ("CHAT", &chat), ("MOE", &moe), ("TEXT", &text), ("OUT", &out)];
    let mut faults = Vec::new();
    let lines = include_str!("posted.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (expected, line) = line.split_once(" | ").unwrap();
        let line =
            replaced.iter().fold(line.to_owned(), |line, (name, path)| line.replace(name, path));
        let words = words(&line);
        let link = folder.path().join(words[0]);
        if !link.exists() {
            std::os::unix::fs::symlink(program(), &link).unwrap();
        }
        let home = [("HOME", folder.path().to_str().unwrap())];
        let output = run_as(&link, &words[1..], None, &home);
        let expected = Expected::parse(expected);
        let (code, says) = expected.result();
        let found = stderr(&output);
        if output.status.code() != Some(code) || !found.contains(says) {
            faults.push(format!(
                "{line}\n  exit {:?}, not {code} with {says:?}: {found}",
                output.status.code()
            ));
        }
        if matches!(expected, Expected::Runs(""))
            && stdout(&output).is_empty()
            && !is_silent(&words)
        {
            faults.push(format!("{line}\n  prints nothing"));
        }
        let _ = std::fs::remove_file(Path::new(&out));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether a line waits for a message that the test does not send.
fn is_silent(words: &[&str]) -> bool {
    words.contains(&"--interactive")
}
