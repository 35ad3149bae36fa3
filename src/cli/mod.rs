//! The command line. Only this crate reads the environment and prints.
//!
//! `words` normalises the command line, `args` parses it into typed values, `command` runs the
//! command. Every error is a `failure::Failure` with one of seven exit codes.

mod args;
mod command;
mod errors;
mod failure;
mod folders;
mod interrupt;
mod llama;
mod llama_flags;
mod observer;
mod output;
mod parse;
mod svg;
mod terminal;
mod texts;
mod words;

use args::{Cli, ColorWhen, Command};
use clap::{CommandFactory, FromArgMatches};
use failure::Failure;
use std::any::TypeId;
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::Terminal;

/// Runs the command line and returns its exit code: 0 done, 1 failed, 2 usage, 3 bad model, 4 not
/// enough memory, 5 backend missing, 130 interrupted.
pub fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).collect();
    let mut terminal = Terminal::new(ColorWhen::Auto, false, 0);
    match run(words, &mut terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DispatchError::ByClap(error)) => {
            if let Some(failure) = Failure::of_clap(&error) {
                terminal.report(failure);
                return ExitCode::from(failure.exit.code());
            }
            // Failing to print help to a closed pipe is not an error.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
        Err(DispatchError::Failed(failure)) => {
            terminal.report(&failure);
            ExitCode::from(failure.exit.code())
        }
    }
}

/// Why no command was run, or why it failed.
enum DispatchError {
    /// Help, version, or an error that clap found.
    ByClap(clap::Error),
    /// Any other failure.
    Failed(Failure),
}

impl From<Failure> for DispatchError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

fn run(words: Vec<OsString>, terminal: &mut Terminal) -> Result<(), DispatchError> {
    let cli = cli();
    let mut words = words::normalise(&cli, words)?;
    let brief = words.argv.iter().any(|word| word == "-h");
    let cli = if brief { short_help(cli) } else { cli };
    let parsed = cli.try_get_matches_from(words.argv).map_err(DispatchError::ByClap)?;
    let command = Cli::from_arg_matches(&parsed).map_err(DispatchError::ByClap)?.command;
    let common = command.common();
    *terminal = Terminal::new(common.color, common.log_disable, common.verbose);
    let Some((name, given)) = parsed.subcommand() else {
        return Ok(());
    };
    if llama::applies_to(name.as_ref()) {
        #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
        llama::from_environment(&mut words.seen, |name| std::env::var(name).ok());
        llama::judge(&words.seen, terminal)?;
    }
    let command = command::chat::run_or_chat(command, words.named, given, terminal)?;
    Ok(dispatch(command, terminal)?)
}

fn dispatch(command: Command, terminal: &Terminal) -> Result<(), Failure> {
    if command.placement().is_some_and(|placement| placement.list_devices) {
        return command::devices::list();
    }
    let several = command.placement().is_some_and(|placement| placement.devices.backend.len() > 1);
    if several && !matches!(command, Command::Bench(_)) {
        let help = "`bench --backend cpu,wgpu` compares several backends";
        return Err(Failure::usage("only `bench` takes several names for --backend").help(help));
    }
    match command {
        Command::Run(args) => command::run::run(&args.resolve()?, terminal),
        Command::Chat(args) => command::chat::run(&args.resolve()?, terminal),
        Command::Serve(args) => command::serve::run(&args.resolve()?, terminal),
        Command::Bench(args) => command::bench::run(&args.resolve()?, terminal),
        Command::Perplexity(args) => command::perplexity::run(&args, terminal),
        Command::Predictor(args) => command::predictor::run(&args, terminal),
        Command::Profile(args) => command::profile::run(&args, terminal),
        Command::Plan(args) => command::plan::run(&args, terminal),
        Command::Devices(args) => command::devices::run(args.json),
        Command::Doctor(args) => command::doctor::run(&args, terminal),
        Command::Info(args) => command::info::run(args.model.as_deref(), args.json),
        Command::Convert(args) => command::convert::convert(&args, terminal),
        Command::Quantize(args) => command::convert::quantize(&args, terminal),
        Command::Split(args) => command::convert::split(&args, terminal),
        Command::Merge(args) => command::convert::merge(&args, terminal),
        Command::Tokenize(args) => command::tokenize::run(&args, terminal),
        Command::Cache(args) => command::cache::run(&args),
        Command::Completions(args) => command::completions::run(args.shell, &mut cli()),
    }
}

/// clap's command, with the section on llama.cpp's flags for the commands that accept them.
fn cli() -> clap::Command {
    let with_llama = |c: clap::Command| {
        let applies = llama::applies_to(c.get_name().as_ref());
        if applies { c.after_long_help(llama::help()) } else { c }
    };
    let cli = Cli::command().infer_long_args(false);
    let cli = cli.mut_subcommands(with_llama);
    // Hide the values of switches, because switches accept more spellings than clap lists.
    let is_switch = |arg: &clap::Arg| {
        arg.is_require_equals_set() && arg.get_value_parser().type_id() == TypeId::of::<bool>()
    };
    cli.mut_subcommands(|command| {
        command.mut_args(|arg| {
            let hide = is_switch(&arg);
            arg.hide_env_values(true).hide_possible_values(hide)
        })
    })
}

/// One line per flag. Only `--help` prints environment variables and lists of values.
fn short_help(cli: clap::Command) -> clap::Command {
    cli.mut_subcommands(|command| {
        command.mut_args(|arg| {
            let has_value = arg.get_action().takes_values();
            arg.hide_env(true).hide_possible_values(has_value)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_help_has_a_line_for_each_flag() {
        for command in short_help(cli()).get_subcommands_mut() {
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.len() <= 80, "{} {}: {help}", command.get_name(), arg.get_id());
                assert!(!help.ends_with('.'), "{} {}: {help}", command.get_name(), arg.get_id());
            }
            let name = command.get_name().to_owned();
            let text = command.render_help().to_string();
            assert!(!text.contains("THERMOCLINE_ARG_"), "{name}");
        }
    }

    #[test]
    fn clap_accepts_the_definitions() {
        cli().debug_assert();
    }

    #[test]
    fn every_flag_except_input_text_has_an_environment_variable() {
        for command in cli().get_subcommands() {
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                let text = [
                    "prompt",
                    "file",
                    "binary_file",
                    "stdin",
                    "system_prompt",
                    "system_prompt_file",
                    "json_schema",
                    "json_schema_file",
                    "grammar",
                    "grammar_file",
                    "shell",
                    "action",
                    "model_folder",
                    "predictor_folder",
                    "input",
                    "outfile",
                    "target",
                    "prefix",
                    "help",
                    "version",
                ];
                let env = arg.get_env().and_then(|e| e.to_str());
                // llama-server's variable for the API key has no `ARG` in its name.
                let is_twin =
                    |e: &str| e.starts_with("THERMOCLINE_ARG_") || e == "THERMOCLINE_API_KEY";
                let named = env.is_some_and(is_twin);
                assert_eq!(named, !text.contains(&id), "{} {id}", command.get_name());
            }
        }
    }
}
