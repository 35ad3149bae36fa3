//! Generates a continuation of a prompt.
//!
//!     cargo run --release -p thermocline-runtime --example generate -- [PROMPT] [MODEL.gguf]

use std::error::Error;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use thermocline_runtime::{Model, Options, SamplerConfig, Settings, SilentObserver};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".to_owned());
    run(&prompt, args.next().map(PathBuf::from), &mut io::stdout())
}

/// Continues `prompt` by up to 64 tokens. Without a `path`, uses the built-in model.
pub(crate) fn run(
    prompt: &str,
    path: Option<PathBuf>,
    out: &mut impl Write,
) -> Result<(), Box<dyn Error>> {
    let mut model =
        Model::open_observed(path.as_deref(), &Options::default(), Arc::new(SilentObserver))?;
    let mut sequence = model.sequence();
    let ids = model.encode(prompt)?;
    let sampler = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
    let settings = Settings { n_predict: Some(64), ..Settings::default() };
    write!(out, "{prompt}")?;
    let mut tokens = model.generate(&mut sequence, &ids, &sampler, &settings)?;
    for token in &mut tokens {
        write!(out, "{}", token?.text)?;
        out.flush()?;
    }
    let report = tokens.finish()?;
    let speed = report.n_steps as f64 / report.generated.as_secs_f64();
    writeln!(out, "\n[{} tokens, {speed:.1} per second]", report.n_generated)?;
    Ok(())
}
