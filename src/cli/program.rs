//! The name the program was started under: as `llama-server` it behaves like llama-server.

use super::failure::Failure;
use super::words::LeadingWords;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The programs whose command lines are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// This program: the first word may be a command.
    Thermocline,
    /// llama-cli: a conversation if the model has a chat template, otherwise raw text.
    LlamaCli,
    /// llama.cpp's `main` of 2023: raw text unless `-cnv` is given.
    Main,
    /// A program of llama.cpp without a counterpart here.
    Unsupported(&'static str),
    /// A program that is one command here, and the flags that its name implies.
    Command(&'static str, &'static [&'static str]),
}

const EMBED: &str = "`thermocline embed` computes embeddings; documents are not searched";
const IMAGES: &str = "images and audio are not supported";
const SEQUENCES: &str = "`thermocline bench -p N -n N -np 1,2,4` decodes several sequences at once";

/// Other programs of llama.cpp, and what to use instead.
const UNSUPPORTED: [(&str, &str); 18] = [
    ("llama-retrieval", EMBED),
    ("llama-mtmd-cli", IMAGES),
    ("llama-llava-cli", IMAGES),
    ("llama-qwen2vl-cli", IMAGES),
    ("llama-minicpmv-cli", IMAGES),
    ("llama-gemma3-cli", IMAGES),
    ("llama-tts", "speech is not supported"),
    ("llama-batched", SEQUENCES),
    ("llama-batched-bench", SEQUENCES),
    ("llama-parallel", SEQUENCES),
    ("llama-speculative", "speculative decoding is not supported; llama-cli gives the same text"),
    ("llama-lookup", "speculative decoding is not supported; llama-cli gives the same text"),
    ("llama-lookahead", "speculative decoding is not supported; llama-cli gives the same text"),
    ("llama-export-lora", "--lora merges adapters when a model is loaded"),
    ("llama-cvector-generator", "control vectors are not supported"),
    ("llama-gguf-hash", "`thermocline info` shows what a file contains"),
    ("llama-gguf", "`thermocline info` shows what a file contains"),
    ("llama-fit-params", "`thermocline plan` shows what fits"),
];

impl Program {
    /// The program that `argv[0]` names.
    pub(super) fn of_name(name: Option<&OsStr>) -> Self {
        let name = name.and_then(|name| Path::new(name).file_name()?.to_str());
        let name = name.unwrap_or_default().to_ascii_lowercase();
        match name.strip_suffix(".exe").unwrap_or(&name) {
            "llama-cli" | "llama-completion" => Self::LlamaCli,
            "main" | "llama-main" => Self::Main,
            // The names without `llama-` are those of 2023.
            "llama-server" | "server" => Self::Command("serve", &[]),
            "llama-bench" => Self::Command("bench", &[]),
            // llama-quantize replaces an existing file.
            "llama-quantize" | "quantize" => Self::Command("quantize", &["--force"]),
            "llama-perplexity" | "perplexity" => Self::Command("perplexity", &[]),
            "llama-imatrix" | "imatrix" => Self::Command("imatrix", &[]),
            "llama-embedding" | "embedding" => Self::Command("embed", &[]),
            "llama-tokenize" | "tokenize" => Self::Command("tokenize", &[]),
            "llama-gguf-split" | "gguf-split" => Self::Command("split", &[]),
            name => match UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == name) {
                Some((_, instead)) => Self::Unsupported(instead),
                None => Self::Thermocline,
            },
        }
    }

    /// Rejects a program without a counterpart here.
    ///
    /// # Errors
    /// What to use instead.
    pub(super) fn check(self) -> Result<(), Failure> {
        let Self::Unsupported(instead) = self else { return Ok(()) };
        let message = "this program of llama.cpp has no counterpart here";
        Err(Failure::usage(message).help(instead))
    }

    /// The command and its words, which never include a command's name.
    ///
    /// # Errors
    /// The words unchanged, if the first of them may be a command.
    pub(super) fn leading_words(self, words: Vec<OsString>) -> Result<LeadingWords, Vec<OsString>> {
        let version = |word: &OsString| word == "--version" || word == "-V";
        if self != Self::Thermocline && words.first().is_some_and(version) {
            return Ok(LeadingWords::TopLevel(words));
        }
        match self {
            Self::Thermocline | Self::Unsupported(_) => Err(words),
            Self::LlamaCli => Ok(LeadingWords::Unnamed(words)),
            Self::Main => Ok(LeadingWords::Command("run".to_owned(), words)),
            Self::Command(command, flags) => {
                let words = flags.iter().map(OsString::from).chain(words).collect();
                Ok(LeadingWords::Command(command.to_owned(), words))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::super::words::normalise;
    use super::*;
    use clap::CommandFactory;

    #[track_caller]
    fn check(program: &str, line: &[&str], expected: &[&str]) {
        let words = line.iter().map(OsString::from).collect();
        let program = Program::of_name(Some(program.as_ref()));
        let words = normalise(&Cli::command(), program, words).unwrap();
        assert_eq!(words.argv[1..], *expected);
    }

    #[test]
    fn the_name_selects_the_command() {
        check("/usr/bin/llama-cli", &["-p", "bench"], &["run", "--prompt=bench"]);
        check("main", &["-m", "x", "-n", "4"], &["run", "--model=x", "--predict=4"]);
        check("llama-server.exe", &["-m", "x", "--port", "1"], &["serve", "--model=x", "--port=1"]);
        check(
            "llama-bench",
            &["-m", "x", "-ngl", "0"],
            &["bench", "--model=x", "--n-gpu-layers=0"],
        );
        check("llama-quantize", &["a", "b", "q8_0"], &["quantize", "--force", "a", "b", "q8_0"]);
        check("llama-perplexity", &["-f", "x"], &["perplexity", "--file=x"]);
        check("./quantize", &["a", "b", "2"], &["quantize", "--force", "a", "b", "2"]);
        check("llama-imatrix", &["-ofreq", "5"], &["imatrix", "--output-frequency=5"]);
        check("llama-tokenize", &["m.gguf", "Hi"], &["tokenize", "--model=m.gguf", "--prompt=Hi"]);
        check("llama-gguf-split", &["a", "b"], &["split", "a", "b"]);
        check("thermocline", &["bench", "-p", "1"], &["bench", "--n-prompt=1"]);
        check("llama-cli", &["--version"], &["--version"]);
        check("llama-embedding", &["-m", "x", "-p", "Hi"], &["embed", "--model=x", "--prompt=Hi"]);
        let retrieval = Program::of_name(Some("llama-retrieval".as_ref())).check().unwrap_err();
        assert!(retrieval.help.unwrap().contains("`thermocline embed`"));
        check("llama-bench", &["-h"], &["bench", "-h"]);
    }
}
