//! Flags of llama.cpp and PowerInfer without an equivalent here.
//!
//! Users paste command lines of llama.cpp. A flag with nothing to change here is accepted silently.
//! A flag whose effect is missing, such as placement, is accepted with a note. A flag that would
//! change the text is rejected, because silently different text is worse than an error. The flags
//! are listed in [`super::llama_flags`] and [`super::llama_other_flags`].

use super::arity::{self, Arity};
use super::environment;
use super::failure::Failure;
use super::llama_flags::KNOWN;
use super::llama_other_flags::{IK_LLAMA, NO_TEXT, OLD, RECENT, SERVER};
use super::terminal::Terminal;
use clap::Command;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::ops::RangeInclusive;

const ONE_ROW: &str = "all its values have the same effect, so there is one row";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Accepted; it has no effect here.
    Silent,
    /// Accepted, with this note.
    Hint(&'static str),
    /// Rejected, with this reason.
    Refused(&'static str),
    /// Rejected where raw text is continued, accepted in a conversation.
    RefusedForText(&'static str),
}

/// A value that disables a flag, which is then accepted silently.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NeutralValue {
    /// No value disables the flag.
    Never,
    /// A number in this range.
    Number(RangeInclusive<f32>),
    /// One of these values.
    Word(&'static [&'static str]),
}

/// One flag of llama.cpp, with all its names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LlamaFlag {
    pub(super) names: &'static [&'static str],
    pub(super) takes: Arity,
    pub(super) verdict: Treatment,
    pub(super) neutral: NeutralValue,
    /// Suffix after `THERMOCLINE_ARG_` in the environment, if llama.cpp has a variable.
    pub(super) env: Option<&'static str>,
    /// Whether only llama-server has it; commands other than `serve` then reject it.
    pub(super) server: bool,
}

/// A llama.cpp flag on the command line or in the environment, with its table entry.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GivenFlag {
    pub(super) known: &'static LlamaFlag,
    /// The flag or environment variable, as written.
    pub(super) flag: String,
    pub(super) value: Option<String>,
}

/// Whether this command accepts llama.cpp's flags.
pub(super) fn applies_to(command: &OsStr) -> bool {
    ["run", "chat", "serve", "embed", "bench", "perplexity", "imatrix", "profile", "plan"]
        .iter()
        .any(|c| command == *c)
}

/// The table entry of the flag called `flag`.
pub(super) fn find(flag: &str) -> Option<&'static LlamaFlag> {
    known().find(|k| k.names.contains(&flag))
}

/// The table entry of llama.cpp's common flags that `command` has no use for: llama-perplexity and
/// llama-imatrix accept those of llama-cli.
pub(super) fn find_unused(command: &OsStr) -> Option<&'static LlamaFlag> {
    ["embed", "perplexity", "imatrix"].iter().any(|c| command == *c).then_some(&NO_TEXT)
}

/// The table entry of the switch that `flag` turns off: `--no-NAME`.
pub(super) fn find_negated(flag: &str) -> Option<&'static LlamaFlag> {
    let positive = format!("--{}", flag.strip_prefix("--no-")?);
    find(&positive).filter(|known| known.takes.is_switch())
}

/// All table entries.
fn known() -> impl Iterator<Item = &'static LlamaFlag> {
    [KNOWN, RECENT, OLD, IK_LLAMA, SERVER].into_iter().flatten()
}

/// The names of all flags in the table.
pub(super) fn names() -> Vec<&'static str> {
    known().flat_map(|known| known.names).copied().collect()
}

/// Adds the flags that the environment sets and the command line of `command` does not. llama.cpp's
/// own variable counts where ours is not set.
pub(super) fn from_environment(
    command: &str,
    seen: &mut Vec<GivenFlag>,
    env: impl Fn(&str) -> Option<String>,
) {
    for known in known().filter(|known| !known.server || command == "serve") {
        let Some(suffix) = known.env else {
            continue;
        };
        if seen.iter().any(|s| s.known == known) {
            continue;
        }
        let variables = environment::prefixes(command).iter();
        let set = variables.map(|prefix| format!("{prefix}{suffix}")).find_map(|name| {
            env(&name).filter(|value| !value.is_empty()).map(|value| (name, value))
        });
        let Some((name, value)) = set else {
            continue;
        };
        let off = ["0", "off", "false"].contains(&value.as_str());
        if known.takes == Arity::Nothing && off {
            continue;
        }
        seen.push(GivenFlag { known, flag: name, value: Some(value) });
    }
}

/// Names, without their prefix, of the variables of llama.cpp's flags that have no equal here.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    known().filter_map(|known| known.env)
}

/// How a flag is used: the command's name, and whether it holds a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagUse<'a> {
    pub(super) command: &'a str,
    pub(super) converses: bool,
}

/// Rejects flags that would change the text. Prints one note for all flags with the same
/// explanation.
///
/// # Errors
/// The first flag that would change the text.
pub(super) fn judge(
    seen: &[GivenFlag],
    usage: FlagUse<'_>,
    terminal: &Terminal,
) -> Result<(), Failure> {
    let mut hints: Vec<(&str, Vec<String>)> = Vec::new();
    for flag in seen {
        let refused = matches!(flag.known.verdict, Treatment::Refused(_));
        if flag.known.server && usage.command != "serve" && !refused {
            let message = format!("{} is a flag of the HTTP server", flag.flag);
            let help = format!("start it with `thermocline serve -m model.gguf {}`", flag.flag);
            return Err(Failure::usage(message).help(help));
        }
        flag.check_switch()?;
        if flag.is_neutral() {
            continue;
        }
        match flag.known.verdict {
            Treatment::Silent if usage.command == "bench" && flag.is_list() => {
                hints.push((ONE_ROW, vec![flag.flag_and_value()]));
            }
            Treatment::Silent => {}
            Treatment::RefusedForText(_) if usage.converses => {}
            Treatment::Refused(why) | Treatment::RefusedForText(why) => {
                return Err(Failure::usage(format!("{}: {why}", flag.flag_and_value())));
            }
            Treatment::Hint(means) => match hints.iter_mut().find(|(m, _)| *m == means) {
                Some((_, flags)) => flags.push(flag.flag_and_value()),
                None => hints.push((means, vec![flag.flag_and_value()])),
            },
        }
    }
    for (means, flags) in hints {
        terminal.note(&format!("ignoring {}: {means}", flags.join(", ")));
    }
    Ok(())
}

impl GivenFlag {
    /// Whether the value disables the flag.
    pub(super) fn is_neutral(&self) -> bool {
        let value = self.value.as_deref().unwrap_or_default();
        match &self.known.neutral {
            NeutralValue::Never => false,
            NeutralValue::Number(range) => value.parse().is_ok_and(|v: f32| range.contains(&v)),
            NeutralValue::Word(words) => words.contains(&value),
        }
    }

    /// Rejects a value that a switch does not have.
    fn check_switch(&self) -> Result<(), Failure> {
        let Some(value) = self.value.as_deref().filter(|_| self.known.takes.is_switch()) else {
            return Ok(());
        };
        if arity::is_switch_value(value) {
            return Ok(());
        }
        let preposition = if self.flag.starts_with('-') { "for" } else { "in" };
        let message = format!("invalid value '{value}' {preposition} {}", self.flag);
        Err(Failure::usage(message).help("write on, off or auto; a prompt goes after -p"))
    }

    /// Whether the value is a list, for which llama-bench prints several rows.
    fn is_list(&self) -> bool {
        self.value.as_deref().is_some_and(|value| value.contains(','))
    }

    fn flag_and_value(&self) -> String {
        let needs_quotes = |value: &str| value.is_empty() || value.contains(char::is_whitespace);
        match &self.value {
            Some(value) if self.flag.starts_with('-') && needs_quotes(value) => {
                format!("{} '{value}'", self.flag)
            }
            Some(value) if self.flag.starts_with('-') => format!("{} {value}", self.flag),
            Some(value) => format!("{}={value}", self.flag),
            None => self.flag.clone(),
        }
    }
}

/// The section of `--help` on llama.cpp's flags that `command` does not have itself.
pub(super) fn help(command: &Command) -> String {
    let serves = command.get_name() == "serve";
    // Every start of the program makes these texts, so each flag is looked up only once.
    let own = flags(command);
    let is_own = |name: &str| {
        let positive = name.strip_prefix("--no-").map(|name| format!("--{name}"));
        own.contains(name) || positive.is_some_and(|positive| own.contains(&positive))
    };
    let names = |wanted: fn(&Treatment) -> bool| {
        let known = known().filter(|k| wanted(&k.verdict) && (serves || !k.server));
        let foreign = known.filter(|k| !k.names.iter().any(|name| is_own(name)));
        wrap(foreign.flat_map(|k| k.names.iter().copied()))
    };
    format!(
        "Other flags of llama.cpp:\n\
         \n  Ignored with a note; they do not change the text:\n{}\
         \n  Ignored without a note; they have no effect here:\n{}\
         \n  Rejected unless set to the value that disables them, because they would change the text:\n{}\
         \nSwitches have the forms --NAME, --no-NAME and --NAME=on|off. \
         Each flag can also be set by the environment variable shown.",
        names(|v| matches!(v, Treatment::Hint(_))),
        names(|v| matches!(v, Treatment::Silent)),
        names(|v| matches!(v, Treatment::Refused(_) | Treatment::RefusedForText(_))),
    )
}

/// The names of all flags of `command`.
fn flags(command: &Command) -> HashSet<String> {
    let names = command.get_arguments().flat_map(|arg| {
        let longs = arg.get_long().into_iter().chain(arg.get_all_aliases().unwrap_or_default());
        let shorts = arg.get_short().map(|short| format!("-{short}"));
        longs.map(|long| format!("--{long}")).chain(shorts).collect::<Vec<String>>()
    });
    names.collect()
}

/// Words in lines of at most 96 columns, indented.
fn wrap<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    let mut line = String::from("   ");
    for word in words {
        if line.len() + 1 + word.len() > 96 {
            text.push_str(&line);
            text.push('\n');
            line = String::from("   ");
        }
        line.push(' ');
        line.push_str(word);
    }
    text + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::args::ColorWhen;
    use super::*;

    fn given_flag(flag: &str, value: Option<&str>) -> GivenFlag {
        GivenFlag { known: find(flag).unwrap(), flag: flag.into(), value: value.map(Into::into) }
    }

    fn check_flag(flag: &str, value: Option<&str>) -> Result<(), Failure> {
        let terminal = Terminal::new(ColorWhen::Off, true, 0);
        judge(&[given_flag(flag, value)], FlagUse { command: "run", converses: false }, &terminal)
    }

    #[test]
    fn names_are_unique() {
        let mut names = names();
        names.sort_unstable();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn help_lists_no_flag_of_the_command_itself() {
        let cli = super::super::cli();
        let help = |name: &str| help(cli.find_subcommand(name).unwrap());
        let lists = |name: &str, flag: &str| help(name).split_whitespace().any(|f| f == flag);
        for flag in ["--perf", "--no-perf", "-e", "--prompt", "--context-shift", "--path"] {
            assert!(!lists("run", flag), "{flag}");
        }
        assert!(lists("run", "--split-mode") && lists("serve", "--path"));
    }

    #[test]
    fn flags_that_change_the_text_are_rejected_unless_neutral() {
        let failure = check_flag("--cfg-scale", Some("2")).unwrap_err();
        assert_eq!(failure.exit.code(), 2);
        assert!(failure.message.starts_with("--cfg-scale 2: "));
        assert_eq!(check_flag("--cfg-scale", Some("1.0")), Ok(()));
        assert!(check_flag("--tfs", Some("0.9")).is_err());
        assert_eq!(check_flag("--tfs", Some("1.0")), Ok(()));
        assert!(check_flag("--tfs", Some("x")).is_err());
        assert!(check_flag("--control-vector", Some("a.gguf")).is_err());
        assert_eq!(check_flag("-sm", Some("row")), Ok(()));
        assert_eq!(check_flag("--no-warmup", None), Ok(()));
    }

    #[test]
    fn the_environment_applies_if_the_command_line_does_not_set_a_flag() {
        let env = |name: &str| match name {
            "THERMOCLINE_ARG_SPLIT_MODE" => Some("row".to_owned()),
            "THERMOCLINE_ARG_SWA_FULL" => Some("0".to_owned()),
            "THERMOCLINE_ARG_MMPROJ" => Some(String::new()),
            _ => None,
        };
        let mut flags = Vec::new();
        from_environment("run", &mut flags, env);
        assert_eq!(flags.len(), 1);
        assert_eq!(flags[0].flag_and_value(), "THERMOCLINE_ARG_SPLIT_MODE=row");
        let mut flags = vec![given_flag("--split-mode", Some("layer"))];
        from_environment("run", &mut flags, env);
        assert_eq!(flags.len(), 1);
    }
}
