//! The command line. Only this crate reads the environment and prints.
//!
//! `words` normalises the command line, `args` parses it into typed values, `command` runs the
//! command. Every error is a `failure::Failure` with one of seven exit codes.

mod allocation;
mod args;
mod arity;
mod backtrace;
mod clap_errors;
mod command;
mod compute_pool;
mod date;
mod draw_target;
mod environment;
mod errors;
mod failure;
mod folders;
mod foreign;
mod interrupt;
mod llama;
#[cfg(test)]
mod llama_docs;
mod llama_flags;
mod llama_other_flags;
mod log_file;
mod models;
mod observer;
mod output;
mod parse;
mod positional;
mod program;
mod progress;
mod short_help;
#[cfg(unix)]
mod signal_actions;
mod suggest;
mod svg;
mod terminal;
mod texts;
mod version;
#[cfg(windows)]
mod windows;
mod words;
mod wrap;

pub use allocation::Allocator;
use args::{Cli, ColorWhen, Command};
use clap::{CommandFactory, FromArgMatches};
use failure::Failure;
use parse::values;
use program::Program;
use serve::LogFormat;
use std::any::TypeId;
use std::ffi::OsString;
use std::process::ExitCode;
use terminal::Terminal;

/// Runs the command line and returns its exit code: 0 done, 1 failed, 2 usage, 3 bad model, 4 not
/// enough memory, 5 backend missing, 130 interrupted.
pub fn main() -> ExitCode {
    backtrace::take_over();
    #[cfg(unix)]
    {
        signal_actions::install();
        signal_actions::ignore_file_size_signal();
    }
    #[cfg(windows)]
    windows::install();
    let mut words = std::env::args_os();
    let program = Program::of_name(words.next().as_deref());
    let mut terminal = Terminal::new(ColorWhen::Auto, false, 0);
    match run(program, words.collect(), &mut terminal) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DispatchError::ByClap(error)) => {
            if let Some(failure) = Failure::of_clap(&error) {
                terminal.report(failure);
                return ExitCode::from(failure.exit.code());
            }
            if let (Err(e), false) = (error.print(), error.use_stderr()) {
                let failure = Failure::stdout(&e);
                terminal.report(&failure);
                return ExitCode::from(failure.exit.code());
            }
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
        }
        Err(DispatchError::Failed(failure)) => {
            terminal.release_notes();
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

fn run(
    program: Program,
    words: Vec<OsString>,
    terminal: &mut Terminal,
) -> Result<(), DispatchError> {
    #[allow(clippy::disallowed_methods)] // only the CLI reads the environment
    let env = |name: &str| std::env::var(name).ok();
    program.check()?;
    let cli = cli();
    let mut words = words::normalise(&cli, program, words)?;
    let name = words.argv.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let mut cli = environment::with_llama_variables(cli, &name, env);
    if words.argv.iter().any(|word| word == "-h") {
        cli = short_help::short_help(cli);
    }
    let parsed = cli.try_get_matches_from_mut(&words.argv).map_err(|error| {
        match clap_errors::reworded(&error, &cli, &words.argv) {
            Some(failure) => DispatchError::Failed(failure),
            None => DispatchError::ByClap(error),
        }
    })?;
    let mut command = Cli::from_arg_matches(&parsed).map_err(DispatchError::ByClap)?.command;
    if words.text
        && let Command::Run(args) | Command::Chat(args) = &mut command
    {
        args.prepend_piped_text()?;
    }
    if let Some((_, given)) = parsed.subcommand() {
        output::check_outputs(given, &[])?;
    }
    let common = command.common();
    *terminal = Terminal::new(common.color, common.log_disable, common.verbose);
    terminal.log_to(common.log_file.as_deref())?;
    if let Command::Run(args) | Command::Chat(args) = &command
        && args.json
    {
        terminal.hold_notes();
    }
    if let Command::Serve(args) = &command
        && args.log_format == LogFormat::Json
    {
        terminal.log_json();
    }
    let cache = command.placement().and_then(|p| folders::refused_cache(p.repack_cache.as_deref()));
    cache.iter().for_each(|note| terminal.note(note));
    // A model by name is looked up as `pull` does.
    let by_name = words.argv.iter().any(|word| words::is_flag(word, "hf-repo")).then_some("pull");
    let unread = [name.as_str()].into_iter().chain(by_name);
    unread.flat_map(|name| environment::unread(name, env)).for_each(|note| terminal.note(&note));
    let set = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    environment::unknown(&self::cli(), set).iter().for_each(|note| terminal.note(note));
    let Some((_, given)) = parsed.subcommand() else {
        return Ok(());
    };
    if llama::applies_to(name.as_ref()) {
        llama::from_environment(&name, &mut words.seen, env);
        // Flags that no mode accepts are rejected before a model is downloaded.
        let usage = llama::FlagUse { command: &name, converses: true };
        llama::judge(&words.seen, usage, &terminal.quiet())?;
    }
    models::resolve(&mut command, given, terminal)?;
    if let Some((_, models)) = command.models_mut() {
        output::check_outputs(given, &models.paths())?;
    }
    let command = command::chat::run_or_chat(command, words.named, given, terminal)?;
    if llama::applies_to(name.as_ref()) {
        let usage = llama::FlagUse { command: &name, converses: command.converses() };
        llama::judge(&words.seen, usage, terminal)?;
    }
    let measures = command.measures();
    dispatch(command, terminal).map_err(|failure| {
        if measures && failure.is_silent_interrupt() {
            terminal.note("stopped");
        }
        failure.into()
    })
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
    if !matches!(command, Command::Bench(_)) {
        one_value(&command)?;
    }
    compute_pool::start(command.n_threads()?);
    match command {
        Command::Run(args) => command::run::run(&args.with_piped_text()?.resolve()?, terminal),
        Command::Chat(args) => command::chat::run(&args.resolve()?, terminal),
        Command::Serve(args) => command::serve::run(&args.resolve()?, terminal),
        Command::Embed(args) => command::embed::run(&args, terminal),
        Command::Bench(args) => command::bench::run(&args.resolve()?, terminal),
        Command::Perplexity(args) => command::perplexity::run(&args, terminal),
        Command::Imatrix(args) => command::imatrix::run(&args, terminal),
        Command::Predictor(args) => command::predictor::run(&args, terminal),
        Command::Profile(args) => command::profile::run(&args, terminal),
        Command::Plan(args) => command::plan::run(&args, terminal),
        Command::Devices(args) => command::devices::run(args.json, &args.switches.all()),
        Command::Doctor(args) => command::doctor::run(&args, terminal),
        Command::Info(args) => command::info::run(&args),
        Command::Convert(args) => command::convert::convert(&args, terminal),
        Command::Quantize(args) => command::convert::quantize(&args, terminal),
        Command::Split(args) => command::convert::split(&args, terminal),
        Command::Merge(args) => command::convert::merge(&args, terminal),
        Command::Tokenize(args) => command::tokenize::run(&args, terminal),
        Command::Pull(args) => command::pull::pull(&args, terminal),
        Command::List(args) => command::pull::list(&args),
        Command::Rm(args) => command::pull::remove(&args),
        Command::Cache(args) => command::cache::run(&args),
        Command::Completions(args) => command::completions::run(args.shell, cli()),
        Command::Man(args) => command::man::run(&args.folder, cli()),
        Command::CompileKernel(_) => command::compile_kernel::run(),
    }
}

/// Rejects lists of values that only `bench` measures in turn.
fn one_value(command: &Command) -> Result<(), Failure> {
    let Some(placement) = command.placement() else { return Ok(()) };
    let lists = [
        ("-ngl", placement.devices.layers().len()),
        ("--no-kv-offload", placement.devices.no_kv_offload.len()),
        ("--placement", placement.devices.placement.len()),
        ("--main-gpu", values(&placement.devices.main_gpu).len()),
        ("--n-cpu-moe", values(&placement.devices.n_cpu_moe).len()),
        ("--mmap", placement.mmap.len()),
        ("--cpu-mask", placement.processor.cpu_mask.len()),
    ];
    match lists.into_iter().find(|(_, n)| *n > 1) {
        None => Ok(()),
        Some((flag, _)) => {
            let message = format!("{flag} has several values, and only `bench` runs them in turn");
            Err(Failure::usage(message).help("give one value"))
        }
    }
}

/// clap's command, with usage lines, the last of repeated flags counting, and the section on
/// llama.cpp's flags for the commands that accept them.
fn cli() -> clap::Command {
    let complete = |command: clap::Command| {
        let name = command.get_name().to_owned();
        let command = command.args_override_self(true);
        let command = match positional::usage(&name) {
            Some(words) => command.override_usage(format!("thermocline {name} [OPTIONS] {words}")),
            None => command,
        };
        if llama::applies_to(name.as_ref()) {
            let help = llama::help(&command);
            command.after_long_help(help)
        } else {
            command
        }
    };
    let cli = Cli::command().infer_long_args(false);
    let cli = cli.version(version::VERSION.as_str()).long_version(version::LONG_VERSION.as_str());
    let cli = cli.mut_subcommands(complete);
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

#[cfg(test)]
mod tests {
    use super::*;

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
                    "folder",
                    "action",
                    "model_folder",
                    "predictor_folder",
                    "input",
                    "names",
                    "words",
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
