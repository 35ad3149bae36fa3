//! `thermocline completions`.

use crate::cli::failure::Failure;
use crate::cli::output::Output;
use crate::convert::Target;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;
use hal::format::Format;

/// Prints the completion script for a shell.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn run(shell: Shell, cli: Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    let name = cli.get_name().to_owned();
    let mut cli = with_values(cli);
    // The default command's flags need no command before them.
    let default = cli.find_subcommand("run").map(|run| run.get_arguments().cloned());
    let flags: Vec<_> = default.into_iter().flatten().filter(|arg| !arg.is_positional()).collect();
    cli = cli.args(flags).args_conflicts_with_subcommands(true);
    clap_complete::generate(shell, &mut cli, name, &mut script);
    let mut out = Output::stdout();
    out.write(script)?;
    out.flush()
}

/// Adds the usual values of flags and words that take other values too, which clap does not know.
fn with_values(cli: Command) -> Command {
    let weights = Format::ALL.iter().filter(|format| format.is_weight() && format.quantizes());
    let tensor_types: Vec<&str> = weights.map(|format| format.name()).collect();
    let values: [(&str, Vec<&str>); 6] = [
        ("sparsity", vec!["exact", "balanced", "fast", "predicted", "off"]),
        ("n_gpu_layers", vec!["auto", "all", "0"]),
        ("vram_budget", vec!["8GiB", "80%", "-1"]),
        ("reasoning_effort", vec!["low", "medium", "high"]),
        ("output_tensor_type", tensor_types.clone()),
        ("token_embedding_type", tensor_types),
    ];
    cli.mut_subcommands(|command| {
        let with_values = |arg: Arg| {
            let known = values.iter().find(|(id, _)| arg.get_id() == id);
            match known {
                Some((_, values)) => arg.value_parser(PossibleValuesParser::new(values)),
                None => arg,
            }
        };
        let command = command.mut_args(with_values);
        if command.get_name() == "quantize" { with_quantize_words(command) } else { command }
    })
}

/// Replaces the words of `quantize`, which are one list, by two files, a type and a number.
fn with_quantize_words(command: Command) -> Command {
    let types: Vec<&str> = Target::all().map(Target::name).collect();
    let mut complete = Command::new("quantize");
    if let Some(about) = command.get_about() {
        complete = complete.about(about.clone());
    }
    let flags = command.get_arguments().filter(|arg| !arg.is_positional()).cloned();
    let file = |name: &'static str| Arg::new(name).value_hint(ValueHint::FilePath);
    complete
        .args(flags)
        .arg(file("IN"))
        .arg(file("OUT"))
        .arg(Arg::new("TYPE").value_parser(PossibleValuesParser::new(types)))
        .arg(Arg::new("THREADS"))
}
