//! Normalises the command line before clap sees it.
//!
//! clap cannot parse llama.cpp's flags: short names have several letters (`-ngl`), a flag takes the
//! next word as its value even if that begins with `-` (`-p -ngl`, `-n -1`), every switch has a
//! `--no-` form, `_` may stand for `-`, and the command `run` may be omitted. This module therefore
//! scans the words once, with clap's list of arguments as the table. Each flag becomes `--long` or
//! `--long=value`, which is unambiguous for clap. Flags that exist only in llama.cpp are collected
//! for [`super::llama`], words that are not flags for [`super::positional`].

use super::arity::Arity;
use super::failure::Failure;
use super::llama::{self, GivenFlag, LlamaFlag};
use super::positional::{self, Placed};
use super::program::Program;
use super::suggest;
use clap::{Arg, ArgAction, Command};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};

/// Multi-letter short names of our own flags. Those of llama.cpp's other flags are in
/// [`super::llama_flags`].
const MULTI_LETTER: [(&str, &str); 34] = [
    ("-lm", "load-mode"),
    ("-hf", "hf-repo"),
    ("-hfr", "hf-repo"),
    ("-hff", "hf-file"),
    ("-hft", "hf-token"),
    ("-mu", "model-url"),
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
    ("-ot", "override-tensor"),
    ("-cmoe", "cpu-moe"),
    ("-ncmoe", "n-cpu-moe"),
    ("-bf", "binary-file"),
    ("-ofreq", "output-frequency"),
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
const NEGATED: [(&str, &str); 3] =
    [("-nr", "--no-repack"), ("-no-cnv", "--no-conversation"), ("--no-cnv", "--no-conversation")];

/// Flags of which only `bench` uses every occurrence. Elsewhere the last one counts.
const BENCH_LISTS: [&str; 10] = [
    "backend",
    "vram-budget",
    "ram-budget",
    "n-gpu-layers",
    "no-kv-offload",
    "mmap",
    "cpu-mask",
    "placement",
    "main-gpu",
    "n-cpu-moe",
];

/// The normalised command line: words for clap, and flags for [`super::llama`].
#[derive(Debug)]
pub(super) struct Words {
    pub(super) argv: Vec<OsString>,
    pub(super) seen: Vec<GivenFlag>,
    /// Whether the user named a command; otherwise the command is `run` or `chat`.
    pub(super) named: bool,
    /// Whether the prompt is a word without a flag.
    pub(super) text: bool,
}

/// Normalises `words` (without the program's name) for `cli`.
///
/// # Errors
/// An unknown flag or command: clap would read `-xyz` as `-x yz`, and suggest flags that have
/// nothing to do with the one given.
pub(super) fn normalise(
    cli: &Command,
    program: Program,
    words: Vec<OsString>,
) -> Result<Words, Failure> {
    let mut argv = vec![OsString::from(cli.get_name())];
    let mut seen = Vec::new();
    let leading = program.leading_words(words).unwrap_or_else(|words| split_command(cli, words));
    let (words, named) = match leading {
        LeadingWords::TopLevel(words) => {
            argv.extend(words);
            return Ok(Words { argv, seen, named: true, text: false });
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
    let mut free = Vec::new();
    while let Some(word) = rest.pop_front() {
        if word == "--" {
            free.extend(rest);
            break;
        }
        match table.find(&word) {
            FlagMatch::Word => free.push(word),
            FlagMatch::Plain if word == "--usage" => argv.push("--help".into()),
            FlagMatch::Plain if word == "--version" || word == "-V" => {
                let argv = vec![OsString::from(cli.get_name()), word];
                return Ok(Words { argv, seen: Vec::new(), named: true, text: false });
            }
            FlagMatch::Plain => argv.push(word),
            FlagMatch::Ours(long, takes, given) => {
                let mut regular = OsString::from(format!("--{long}"));
                if let Some(value) = given.or_else(|| takes.take(&mut rest)) {
                    regular.push("=");
                    regular.push(value);
                }
                if name != "bench" && BENCH_LISTS.contains(&long.as_str()) {
                    argv.retain(|word| !is_flag(word, &long));
                }
                argv.push(regular);
            }
            FlagMatch::Llama(known, flag, given) => {
                let value = given.or_else(|| known.takes.take(&mut rest));
                let value = value.map(|v| v.to_string_lossy().into_owned());
                seen.push(GivenFlag { known, flag, value });
            }
            FlagMatch::Unknown(flag) => {
                let Some((known, takes)) = unused_flag(cli, &name, &flag) else {
                    return Err(suggest::unknown_flag(cli, &name.to_string_lossy(), &flag));
                };
                let given =
                    word.to_str().and_then(|word| word.split_once('=')).map(|(_, v)| v.into());
                let value = given.or_else(|| takes.take(&mut rest));
                let value = value.map(|v: OsString| v.to_string_lossy().into_owned());
                seen.push(GivenFlag { known, flag, value });
            }
        }
    }
    let Placed { named, text } = positional::place(cli, named, free, &mut argv)?;
    Ok(Words { argv, seen, named, text })
}

/// A flag about sampling or length, given to a command that generates no text but whose program in
/// llama.cpp accepts it: its table entry, and how many values it takes.
fn unused_flag(cli: &Command, command: &OsStr, flag: &str) -> Option<(&'static LlamaFlag, Arity)> {
    let known = llama::find_unused(command)?;
    let run = Table { commands: cli.find_subcommand("run").into_iter().collect(), llama: false };
    let (long, takes) = run.find_own_flag(&flag.replace('_', "-"))?;
    let mut of_run = run.arguments();
    let arg = of_run.find(|arg| arg.get_long() == Some(&long))?;
    let samples = arg.get_help_heading() == Some("Sampling") || long == "predict";
    samples.then_some((known, takes))
}

/// Our multi-letter short names of the long flags that are `known`.
pub(super) fn short_names(known: impl Fn(&str) -> bool) -> Vec<String> {
    let of_known = MULTI_LETTER.iter().filter(|(_, long)| known(long));
    of_known.map(|(short, _)| (*short).to_owned()).collect()
}

/// Whether a normalised word is the flag `--long`, with or without a value.
pub(super) fn is_flag(word: &OsStr, long: &str) -> bool {
    let name = word.to_str().and_then(|word| word.strip_prefix("--"));
    name.is_some_and(|name| name.split('=').next() == Some(long))
}

/// What the command line begins with.
pub(super) enum LeadingWords {
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
    // Alone, -v asks for the version, as in ollama.
    if words == ["-v"] {
        return LeadingWords::TopLevel(vec!["--version".into()]);
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
            FlagMatch::Word => {
                let command = cli.find_subcommand(&word).map(|c| c.get_name().to_owned());
                let Some(command) = command else { break };
                let at = words.len() - rest.len() - 1;
                words.remove(at);
                return LeadingWords::Command(command, words);
            }
            FlagMatch::Ours(_, takes, None) => drop(takes.take(&mut rest)),
            FlagMatch::Llama(known, _, None) => drop(known.takes.take(&mut rest)),
            FlagMatch::Plain
            | FlagMatch::Ours(..)
            | FlagMatch::Llama(..)
            | FlagMatch::Unknown(_) => {}
        }
    }
    LeadingWords::Unnamed(words)
}

/// The flags of `commands` and, if `llama` is set, llama.cpp's other flags.
pub(super) struct Table<'a> {
    pub(super) commands: Vec<&'a Command>,
    pub(super) llama: bool,
}

enum FlagMatch {
    /// Not a flag.
    Word,
    /// A flag that clap parses itself.
    Plain,
    /// One of our own flags: long name, arity, the value after `=`.
    Ours(String, Arity, Option<OsString>),
    /// A flag of llama.cpp without an equivalent here: table entry, name used, the value after `=`.
    Llama(&'static LlamaFlag, String, Option<OsString>),
    /// Looks like a flag, but is unknown.
    Unknown(String),
}

impl Table<'_> {
    fn find(&self, word: &OsStr) -> FlagMatch {
        let Some(text) = word.to_str() else {
            return FlagMatch::Word;
        };
        if ["-h", "--help", "--usage", "-V", "--version"].contains(&text) {
            return FlagMatch::Plain;
        }
        if !text.starts_with('-') || text == "-" {
            return FlagMatch::Word;
        }
        let (typed, given) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(OsString::from(value))),
            None => (text, None),
        };
        let flag = typed.strip_prefix("--").map(|name| format!("--{}", name.replace('_', "-")));
        let flag = flag.as_deref().unwrap_or(typed);
        let negated = NEGATED.iter().find(|(short, _)| *short == flag);
        let flag = negated.map_or(flag, |(_, long)| long);
        if let Some((long, takes)) = self.find_own_flag(flag) {
            return FlagMatch::Ours(long, takes, given);
        }
        if let Some((long, takes)) = flag.strip_prefix("--no-").and_then(|n| self.find_long_flag(n))
            && takes.is_switch()
        {
            return FlagMatch::Ours(long, Arity::Nothing, Some("off".into()));
        }
        if self.llama
            && let Some(known) = llama::find(flag)
        {
            return FlagMatch::Llama(known, flag.to_owned(), given);
        }
        if self.llama
            && let Some(known) = llama::find_negated(flag)
        {
            return FlagMatch::Llama(known, flag.replacen("--no-", "--", 1), Some("off".into()));
        }
        FlagMatch::Unknown(typed.to_owned())
    }

    /// The long name and the arity of the flag, if `commands` have it.
    pub(super) fn find_own_flag(&self, flag: &str) -> Option<(String, Arity)> {
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
    let takes = if long == "lora-scaled" {
        Arity::Scaled
    } else if long == "color" {
        Arity::State
    } else if arg.is_require_equals_set() {
        Arity::Maybe
    } else if matches!(arg.get_action(), ArgAction::Set | ArgAction::Append) {
        Arity::One
    } else {
        Arity::Nothing
    };
    Some((long, takes))
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::*;
    use clap::CommandFactory;

    fn words(line: &[&str]) -> Words {
        let words = line.iter().map(OsString::from).collect();
        normalise(&Cli::command(), Program::Thermocline, words).unwrap()
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
        check(&["-v"], &["--version"]);
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
        check(
            &["--lora-scaled", "a", "0.5", "-st"],
            &["run", "--lora-scaled=a 0.5", "--single-turn"],
        );
        check(
            &["--lora-scaled", "a:1,b:2", "-st"],
            &["run", "--lora-scaled=a:1,b:2", "--single-turn"],
        );
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
        let w = words(&["-sm", "row", "-fa", "-fitt=3", "-t", "2"]);
        assert_eq!(w.argv[1..], ["run", "--threads=2"]);
        let seen: Vec<_> = w.seen.iter().map(|s| (s.flag.as_str(), s.value.as_deref())).collect();
        assert_eq!(seen, [("-sm", Some("row")), ("-fa", None), ("-fitt", Some("3"))]);
    }

    #[test]
    fn a_value_is_never_read_as_a_flag() {
        check(&["-p", "-ngl"], &["run", "--prompt=-ngl"]);
        check(&["-n", "-1", "--temp", "-1"], &["run", "--predict=-1", "--temp=-1"]);
        check(&["--prompt=-ub"], &["run", "--prompt=-ub"]);
        check(&["-p", "--"], &["run", "--prompt=--"]);
        check(&["-p", "", "-n", "4"], &["run", "--prompt=", "--predict=4"]);
        check(&["--", "-ngl"], &["run", "--prompt=-ngl"]);
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
        let failure = normalise(&Cli::command(), Program::Thermocline, words).unwrap_err();
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
