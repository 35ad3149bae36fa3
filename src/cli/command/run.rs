//! `thermocline run`.

use crate::cli::config::RunOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;

/// Shall continue a prompt.
///
/// # Errors
/// Always: the engine it needs is not joined to the command yet.
pub(crate) fn run(options: &RunOptions, terminal: &Terminal) -> Result<(), Failure> {
    terminal.detail(&format!("{options:#?}"));
    Err(Failure::new(Exit::Failed, "the command `run` is not built yet"))
}
