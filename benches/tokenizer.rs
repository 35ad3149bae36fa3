//! Measures the seconds to tokenise 1 MiB, for each vocabulary and each type of text.
//!
//! `cargo bench --bench tokenizer -- FILE...`, where each file contains a vocabulary. `FILE=NAME`
//! selects the pre-tokenizer NAME.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use thermocline::gguf::File;
use thermocline::tokenizer::{Tokenizer, Vocab};

/// Bytes of each text.
const SIZE: usize = 1 << 20;
/// Number of runs; the fastest is reported.
const RUNS: usize = 3;

const PROSE: &str = "Once upon a time, there was a little girl named Lily. She didn't like the 12,345 \
    red balls; she'd rather play outside! \"Mum,\" she said, \"may I go?\"\n\n";
const CODE: &str =
    "    fn walk(&self, text: &[u8]) -> Option<u32> {\n\t\tlet mut n = 0x1F_FFFF >> 3;\n    }\n\n";
const SCRIPTS: &str = "我想在apple工作1314151天～ Ελληνικά Русский язык हिन्दी العربية 한국어 日本語 🦙🚀👩‍🚀 é e\u{301} ";

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this program without `--bench`; it must then exit at once.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let texts = [
        ("prose", PROSE),
        ("code", CODE),
        ("scripts", SCRIPTS),
        ("a...", "a"),
        ("spaces", " "),
        ("newlines", "\n"),
        ("ideographs", "中"),
    ];
    println!("| vocabulary | load |{}", texts.map(|(name, _)| format!(" {name} |")).concat());
    println!("|---|---:|{}", "---:|".repeat(texts.len()));
    for argument in arguments.iter().filter(|a| !a.starts_with('-')) {
        let (path, pre) = argument.split_once('=').unwrap_or((argument, ""));
        let file = File::open(Path::new(path))?;
        let start = Instant::now();
        let mut vocab = Vocab::from_metadata(file.metadata())?;
        if !pre.is_empty() {
            vocab.pre = Some(pre.into());
        }
        let tokenizer = Tokenizer::new(vocab)?;
        let name = Path::new(path).file_stem().unwrap_or_default().display();
        print!("| {name} {pre} | {:.2} |", start.elapsed().as_secs_f64());
        for (_, text) in texts {
            let text = text.repeat(SIZE / text.len());
            let mut best = f64::MAX;
            for _ in 0..RUNS {
                let start = Instant::now();
                tokenizer.encode(&text, true, true)?;
                best = best.min(start.elapsed().as_secs_f64());
            }
            print!(" {best:.3} |");
        }
        println!();
    }
    Ok(())
}
