//! llama.cpp's environment variables: `LLAMA_ARG_CTX_SIZE` counts where `THERMOCLINE_ARG_CTX_SIZE`
//! is not set. llama-bench and the programs that make files read none, so their commands do not.

use super::llama;
use clap::{Arg, Command};
use std::collections::HashSet;

const OURS: &str = "THERMOCLINE_ARG_";
const LLAMA: &str = "LLAMA_ARG_";

/// Variables of llama.cpp whose name after the prefix differs from ours.
const OTHER_NAMES: [(&str, &str); 4] = [
    ("THERMOCLINE_ARG_TEMP", "LLAMA_ARG_TEMPERATURE"),
    ("THERMOCLINE_ARG_WEBUI", "LLAMA_ARG_UI"),
    ("THERMOCLINE_ARG_PERF", "LLAMA_ARG_SHOW_TIMINGS"),
    ("THERMOCLINE_API_KEY", "LLAMA_API_KEY"),
];

/// Variables of ollama and llama.cpp that are not read, the commands that they would affect, and what
/// to use instead.
const UNREAD: [(&str, &[&str], &str); 6] = [
    ("OLLAMA_HOST", &["serve"], "--host HOST --port N sets the address"),
    ("OLLAMA_NUM_PARALLEL", &["serve"], "-np N sets the number of slots"),
    ("OLLAMA_CONTEXT_LENGTH", &["serve", "run", "chat"], "-c N sets the context"),
    (
        "OLLAMA_KV_CACHE_TYPE",
        &["serve", "run", "chat"],
        "-ctk TYPE -ctv TYPE sets the cache's types",
    ),
    ("OLLAMA_MODELS", &["pull", "list", "rm"], "HF_HUB_CACHE sets the folder of models"),
    ("LLAMA_CACHE", &["pull", "list", "rm"], "HF_HUB_CACHE sets the folder of models"),
];

/// Notes about set variables that are not read.
pub(super) fn unread(command: &str, env: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let affecting = UNREAD.iter().filter(|(_, commands, _)| commands.contains(&command));
    let set = affecting.filter_map(|(name, _, instead)| {
        let value = env(name).filter(|value| !value.is_empty())?;
        Some(format!("ignoring {name}={value}: {instead}"))
    });
    set.collect()
}

/// Notes about those of `set` that look like variables of flags, but that no command reads.
pub(super) fn unknown(cli: &Command, set: impl Iterator<Item = String>) -> Vec<String> {
    let own = cli.get_subcommands().flat_map(Command::get_arguments);
    let own = own.filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned()));
    let others = llama::variables().map(|suffix| format!("{OURS}{suffix}"));
    let known: HashSet<String> = own.chain(others).collect();
    // Switches also read the name of their opposite.
    let is_known = |name: &str| {
        let opposite = name.replacen("_ARG_NO_", "_ARG_", 1);
        known.contains(name) || known.contains(&opposite)
    };
    let mut names: Vec<_> = set.filter(|name| name.starts_with(OURS) && !is_known(name)).collect();
    names.sort();
    let note = |name: &String| {
        format!("ignoring {name}: no flag has this name; `thermocline help` lists the flags")
    };
    names.iter().map(note).collect()
}

/// Beginnings of the variables that `command` reads, in order of precedence.
pub(super) fn prefixes(command: &str) -> &'static [&'static str] {
    if reads_llama(command) { &[OURS, LLAMA] } else { &[OURS] }
}

fn reads_llama(command: &str) -> bool {
    llama::applies_to(command.as_ref()) && command != "bench"
}

/// `cli`, with the flags of `command` reading llama.cpp's variable where only that one is set.
pub(super) fn with_llama_variables(
    cli: Command,
    command: &str,
    env: impl Fn(&str) -> Option<String>,
) -> Command {
    if !reads_llama(command) || cli.find_subcommand(command).is_none() {
        return cli;
    }
    let set = |name: &str| env(name).is_some_and(|value| !value.is_empty());
    cli.mut_subcommand(command, |command| {
        command.mut_args(|arg| {
            let Some(ours) = arg.get_env().and_then(|name| name.to_str()).map(str::to_owned) else {
                return arg;
            };
            if set(&ours) {
                return arg;
            }
            let suffix = ours.strip_prefix(OURS).unwrap_or_default();
            let other = OTHER_NAMES.iter().filter(|(name, _)| *name == ours);
            let names = other.map(|(_, llama)| (*llama).to_owned());
            let mut names = names.chain([format!("{LLAMA}{suffix}")]);
            match names.find(|name| set(name)) {
                // clap keeps the name for its messages as long as the program runs.
                Some(name) => arg.env(&*name.leak()),
                None if is_switch(&arg) && set(&format!("{LLAMA}NO_{suffix}")) => {
                    arg.default_value("off")
                }
                None => arg,
            }
        })
    })
}

/// Whether the flag has the forms `--NAME` and `--no-NAME`.
fn is_switch(arg: &Arg) -> bool {
    arg.is_require_equals_set()
        && arg.get_value_parser().type_id() == std::any::TypeId::of::<bool>()
}

#[cfg(test)]
mod tests {
    use super::super::args::Cli;
    use super::*;
    use clap::CommandFactory;

    fn variable(command: &str, flag: &str, set: &[&str]) -> String {
        let env = |name: &str| set.contains(&name).then(|| "1".to_owned());
        let cli = with_llama_variables(Cli::command(), command, env);
        let command = cli.find_subcommand(command).unwrap();
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
        arg.get_env().unwrap().to_str().unwrap().to_owned()
    }

    #[test]
    fn llama_cpps_variables_count_where_ours_is_not_set() {
        let [ours, llama] = ["THERMOCLINE_ARG_CTX_SIZE", "LLAMA_ARG_CTX_SIZE"];
        assert_eq!(variable("run", "ctx-size", &[]), ours);
        assert_eq!(variable("run", "ctx-size", &[llama]), llama);
        assert_eq!(variable("run", "ctx-size", &[llama, ours]), ours);
        assert_eq!(variable("run", "temp", &["LLAMA_ARG_TEMPERATURE"]), "LLAMA_ARG_TEMPERATURE");
        assert_eq!(variable("serve", "api-key", &["LLAMA_API_KEY"]), "LLAMA_API_KEY");
        let bench = variable("bench", "threads", &["LLAMA_ARG_THREADS"]);
        assert_eq!(bench, "THERMOCLINE_ARG_THREADS", "llama-bench reads no variables");
    }

    #[test]
    fn unknown_variables_are_noted() {
        let set = ["THERMOCLINE_ARG_CTX_SIZE", "THERMOCLINE_ARG_CTX", "THERMOCLINE_CACHE", "HOME"];
        let notes = unknown(&Cli::command(), set.map(str::to_owned).into_iter());
        assert!(
            notes.len() == 1 && notes[0].contains("ignoring THERMOCLINE_ARG_CTX:"),
            "{notes:?}"
        );
    }

    #[test]
    fn unread_variables_are_noted_where_they_would_matter() {
        let env = |name: &str| (name == "OLLAMA_HOST").then(|| "0.0.0.0:1".to_owned());
        let expected = "ignoring OLLAMA_HOST=0.0.0.0:1: --host HOST --port N sets the address";
        assert_eq!(unread("serve", env), [expected]);
        assert!(unread("run", env).is_empty());
    }

    #[test]
    fn a_negated_variable_changes_the_default_of_a_switch() {
        let env = |name: &str| (name == "LLAMA_ARG_NO_MMAP").then(|| "1".to_owned());
        let cli = with_llama_variables(Cli::command(), "run", env);
        let run = cli.find_subcommand("run").unwrap();
        let default = |flag: &str| {
            let arg = run.get_arguments().find(|arg| arg.get_long() == Some(flag)).unwrap();
            arg.get_default_values().first().cloned()
        };
        assert_eq!(default("mmap").unwrap(), "off");
        assert_eq!(default("perf").unwrap(), "on");
    }
}
