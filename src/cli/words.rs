//! Normalises the command line before clap sees it.
//!
//! llama.cpp's flags are not clap's: short names have several letters (`-ngl`), a flag takes the
//! next word as its value whatever it looks like (`-p -ngl`, `-n -1`), every switch has a `--no-`
//! form, and the command `run` may be omitted. So the words are scanned once, with clap's own list
//! of arguments as the table: each flag becomes `--long` or `--long=value`, which is unambiguous
//! for clap. Flags that only llama.cpp has are removed; [`super::llama`] judges them.

use super::failure::Failure;
use super::llama::{self, Arity, GivenFlag, LlamaFlag};
use clap::{Arg, ArgAction, Command};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};

/// Multi-letter short names of arguments that exist here. The rest are in [`super::llama`].
const MULTI_LETTER: [(&str, &str); 22] = [
    ("-np", "parallel"),
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

/// Multi-letter short names of switches' `--no-` forms.
const NEGATED: [(&str, &str); 2] = [("-nr", "--no-repack"), ("-no-cnv", "--no-conversation")];

/// Words that a switch takes as its value without `=`.
const SWITCH_VALUES: [&str; 9] =
    ["on", "off", "auto", "true", "false", "0", "1", "always", "never"];

/// The result: words for clap, and flags for [`super::llama`].
#[derive(Debug)]
pub(super) struct Words {
    pub(super) argv: Vec<OsString>,
    pub(super) seen: Vec<GivenFlag>,
    /// Whether the command was given; otherwise it is `run` or `chat`.
    pub(super) named: bool,
}

/// Normalises `words` (without the program's name) for `cli`.
///
/// # Errors
/// An unknown short flag of several letters: clap would read `-xyz` as `-x yz`.
pub(super) fn regular(cli: &Command, words: Vec<OsString>) -> Result<Words, Failure> {
    let mut argv = vec![OsString::from(cli.get_name())];
    let mut seen = Vec::new();
    let (words, named) = match split_command(cli, words) {
        Leading::TopLevel(words) => {
            argv.extend(words);
            return Ok(Words { argv, seen, named: true });
        }
        Leading::Command(command, words) => {
            argv.push(command.into());
            (words, true)
        }
        Leading::Unnamed(words) => {
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

enum Leading {
    /// Words that clap takes unchanged: help, version.
    TopLevel(Vec<OsString>),
    /// The command, and the other words.
    Command(String, Vec<OsString>),
    /// No command.
    Unnamed(Vec<OsString>),
}

/// Finds the command: the first word that is neither a flag nor a flag's value. Flags may precede
/// it.
fn split_command(cli: &Command, mut words: Vec<OsString>) -> Leading {
    let help = |w: &OsString| w == "help" || w == "-h" || w == "--help";
    if words.first().is_some_and(help) {
        return Leading::TopLevel(words);
    }
    let table = Table { commands: cli.get_subcommands().collect(), llama: true };
    let mut rest = VecDeque::from(words.clone());
    while let Some(word) = rest.pop_front() {
        if word == "--" {
            break;
        }
        if word == "--version" || word == "-V" {
            return Leading::TopLevel(vec![word]);
        }
        match table.find(&word) {
            FlagMatch::Plain => {
                let command = cli.find_subcommand(&word).map(|c| c.get_name().to_owned());
                let Some(command) = command else { break };
                let at = words.len() - rest.len() - 1;
                words.remove(at);
                return Leading::Command(command, words);
            }
            FlagMatch::Ours(_, takes, None) => drop(takes.take(&mut rest)),
            FlagMatch::Llama(known, _, None) => drop(known.takes.take(&mut rest)),
            FlagMatch::Ours(..) | FlagMatch::Llama(..) | FlagMatch::Unknown(_) => {}
        }
    }
    Leading::Unnamed(words)
}

/// The flags of the command.
struct Table<'a> {
    commands: Vec<&'a Command>,
    llama: bool,
}

enum FlagMatch {
    /// Not a flag, or one that clap parses itself.
    Plain,
    /// An argument of ours: long name, what it takes, the value after `=`.
    Ours(String, Arity, Option<OsString>),
    /// A flag of llama.cpp without an equivalent here.
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
        if let Some((long, takes)) = self.ours(flag) {
            return FlagMatch::Ours(long, takes, given);
        }
        if let Some((long, Arity::Maybe)) = flag.strip_prefix("--no-").and_then(|n| self.long(n)) {
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

    fn ours(&self, flag: &str) -> Option<(String, Arity)> {
        if let Some(name) = flag.strip_prefix("--") {
            return self.long(name);
        }
        if let Some((_, long)) = MULTI_LETTER.iter().find(|(short, _)| *short == flag) {
            return self.long(long);
        }
        let mut letters = flag.chars().skip(1);
        let (letter, None) = (letters.next()?, letters.next()) else {
            return None;
        };
        let has = |arg: &&Arg| arg.get_short() == Some(letter);
        self.arguments().find(has).and_then(described)
    }

    fn long(&self, name: &str) -> Option<(String, Arity)> {
        let has = |arg: &&Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(name) || aliases.contains(&name)
        };
        self.arguments().find(has).and_then(described)
    }

    fn arguments(&self) -> impl Iterator<Item = &Arg> {
        self.commands.iter().flat_map(|c| c.get_arguments())
    }
}

/// An argument's long name and what follows it. Help and version are left to clap.
fn described(arg: &Arg) -> Option<(String, Arity)> {
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
    /// Removes the flag's value from the words that follow it.
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
        regular(&Cli::command(), words).unwrap()
    }

    #[track_caller]
    fn check(line: &[&str], expected: &[&str]) {
        assert_eq!(words(line).argv[1..], *expected);
    }

    #[test]
    fn the_table_names_arguments_that_exist() {
        let cli = Cli::command();
        let commands: Vec<_> = cli.get_subcommands().collect();
        let all = Table { commands, llama: false };
        for (short, long) in MULTI_LETTER {
            assert!(all.long(long).is_some(), "{short} -> {long}");
            // `bench` takes -np; other commands run one sequence and ignore it.
            let twice = llama::find(short).is_some() && short != "-np";
            assert!(!twice, "{short} is listed twice");
        }
    }

    #[test]
    fn run_needs_no_name() {
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
    fn conversations_have_llama_cpps_names() {
        check(&["-cnv", "-sys", "-no-cnv"], &["run", "--conversation", "--system-prompt=-no-cnv"]);
        check(
            &["-no-cnv", "-st", "-mli"],
            &["run", "--conversation=off", "--single-turn", "--multiline-input"],
        );
        check(&["chat", "-rea", "off"], &["chat", "--reasoning=off"]);
    }

    #[test]
    fn help_and_version_stay() {
        check(&["--help"], &["--help"]);
        check(&["help", "run"], &["help", "run"]);
        check(&["run", "--help"], &["run", "--help"]);
        check(&["-m", "x", "-h"], &["run", "--model=x", "-h"]);
        check(&["-m", "x", "--version"], &["--version"]);
        check(&["-p", "--version"], &["run", "--prompt=--version"]);
    }

    #[test]
    fn several_letters_become_long() {
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
    fn unknown_short_words_are_not_torn_apart() {
        let words = vec![OsString::from("-xyz")];
        let failure = regular(&Cli::command(), words).unwrap_err();
        assert_eq!(failure.exit.code(), 2);
        assert!(failure.message.contains("-xyz"));
    }

    #[test]
    fn the_commands_own_flag_comes_first() {
        // -d is a depth for bench; -fa 0,1 is a list there.
        let w = words(&["bench", "-d", "64", "-fa", "0,1", "-nkvo", "0"]);
        assert_eq!(w.argv[1..], ["bench", "--n-depth=64", "--no-kv-offload=0"]);
        assert_eq!(w.seen.len(), 1);
    }
}
