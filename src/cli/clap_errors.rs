//! Rewords clap's errors about values and missing arguments: they name the environment variable a
//! value comes from, and list the possible values.

use super::failure::Failure;
use super::words::is_flag;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error;
use std::ffi::OsString;

/// The failure for an error about a value, a missing argument or an unknown command; `None` for
/// another error. `argv` is the normalised command line.
pub(super) fn reworded(error: &clap::Error, cli: &Command, argv: &[OsString]) -> Option<Failure> {
    if let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) {
        let failure = Failure::usage(format!("unknown command '{name}'"));
        return Some(failure.help("`thermocline --help` lists the commands"));
    }
    let message = match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(missing))) => {
            format!("missing {}", missing.join(" "))
        }
        (ErrorKind::UnknownArgument, Some(ContextValue::String(word))) => {
            format!("unexpected word '{word}'")
        }
        _ => return invalid_value(error, cli, argv),
    };
    let command = argv.get(1)?.to_str()?;
    Some(Failure::usage(message).help(format!("see `thermocline {command} --help`")))
}

fn invalid_value(error: &clap::Error, cli: &Command, argv: &[OsString]) -> Option<Failure> {
    if !matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
        return None;
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(_) | None => None,
    };
    // clap shows an argument as `--name <VALUE>`.
    let arg = text(ContextKind::InvalidArg)?;
    let shown = match arg.split([' ', '=', '[', '<']).next() {
        // A positional argument has only a name in brackets.
        None | Some("") => arg.trim_matches(['[', ']', '<', '>', '.']),
        Some(flag) => flag,
    };
    let variable = variable(shown, cli, argv);
    if let Some(failure) = Failure::of_clap(error) {
        let failure = failure.clone();
        return Some(match variable {
            Some(name) => Failure { message: format!("{name}: {}", failure.message), ..failure },
            None => failure,
        });
    }
    let value = text(ContextKind::InvalidValue)?;
    if value.is_empty() {
        return Some(Failure::usage(variable.map_or_else(
            || format!("{shown} needs a value"),
            |name| format!("{name} is empty; give it a value or unset it"),
        )));
    }
    let place = variable.map_or_else(|| format!("for {shown}"), |name| format!("in {name}"));
    let failure = |why: &str| Failure::usage(format!("invalid value '{value}' {place}{why}"));
    if let Some(why) = error.source() {
        return Some(failure(&format!(": {why}")));
    }
    let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue) else {
        return Some(failure(""));
    };
    Some(failure("").help(format!("possible values: {}", values.join(", "))))
}

/// The environment variable that sets the flag `shown`; `None` if the command line sets it.
fn variable(shown: &str, cli: &Command, argv: &[OsString]) -> Option<String> {
    let long = shown.strip_prefix("--")?;
    if argv.iter().any(|word| is_flag(word, long)) {
        return None;
    }
    let command = cli.find_subcommand(argv.get(1)?)?;
    let arg = command.get_arguments().find(|arg| arg.get_long() == Some(long))?;
    arg.get_env().and_then(|name| name.to_str()).map(str::to_owned)
}
