//! `--prompt-cache`: a sequence's tokens and KV cache in a file, for the next run.

use std::io::Read;
use std::path::Path;

use own_file::open_regular;

use crate::cli::args::RunArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;
use crate::engine::{Engine, Sequence};

/// The sequence in the file of `--prompt-cache`; an empty one without the flag or without the file.
///
/// # Errors
/// A file that cannot be read, or that is not a saved sequence of this model; a folder that does not
/// exist.
pub(super) fn load(
    args: &RunArgs,
    engine: &mut Engine,
    terminal: &Terminal,
) -> Result<Sequence, Failure> {
    if let Some(path) = args.prompt_cache.as_deref().filter(|_| !args.prompt_cache_ro) {
        check_folder(path)?;
    }
    let Some(path) = args.prompt_cache.as_deref().filter(|path| exists(path)) else {
        return Ok(engine.new_sequence());
    };
    let help = "delete the file, or name another one with --prompt-cache";
    let sequence = restore(path, &read(path)?, engine).map_err(|failure| failure.help(help))?;
    terminal.note(&format!("{} tokens in the prompt cache", sequence.tokens().len()));
    Ok(sequence)
}

/// Fails before a text is generated whose cache could not be written.
fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        None => Ok(()),
        Some(folder) => {
            let message = format!("cannot write the prompt cache '{}'", path.display());
            let cause = format!("the folder {} does not exist", folder.display());
            let mut failure = Failure::new(Exit::Failed, message);
            failure.causes.push(cause);
            Err(failure)
        }
    }
}

/// Whether the file exists; true if the check fails.
fn exists(path: &Path) -> bool {
    path.try_exists().unwrap_or(true)
}

/// The bytes of a prompt cache.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = open_regular(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| {
        let message = format!("cannot read the prompt cache '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })
}

/// The sequence in the bytes of a prompt cache.
///
/// # Errors
/// Bytes that are not a saved sequence of this model.
pub(super) fn restore(path: &Path, bytes: &[u8], engine: &mut Engine) -> Result<Sequence, Failure> {
    engine.restore(bytes).map_err(|error| {
        let message = format!("cannot use the prompt cache '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })
}

/// Writes the sequence to the file of `--prompt-cache`: its first `n_prompt` tokens, or all of them
/// with `--prompt-cache-all`. Does nothing with `--prompt-cache-ro`.
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
    write(path, engine, sequence)
}

/// Writes a sequence to a file that only its owner can read.
///
/// # Errors
/// Device errors; a file that cannot be written.
pub(super) fn write(path: &Path, engine: &mut Engine, sequence: &Sequence) -> Result<(), Failure> {
    if !scheduler::may_replace(path) {
        let message =
            format!("cannot write '{}': it exists and is not a prompt cache", path.display());
        return Err(Failure::new(Exit::Failed, message).help("choose another name"));
    }
    let bytes = engine.save(sequence)?;
    scheduler::write_private(path, &bytes).map_err(|error| {
        let message = format!("cannot write the prompt cache '{}'", path.display());
        Failure::new(Exit::Failed, message).caused_by(&error)
    })
}
