//! `--list-devices`.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::devices;

/// Prints the devices this build can use, in llama.cpp's form.
///
/// # Errors
/// Where standard output cannot be written.
pub(crate) fn list() -> Result<(), Failure> {
    let threads = devices::cpu_threads(None);
    let mut out = Output::stdout();
    out.line("Available devices:")?;
    out.line(&format!("  CPU: {threads} threads"))?;
    out.flush()
}
