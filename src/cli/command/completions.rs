//! `thermocline completions`.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use clap::builder::PossibleValuesParser;
use clap_complete::Shell;

/// Prints the completion script for a shell.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(shell: Shell, cli: &mut clap::Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = cli.get_name().to_owned();
    // The default command's flags need no command before them.
    let default = cli.find_subcommand("run").map(|run| run.get_arguments().cloned());
    let flags: Vec<_> = default.into_iter().flatten().filter(|arg| !arg.is_positional()).collect();
    // These flags take other values too, so clap does not know the usual ones.
    let values: [(&str, &[&str]); 3] = [
        ("sparsity", &["exact", "balanced", "fast", "predicted", "off"]),
        ("n_gpu_layers", &["auto", "all", "0"]),
        ("vram_budget", &["8GiB", "80%", "-1"]),
    ];
    let with_values = |arg: clap::Arg| {
        let known = values.iter().find(|(id, _)| arg.get_id() == id);
        match known {
            Some((_, values)) => arg.value_parser(PossibleValuesParser::new(*values)),
            None => arg,
        }
    };
    *cli = std::mem::take(cli).mut_subcommands(|command| command.mut_args(with_values));
    let flags = flags.into_iter().map(with_values);
    *cli = std::mem::take(cli).args(flags).args_conflicts_with_subcommands(true);
    clap_complete::generate(shell, cli, name, &mut script);
    let mut out = Output::stdout();
    out.write(script)?;
    out.flush()
}
