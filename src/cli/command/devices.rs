//! `--list-devices`.

use crate::cli::failure::Failure;
use crate::cli::output::Output;

/// Prints the devices this build can use, in llama.cpp's form.
///
/// # Errors
/// Where standard output cannot be written.
pub(crate) fn list() -> Result<(), Failure> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut out = Output::stdout();
    out.line("Available devices:")?;
    out.line(&format!("  CPU: {threads} threads"))?;
    out.flush()
}
