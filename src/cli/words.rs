//! Normalises the command line before clap sees it.
//!
//! clap cannot parse llama.cpp's flags: short names have several letters (`-ngl`), a flag takes the
//! next word as its value even if that begins with `-` (`-p -ngl`, `-n -1`), every switch has a
//! `--no-` form, and the command `run` may be omitted. This module therefore scans the words once,
//! with clap's list of arguments as the table. Each flag becomes `--long` or `--long=value`, which
//! is unambiguous for clap. Flags that exist only in llama.cpp are collected for [`super::llama`].

use super::failure::Failure;
use super::llama::{self, Arity, GivenFlag, LlamaFlag};
use clap::{Arg, ArgAction, Command};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};

/// Multi-letter short names of our own flags. Those of llama.cpp's other flags are in
/// [`super::llama_flags`].
const MULTI_LETTER: [(&str, &str); 24] = [
    ("-np", "parallel"),
    ("-to", "timeout"),
    ("-ub", "ubatch-size"),
    ("-tb", "threads-batch"),
    ("-Cr", "cpu-range"),
    ("-ctk", "cache-type-k"),
    ("-ctv", "cache-type-v"),
    ("-mmp", "mmap"),
    ("-dev", "device"),
    ("-ngl", "n-gpu-layers"),
    ("-mg", "main-gpu"),
    ("-nkvo", "no-kv-offload"),
    ("-bf", "binary-file"),
    ("-jf", "json-schema-file"),
    ("-sp", "special"),
    ("-co", "color"),
    ("-pg", "pg"),
    ("-oe", "output-err"),
    ("-cnv", "conversation"),
    ("-st", "single-turn"),
    ("-sys", "system-prompt"),
    ("-sysf", "system-prompt-file"),
    ("-rea", "reasoning"),
    ("-mli", "multiline-input"),
];

/// Multi-letter short names that stand for the `--no-` form of a switch.
const NEGATED: [(&str, &str); 2] = [("-nr", "--no-repack"), ("-no-cnv", "--no-conversation")];

/// Words that a switch takes as its value even without `=`.
const SWITCH_VALUES: [&str; 9] =
    ["on", "off", "auto", "true", "false", "0", "1", "always", "never"];

/// The normalised command line: words for clap, and flags for [`super::llama`].
#[derive(Debug)]
pub(super) struct Words {
    pub(super) argv: Vec<OsString>,
    pub(super) seen: Vec<GivenFlag>,
    /// Whether the user named a command; otherwise the command is `run` or `chat`.
    pub(super) named: bool,
}

/// Normalises `words` (without the program's name) for `cli`.
///
/// # Errors
/// An unknown short flag of several letters: clap would read `-xyz` as `-x yz`.
pub(super) fn normalise(cli: &Command, words: Vec<OsString>) -> Result<Words, Failure> {
    let mut argv = vec![OsString::from(cli.get_name())];
    let mut seen = Vec::new();
    let (words, named) = match split_command(cli, words) {
        LeadingWords::TopLevel(words) => {
            argv.extend(words);
            return Ok(Words { argv, seen, named: true });
        }
        LeadingWords::Command(command, words) => {
            argv.push(command.into());
            (words, true)
        }
        LeadingWords::Unnamed(words) => {
            argv.push("run".into());
            (words, false)
        }
    };
    let name = argv[1].clone();
    let command = cli.find_subcommand(&name);
    let table = Table { commands: command.into_iter().collect(), llama: llama::applies_to(&name) };
    let mut rest = VecDeque::from(words);
    while let Some(word) = rest.pop_front() {
        if word == "--" {
            argv.push(word);
            argv.extend(rest);
            break;
        }
        match table.find(&word) {
            FlagMatch::Plain => argv.push(word),
            FlagMatch::Ours(long, takes, given) => {
                let mut regular = OsString::from(format!("--{long}"));
                if let Some(value) = given.or_else(|| takes.take(&mut rest)) {
                    regular.push("=");
                    regular.push(value);
                }
                argv.push(regular);
            }
            FlagMatch::Llama(known, flag, given) => {
                let value = given.or_else(|| known.takes.take(&mut rest));
                let value = value.map(|v| v.to_string_lossy().into_owned());
                seen.push(GivenFlag { known, flag, value });
            }
            FlagMatch::Unknown(flag) => {
                let help = format!("see `thermocline {} --help`", name.to_string_lossy());
                return Err(Failure::usage(format!("unknown flag '{flag}'")).help(help));
            }
        }
    }
    Ok(Words { argv, seen, named })
}

enum LeadingWords {
    /// Words that clap takes unchanged: help, version.
    TopLevel(Vec<OsString>),
    /// The command, and the other words.
    Command(String, Vec<OsString>),
    /// All words; the user named no command.
    Unnamed(Vec<OsString>),
}

/// Finds the command: the first word that is neither a flag nor a flag's value. Flags may precede
/// it.
fn split_command(cli: &Command, mut words: Vec<OsString>) -> LeadingWords {
    let help = |w: &OsString| w == "help" || w == "-h" || w == "--help";
    if words.first().is_some_and(help) {
        return LeadingWords::TopLevel(words);
    }
    let table = Table { commands: cli.get_subcommands().collect(), llama: true };
    let mut rest = VecDeque::from(words.clone());
    while let Some(word) = rest.pop_front() {
        if word == "--" {
            break;
        }
        if word == "--version" || word == "-V" {
            return LeadingWords::TopLevel(vec![word]);
        }
        match table.find(&word) {
            FlagMatch::Plain => {
                let command = cli.find_subcommand(&word).map(|c| c.get_name().to_owned());
                let Some(command) = command else { break };
                let at = words.len() - rest.len() - 1;
                words.remove(at);
                return LeadingWords::Command(command, words);
            }
            FlagMatch::Ours(_, takes, None) => drop(takes.take(&mut rest)),
            FlagMatch::Llama(known, _, None) => drop(known.takes.take(&mut rest)),
            FlagMatch::Ours(..) | FlagMatch::Llama(..) | FlagMatch::Unknown(_) => {}
        }
    }
    LeadingWords::Unnamed(words)
}

/// The flags of `commands` and, if `llama` is set, llama.cpp's other flags.
struct Table<'a> {
    commands: Vec<&'a Command>,
    llama: bool,
}

enum FlagMatch {
    /// Not a flag, or a flag that clap parses itself.
    Plain,
    /// One of our own flags: long name, arity, the value after `=`.
    Ours(String, Arity, Option<OsString>),
    /// A flag of llama.cpp without an equivalent here: table entry, name used, the value after `=`.
    Llama(&'static LlamaFlag, String, Option<OsString>),
    /// Looks like a multi-letter short flag, but is unknown.
    Unknown(String),
}

impl Table<'_> {
    fn find(&self, word: &OsStr) -> FlagMatch {
        let Some(text) = word.to_str() else {
            return FlagMatch::Plain;
        };
        if !text.starts_with('-') || text == "-" || text == "-h" || text == "--help" {
            return FlagMatch::Plain;
        }
        let (flag, given) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(OsString::from(value))),
            None => (text, None),
        };
        let negated = NEGATED.iter().find(|(short, _)| *short == flag);
        let flag = negated.map_or(flag, |(_, long)| long);
        if let Some((long, takes)) = self.find_own_flag(flag) {
            return FlagMatch::Ours(long, takes, given);
        }
        if let Some((long, Arity::Maybe)) =
            flag.strip_prefix("--no-").and_then(|n| self.find_long_flag(n))
        {
            return FlagMatch::Ours(long, Arity::Nothing, Some("off".into()));
        }
        if self.llama
            && let Some(known) = llama::find(flag)
        {
            return FlagMatch::Llama(known, flag.to_owned(), given);
        }
        let multi_letter = !flag.starts_with("--") && flag.chars().count() > 2;
        if multi_letter { FlagMatch::Unknown(flag.to_owned()) } else { FlagMatch::Plain }
    }

    fn find_own_flag(&self, flag: &str) -> Option<(String, Arity)> {
        if let Some(name) = flag.strip_prefix("--") {
            return self.find_long_flag(name);
        }
        if let Some((_, long)) = MULTI_LETTER.iter().find(|(short, _)| *short == flag) {
            return self.find_long_flag(long);
        }
        let mut letters = flag.chars().skip(1);
        let (letter, None) = (letters.next()?, letters.next()) else {
            return None;
        };
        let has = |arg: &&Arg| arg.get_short() == Some(letter);
        self.arguments().find(has).and_then(name_and_arity)
    }

    fn find_long_flag(&self, name: &str) -> Option<(String, Arity)> {
        let has = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        };
        self.arguments().find(has).and_then(name_and_arity)
    }

    fn arguments(&self) -> impl Iterator<Item = &Arg> {
        self.commands.iter().flat_map(|c| c.get_arguments())
    }
}

/// An argument's long name and arity; `None` for a positional argument.
fn name_and_arity(arg: &Arg) -> Option<(String, Arity)> {
    let long = arg.get_long()?.to_owned();
    let takes = if arg.is_require_equals_set() {
        Arity::Maybe
    } else if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        Arity::One
    } else {
        Arity::Nothing
    };
    Some((long, takes))
}

impl Arity {
    /// Removes the flag's value from the words that follow it; `None` if it takes no value or none
    /// follows.
    fn take(self, rest: &mut VecDeque<OsString>) -> Option<OsString> {
        match self {
            Self::Nothing => None,
            Self::One => rest.pop_front(),
            Self::Two => {
                let mut value = rest.pop_front()?;
                value.push(" ");
                value.push(rest.pop_front().unwrap_or_default());
                Some(value)
            }
            Self::Maybe => {
                let next = rest.front()?.to_str()?;
                let is_value = next.split(',').all(|v| SWITCH_VALUES.contains(&v));
                if is_value { rest.pop_front() } else { None }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::*;
    use clap::CommandFactory;

    fn words(line: &[&str]) -> Words {
        let words = line.iter().map(OsString::from).collect();
        normalise(&Cli::command(), words).unwrap()
    }

    #[track_caller]
    fn check(line: &[&str], expected: &[&str]) {
        assert_eq!(words(line).argv[1..], *expected);
    }

    #[test]
    fn every_multi_letter_flag_exists() {
        let cli = Cli::command();
        let commands: Vec<_> = cli.get_subcommands().collect();
        let all = Table { commands, llama: false };
        for (short, long) in MULTI_LETTER {
            assert!(all.find_long_flag(long).is_some(), "{short} -> {long}");
            // `bench` and `serve` take -np; other commands run one sequence and ignore it.
            let twice = llama::find(short).is_some() && short != "-np";
            assert!(!twice, "{short} is listed twice");
        }
    }

    #[test]
    fn run_is_the_default_command() {
        check(&[], &["run"]);
        check(&["-m", "x", "-p", "y"], &["run", "--model=x", "--prompt=y"]);
        check(&["-p", "bench"], &["run", "--prompt=bench"]);
        check(&["-m", "x", "bench"], &["bench", "--model=x"]);
        check(&["--color", "off", "info"], &["info", "--color=off"]);
        check(
            &["-ngl", "9", "bench", "-ub", "64"],
            &["bench", "--n-gpu-layers=9", "--ubatch-size=64"],
        );
        check(&["-nkvo", "-p", "x"], &["run", "--no-kv-offload", "--prompt=x"]);
        check(&["-nkvo", "0"], &["run", "--no-kv-offload=0"]);
        assert!(words(&["run", "-p", "x"]).named && words(&["-m", "x", "chat"]).named);
        assert!(!words(&["-p", "chat"]).named);
    }

    #[test]
    fn llama_cpps_conversation_flags_are_accepted() {
        check(&["-cnv", "-sys", "-no-cnv"], &["run", "--conversation", "--system-prompt=-no-cnv"]);
        check(
            &["-no-cnv", "-st", "-mli"],
            &["run", "--conversation=off", "--single-turn", "--multiline-input"],
        );
        check(&["chat", "-rea", "off"], &["chat", "--reasoning=off"]);
    }

    #[test]
    fn help_and_version_are_passed_on() {
        check(&["--help"], &["--help"]);
        check(&["help", "run"], &["help", "run"]);
        check(&["run", "--help"], &["run", "--help"]);
        check(&["-m", "x", "-h"], &["run", "--model=x", "-h"]);
        check(&["-m", "x", "--version"], &["--version"]);
        check(&["-p", "--version"], &["run", "--prompt=--version"]);
    }

    #[test]
    fn multi_letter_flags_become_long_flags() {
        check(&["-ub", "64", "-ctk", "f32"], &["run", "--ubatch-size=64", "--cache-type-k=f32"]);
        check(&["-ub=64", "-sp"], &["run", "--ubatch-size=64", "--special"]);
        let w = words(&["-sm", "row", "-fa", "-ncmoe=3", "-t", "2"]);
        assert_eq!(w.argv[1..], ["run", "--threads=2"]);
        let seen: Vec<_> = w.seen.iter().map(|s| (s.flag.as_str(), s.value.as_deref())).collect();
        assert_eq!(seen, [("-sm", Some("row")), ("-fa", None), ("-ncmoe", Some("3"))]);
    }

    #[test]
    fn a_value_is_never_read_as_a_flag() {
        check(&["-p", "-ngl"], &["run", "--prompt=-ngl"]);
        check(&["-n", "-1", "--temp", "-1"], &["run", "--predict=-1", "--temp=-1"]);
        check(&["--prompt=-ub"], &["run", "--prompt=-ub"]);
        check(&["-p", "--"], &["run", "--prompt=--"]);
        check(&["-p", "", "-n", "4"], &["run", "--prompt=", "--predict=4"]);
        check(&["--", "-ngl"], &["run", "--", "-ngl"]);
    }

    #[test]
    fn switches_have_two_forms() {
        check(&["--no-escape", "-e"], &["run", "--escape=off", "--escape"]);
        check(&["--mmap", "0", "--perf", "-p", "1"], &["run", "--mmap=0", "--perf", "--prompt=1"]);
        check(&["-nr", "-p", "x"], &["run", "--repack=off", "--prompt=x"]);
        check(&["-co", "-p", "x"], &["run", "--color", "--prompt=x"]);
        check(&["-co", "off"], &["run", "--color=off"]);
    }

    #[test]
    fn unknown_short_flags_are_not_split() {
        let words = vec![OsString::from("-xyz")];
        let failure = normalise(&Cli::command(), words).unwrap_err();
        assert_eq!(failure.exit.code(), 2);
        assert!(failure.message.contains("-xyz"));
    }

    #[test]
    fn a_commands_own_flag_overrides_llama_cpps() {
        // In `bench`, -d is a depth and -fa 0,1 is a list.
        let w = words(&["bench", "-d", "64", "-fa", "0,1", "-nkvo", "0"]);
        assert_eq!(w.argv[1..], ["bench", "--n-depth=64", "--no-kv-offload=0"]);
        assert_eq!(w.seen.len(), 1);
    }
}
