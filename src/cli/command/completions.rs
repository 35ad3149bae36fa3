//! `thermocline completions`.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use clap_complete::Shell;

/// Prints the completion script for a shell.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(shell: Shell, cli: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = cli.get_name().to_owned();
    clap_complete::generate(shell, cli, name, &mut script);
    let mut out = Output::stdout();
    out.write(script)?;
    out.flush()
}
