//! `--prompt-cache`: the computed tokens of a run in a file, for the next run.

use std::fs;
use std::io;

use crate::cli::args::RunArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, Sequence};

/// The sequence in the file of `--prompt-cache`; an empty one without the flag or without the file.
///
/// # Errors
/// A file that cannot be read, or that is not a saved sequence of this model.
pub(super) fn load(
    args: &RunArgs,
    engine: &mut Engine,
    terminal: &Terminal,
) -> Result<Sequence, Failure> {
    let Some(path) = &args.prompt_cache else { return Ok(engine.open()) };
    let name = path.display();
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(engine.open()),
        Err(error) => {
            let message = format!("cannot read the prompt cache '{name}'");
            return Err(Failure::new(Exit::Failed, message).caused_by(&error));
        }
    };
    match engine.restore(&bytes) {
        Ok(sequence) => {
            terminal.note(&format!("{} tokens in the prompt cache", sequence.tokens().len()));
            Ok(sequence)
        }
        Err(error) => {
            let message = format!("cannot use the prompt cache '{name}'");
            let help = "delete the file, or name another one with --prompt-cache";
            Err(Failure::new(Exit::Failed, message).caused_by(&error).help(help))
        }
    }
}

/// Writes the sequence to the file of `--prompt-cache`: its first `n_prompt` tokens, or all of them
/// with `--prompt-cache-all`.
///
/// # Errors
/// Device errors; a file that cannot be written.
pub(super) fn save(
    args: &RunArgs,
    engine: &mut Engine,
    sequence: &mut Sequence,
    n_prompt: usize,
) -> Result<(), Failure> {
    let Some(path) = args.prompt_cache.as_deref().filter(|_| !args.prompt_cache_ro) else {
        return Ok(());
    };
    if !args.prompt_cache_all {
        engine.truncate(sequence, n_prompt);
    }
    let bytes = engine.save(sequence)?;
    scheduler::write_private(path, &bytes).map_err(|error| {
        let message = format!("cannot write the prompt cache '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })
}
