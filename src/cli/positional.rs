//! Words that are not flags: models and prompts without `-m` and `-p`.
//!
//! `thermocline model.gguf`, `run model.gguf "Hello"`, `bench a.gguf b.gguf`, `tokenize "Hello"`.

use super::failure::Failure;
use super::suggest;
use super::words::is_flag;
use clap::Command;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The words without a flag that a command takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FreeWords {
    /// A model and a text.
    ModelAndText,
    /// A model and texts, each a word.
    ModelAndTexts,
    /// One model.
    Model,
    /// Several models.
    Models,
    /// What clap's definition of the command says.
    ByClap,
}

fn taken_by(command: &str) -> FreeWords {
    match command {
        "run" | "chat" | "tokenize" => FreeWords::ModelAndText,
        "serve" | "info" | "plan" | "perplexity" | "imatrix" | "profile" | "predictor" => {
            FreeWords::Model
        }
        "embed" => FreeWords::ModelAndTexts,
        "bench" => FreeWords::Models,
        _ => FreeWords::ByClap,
    }
}

/// The words that the usage line of a command shows after `[OPTIONS]`; `None` for those of clap.
pub(super) fn usage(command: &str) -> Option<&'static str> {
    match taken_by(command) {
        FreeWords::ByClap if command == "quantize" => Some("<IN> [OUT] <TYPE> [THREADS]"),
        FreeWords::ModelAndText if command == "tokenize" => Some("[MODEL] [TEXT]"),
        FreeWords::ModelAndText => Some("[MODEL] [PROMPT]"),
        FreeWords::ModelAndTexts => Some("[MODEL] [TEXT]..."),
        FreeWords::Model => Some("[MODEL]"),
        FreeWords::Models => Some("[MODEL]..."),
        FreeWords::ByClap => None,
    }
}

/// What [`place`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    /// Whether the command still counts as named: `run MODEL`, which ollama has too, converses if
    /// the model has a chat template.
    pub(super) named: bool,
    /// Whether the words contain a prompt.
    pub(super) text: bool,
}

/// Adds the words in `free` to `argv` (program, command, flags), as `--model` and `--prompt` where
/// the command takes these. `named` says whether the user named the command.
///
/// # Errors
/// A misspelt command; more words than the command takes.
pub(super) fn place(
    cli: &Command,
    named: bool,
    free: Vec<OsString>,
    argv: &mut Vec<OsString>,
) -> Result<Placed, Failure> {
    let command = argv.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let taken = taken_by(&command);
    if taken == FreeWords::ByClap {
        if free.iter().any(|word| word.as_encoded_bytes().starts_with(b"-")) {
            argv.push("--".into());
        }
        argv.extend(free);
        return Ok(Placed { named, text: false });
    }
    let has = |argv: &[OsString], long| argv.iter().any(|word| is_flag(word, long));
    let has_model = has(&argv[..], "model");
    let mut words = free.into_iter().peekable();
    let Some(first) = words.peek() else { return Ok(Placed { named, text: false }) };
    if !named && !is_model_file(first) {
        check_command(cli, first, has_model)?;
    }
    let texts = matches!(taken, FreeWords::ModelAndText | FreeWords::ModelAndTexts);
    let is_model = |word: &OsStr| !texts || is_model_file(word) || named && is_model_name(word);
    let mut n_models = 0;
    if !has_model || taken == FreeWords::Models {
        let most = if taken == FreeWords::Models { usize::MAX } else { 1 };
        while n_models < most
            && let Some(model) = words.next_if(|word| is_model(word))
        {
            let mut flag = OsString::from("--model=");
            flag.push(model);
            argv.push(flag);
            n_models += 1;
        }
    }
    let named = named && (command != "run" || n_models == 0);
    let Some(first) = words.next() else { return Ok(Placed { named, text: false }) };
    let shown = first.to_string_lossy().into_owned();
    if !texts {
        let message = format!("unexpected word '{shown}': `{command}` takes one model");
        return Err(Failure::usage(message).help(format!("see `thermocline {command} -h`")));
    }
    if ["prompt", "file", "binary-file"].iter().any(|long| has(&argv[..], long)) {
        if !named && suggest::is_foreign_command(&shown) {
            return Err(suggest::unknown_command(cli, &shown));
        }
        let message = format!("unexpected word '{shown}': the prompt is already given");
        return Err(Failure::usage(message)
            .help("quote a prompt with spaces; a switch takes on, off or auto"));
    }
    let mut text = OsString::from("--prompt=");
    text.push(first);
    for word in words {
        if taken == FreeWords::ModelAndTexts {
            argv.push(std::mem::replace(&mut text, OsString::from("--prompt=")));
        } else {
            text.push(" ");
        }
        text.push(word);
    }
    argv.push(text);
    Ok(Placed { named, text: true })
}

/// Whether a word names a model file: a path that ends in .gguf or exists, an address, or a
/// name on the hub.
fn is_model_file(word: &OsStr) -> bool {
    let path = Path::new(word);
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
        || path.is_file()
        || word.to_str().is_some_and(super::args::is_url)
        || super::models::is_name(word)
}

/// Whether a word may be a model's name or path: a text has spaces.
fn is_model_name(word: &OsStr) -> bool {
    word.to_str().is_none_or(|word| !word.is_empty() && !word.contains(char::is_whitespace))
}

/// Rejects a word that is meant as a command: every word without spaces where no model is named,
/// otherwise only one that resembles a command.
fn check_command(cli: &Command, word: &OsStr, has_model: bool) -> Result<(), Failure> {
    let word = word.to_string_lossy();
    let is_text = word.contains(char::is_whitespace) || word.is_empty() || word.starts_with('-');
    if is_text || has_model && !suggest::resembles_command(cli, &word) {
        return Ok(());
    }
    Err(suggest::unknown_command(cli, &word))
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::super::program::Program;
    use super::super::words::normalise;
    use super::*;
    use clap::CommandFactory;

    fn parsed(line: &[&str]) -> Result<(Vec<OsString>, bool), Failure> {
        let words = line.iter().map(OsString::from).collect();
        let words = normalise(&Cli::command(), Program::Thermocline, words)?;
        Ok((words.argv[1..].to_vec(), words.named))
    }

    #[track_caller]
    fn check(line: &[&str], expected: &[&str], named: bool) {
        assert_eq!(parsed(line).unwrap(), (expected.iter().map(OsString::from).collect(), named));
    }

    #[test]
    fn models_and_prompts_need_no_flags() {
        check(&["m.gguf"], &["run", "--model=m.gguf"], false);
        check(&["m.gguf", "Hello"], &["run", "--model=m.gguf", "--prompt=Hello"], false);
        check(
            &["run", "m.gguf", "why", "now"],
            &["run", "--model=m.gguf", "--prompt=why now"],
            false,
        );
        check(&["run", "llama3", "Hi"], &["run", "--model=llama3", "--prompt=Hi"], false);
        check(&["run", ""], &["run", "--prompt="], true);
        check(&["run", "Once upon a time"], &["run", "--prompt=Once upon a time"], true);
        check(&["chat", "m.gguf"], &["chat", "--model=m.gguf"], true);
        check(&["-m", "x", "Hello"], &["run", "--model=x", "--prompt=Hello"], false);
        check(&["run", "-m", "x", "Hello"], &["run", "--model=x", "--prompt=Hello"], true);
        check(&["Hello there"], &["run", "--prompt=Hello there"], false);
        check(
            &["bench", "a.gguf", "b", "-p", "8"],
            &["bench", "--n-prompt=8", "--model=a.gguf", "--model=b"],
            true,
        );
        check(&["info", "m"], &["info", "--model=m"], true);
        check(&["tokenize", "m.gguf", "Hi"], &["tokenize", "--model=m.gguf", "--prompt=Hi"], true);
        check(
            &["embed", "m.gguf", "Hi", "you"],
            &["embed", "--model=m.gguf", "--prompt=Hi", "--prompt=you"],
            true,
        );
        check(&["run", "--", "-x y"], &["run", "--prompt=-x y"], true);
        check(&["split", "a", "b"], &["split", "a", "b"], true);
    }

    #[test]
    fn misplaced_words_are_errors() {
        let failed = |line: &[&str]| parsed(line).unwrap_err();
        for (word, right) in
            [("chta", "chat"), ("rn", "run"), ("benhc", "bench"), ("infos", "info")]
        {
            for line in [&[word][..], &["-m", "x", word]] {
                let failure = failed(line);
                assert_eq!(failure.message, format!("unknown command '{word}'"));
                assert!(
                    failure.help.unwrap().contains(&format!("`thermocline {right}`")),
                    "{word}"
                );
            }
        }
        assert!(failed(&["info", "a", "b"]).message.contains("takes one model"));
        let twice = failed(&["-m", "x", "-p", "Once", "upon", "a", "time"]);
        assert!(twice.message.contains("'upon'") && twice.help.unwrap().contains("quote a prompt"));
    }
}
