//! Compares the tables of docs/llama-cpp.md with what the program does.

use super::args::{Cli, ColorWhen};
use super::failure::Failure;
use super::llama::{self, FlagUse, Treatment};
use super::program::Program;
use super::terminal::Terminal;
use super::words::normalise;
use super::{clap_errors, cli};
use clap::FromArgMatches;
use std::ffi::OsString;

/// The command of each section, and the words it needs besides flags.
const SECTIONS: [(&str, &str, &[&str]); 13] = [
    ("llama-cli", "run", &[]),
    ("llama-server", "serve", &[]),
    ("llama-perplexity", "perplexity", &[]),
    ("llama-bench", "bench", &[]),
    ("llama-quantize", "quantize", &["a.gguf", "b.gguf", "q4_0"]),
    ("llama-imatrix", "imatrix", &[]),
    ("llama-gguf-split", "split", &["a.gguf", "b"]),
    ("llama-tokenize", "tokenize", &[]),
    ("llama-embedding", "embed", &[]),
    ("Other programs of llama.cpp", "run", &[]),
    ("ik_llama.cpp", "run", &[]),
    ("Removed from llama.cpp", "run", &[]),
    ("PowerInfer", "run", &[]),
];

/// Flags that need another one.
const NEEDED: [(&str, [&str; 2]); 5] = [
    ("--include-weights", ["--imatrix", "x"]),
    ("--exclude-weights", ["--imatrix", "x"]),
    ("--kl-divergence", ["--kl-divergence-base", "x"]),
    ("--ssl-key-file", ["--ssl-cert-file", "x"]),
    ("--ssl-cert-file", ["--ssl-key-file", "x"]),
];

/// What the program does with a command line, in the words of the page.
fn treatment(command: &str, line: &[String]) -> String {
    match try_treatment(command, line) {
        Ok(text) => text,
        Err(failure) => {
            let reason = failure.message.split_once(": ").map(|(_, why)| why.to_owned());
            format!("refused: {}", reason.unwrap_or(failure.message))
        }
    }
}

fn try_treatment(command: &str, line: &[String]) -> Result<String, Failure> {
    let words = [command.to_owned()].iter().chain(line).map(OsString::from).collect();
    let words = normalise(&cli(), Program::Thermocline, words)?;
    let mut cli = cli();
    let parsed = cli.try_get_matches_from_mut(&words.argv).map_err(|error| {
        clap_errors::reworded(&error, &cli, &words.argv)
            .unwrap_or_else(|| panic!("{line:?}: {error}"))
    })?;
    Cli::from_arg_matches(&parsed).unwrap();
    let Some(flag) = words.seen.first() else { return Ok("works".to_owned()) };
    if let (Treatment::RefusedForText(why), false) = (flag.known.verdict, command == "serve") {
        return Ok(format!("refused for raw text: {why}"));
    }
    let terminal = Terminal::new(ColorWhen::Off, true, 0);
    llama::judge(&words.seen, FlagUse { command, converses: false }, &terminal)?;
    Ok(match flag.known.verdict {
        Treatment::Hint(why) if !flag.is_neutral() => format!("note: {why}"),
        Treatment::Hint(_) | Treatment::Silent => "no effect".to_owned(),
        Treatment::Refused(_) | Treatment::RefusedForText(_) => "no effect".to_owned(),
    })
}

/// The texts in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_page_says_what_happens_to_each_flag() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/llama-cpp.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (mut n_flags, mut wrong) = (0, Vec::new());
    for (title, command, more) in SECTIONS {
        let (_, section) = page.split_once(&format!("### {title}\n")).expect(title);
        let section = section.split("\n### ").next().unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [flags, example, says] = cells[..] else { panic!("{row}: three cells") };
            for flag in quoted(flags) {
                let values = quoted(example);
                let values = values.iter().flat_map(|value| value.split(' '));
                let needed = NEEDED.iter().filter(|(name, _)| *name == flag);
                let words = [flag.as_str()].into_iter().chain(values);
                let words = words.chain(needed.flat_map(|(_, words)| *words));
                let words = words.chain(more.iter().copied()).map(str::to_owned);
                let found = treatment(command, &words.collect::<Vec<_>>());
                if found != says {
                    wrong.push(format!("{title}: {flag} {example} | {found} | not: {says}"));
                }
                n_flags += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n_flags > 400, "{n_flags} flags");
}
