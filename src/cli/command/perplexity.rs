//! `thermocline perplexity`.

use crate::cli::config::PerplexityOptions;
use crate::cli::failure::{Exit, Failure};
use crate::cli::terminal::Terminal;

/// Shall measure quality.
///
/// # Errors
/// Always: the engine it needs is not joined to the command yet.
pub(crate) fn run(options: &PerplexityOptions, terminal: &Terminal) -> Result<(), Failure> {
    terminal.detail(&format!("{options:#?}"));
    Err(Failure::new(Exit::Failed, "the command `perplexity` is not built yet"))
}
