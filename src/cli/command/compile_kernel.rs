//! `thermocline compile-kernel`: compiles the kernel that a parent process asks for on standard
//! input, and writes the code to standard output.

use crate::cli::failure::{Exit, Failure};
use crate::devices::compile_kernel;
use std::io::{stdin, stdout};

/// Answers one request.
///
/// # Errors
/// No valid request: the command is only for this program itself.
pub(crate) fn run() -> Result<(), Failure> {
    compile_kernel(&mut stdin().lock(), &mut stdout().lock())
        .map_err(|e| Failure::new(Exit::Failed, "no kernel was compiled").caused_by(&e))
}
