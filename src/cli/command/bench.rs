//! `thermocline bench`.

use crate::cli::config::BenchOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;

/// Shall measure speed.
///
/// # Errors
/// Always: the engine it needs is not joined to the command yet.
pub(crate) fn run(options: &BenchOptions, terminal: &Terminal) -> Result<(), Failure> {
    terminal.detail(&format!("{options:#?}"));
    Err(Failure::new(Exit::Failed, "the command `bench` is not built yet"))
}
