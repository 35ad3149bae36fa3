//! Answers questions in a conversation, one per line of standard input.
//!
//!     cargo run --release -p thermocline-runtime --example chat -- [MODEL.gguf]

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use thermocline_runtime::{Conversation, Model, Options, SamplerConfig, Settings, SilentObserver};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).map(PathBuf::from);
    run(path, io::stdin().lock(), &mut io::stdout())
}

/// Writes an answer to each line of `questions`. Without a `path`, uses the built-in model.
pub(crate) fn run(
    path: Option<PathBuf>,
    questions: impl BufRead,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let mut model =
        Model::open_observed(path.as_deref(), &Options::default(), Arc::new(SilentObserver))?;
    let dialogue = model.dialogue()?;
    let settings = Settings { n_predict: Some(48), ..Settings::default() };
    let sampler = SamplerConfig { seed: Some(1), ..SamplerConfig::default() };
    let mut conversation = Conversation::default();
    // The sequence keeps its KV cache, so each turn computes only new tokens.
    let mut sequence = model.sequence();
    for question in questions.lines() {
        conversation.ask(&question?);
        let (prompt, settings) = model.prompt(&dialogue, &conversation, &settings)?;
        let mut answer = String::new();
        for token in model.generate(&mut sequence, &prompt, &sampler, &settings)? {
            let text = token?.text;
            write!(out, "{text}")?;
            out.flush()?;
            answer += &text;
        }
        writeln!(out)?;
        conversation.answer(&answer);
    }
    Ok(())
}
