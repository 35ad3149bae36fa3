//! Flags of llama.cpp and PowerInfer without an equivalent here.
//!
//! People paste command lines. A flag that does not affect the text is accepted silently. A flag
//! about placement is accepted with a note on its effect here. A flag that would change the text is
//! rejected, because silently different text is worse than an error. The list is
//! [`super::llama_flags`].

use super::failure::Failure;
use super::llama_flags::KNOWN;
use super::terminal::Terminal;
use std::ffi::OsStr;
use std::ops::RangeInclusive;

/// The values that a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arity {
    /// Nothing.
    Nothing,
    /// The next word, even if it starts with `-`.
    One,
    /// The next two words.
    Two,
    /// The next word if it is on, off, auto or the like.
    Maybe,
}

/// How a flag is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Treatment {
    /// Accepted; it has no effect here.
    Silent,
    /// Accepted, with this note.
    Hint(&'static str),
    /// Rejected, with this reason.
    Refused(&'static str),
}

/// A value that disables a flag, which is then accepted silently.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NeutralValue {
    /// No value does.
    Never,
    /// A number in this range.
    Number(RangeInclusive<f32>),
    /// One of these words.
    Word(&'static [&'static str]),
}

/// One flag, under all its names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LlamaFlag {
    pub(super) names: &'static [&'static str],
    pub(super) takes: Arity,
    pub(super) verdict: Treatment,
    pub(super) neutral: NeutralValue,
    /// Suffix after `THERMOCLINE_ARG_` in the environment, if llama.cpp has a variable.
    pub(super) env: Option<&'static str>,
}

/// A known flag on this command line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GivenFlag {
    pub(super) known: &'static LlamaFlag,
    /// The name used on the command line.
    pub(super) flag: String,
    pub(super) value: Option<String>,
}

/// Whether this command accepts llama.cpp's flags.
pub(super) fn applies_to(command: &OsStr) -> bool {
    ["run", "chat", "bench", "perplexity", "profile", "plan"].iter().any(|c| command == *c)
}

/// The flag of this name.
pub(super) fn find(flag: &str) -> Option<&'static LlamaFlag> {
    KNOWN.iter().find(|k| k.names.contains(&flag))
}

/// Adds the flags that the environment sets and the command line does not.
pub(super) fn from_environment(seen: &mut Vec<GivenFlag>, env: impl Fn(&str) -> Option<String>) {
    for known in &KNOWN {
        let Some(name) = known.env.map(|e| format!("THERMOCLINE_ARG_{e}")) else {
            continue;
        };
        if seen.iter().any(|s| s.known == known) {
            continue;
        }
        let Some(value) = env(&name).filter(|v| !v.is_empty()) else {
            continue;
        };
        let off = ["0", "off", "false"].contains(&value.as_str());
        if known.takes == Arity::Nothing && off {
            continue;
        }
        seen.push(GivenFlag { known, flag: name, value: Some(value) });
    }
}

/// Rejects flags that would change the text and explains accepted ones, one line per explanation.
///
/// # Errors
/// The first flag that would change the text.
pub(super) fn judge(seen: &[GivenFlag], terminal: &Terminal) -> Result<(), Failure> {
    let mut hints: Vec<(&str, Vec<String>)> = Vec::new();
    for flag in seen.iter().filter(|s| !s.is_neutral()) {
        match flag.known.verdict {
            Treatment::Silent => {}
            Treatment::Refused(why) => {
                return Err(Failure::usage(format!("{}: {why}", flag.shown())));
            }
            Treatment::Hint(means) => match hints.iter_mut().find(|(m, _)| *m == means) {
                Some((_, flags)) => flags.push(flag.shown()),
                None => hints.push((means, vec![flag.shown()])),
            },
        }
    }
    for (means, flags) in hints {
        terminal.note(&format!("{}: {means}", flags.join(", ")));
    }
    Ok(())
}

impl GivenFlag {
    fn is_neutral(&self) -> bool {
        let value = self.value.as_deref().unwrap_or_default();
        match &self.known.neutral {
            NeutralValue::Never => false,
            NeutralValue::Number(range) => value.parse().is_ok_and(|v: f32| range.contains(&v)),
            NeutralValue::Word(words) => words.contains(&value),
        }
    }

    fn shown(&self) -> String {
        match &self.value {
            Some(value) if self.flag.starts_with('-') => format!("{} {value}", self.flag),
            Some(value) => format!("{}={value}", self.flag),
            None => self.flag.clone(),
        }
    }
}

/// The section of `--help` about these flags.
pub(super) fn help() -> String {
    let names = |wanted: fn(&Treatment) -> bool| {
        let known = KNOWN.iter().filter(|k| wanted(&k.verdict));
        wrap(known.flat_map(|k| k.names.iter().copied()))
    };
    format!(
        "Other flags of llama.cpp:\n\
         \n  Accepted with a note; they affect placement, not the text:\n{}\
         \n  Accepted and ignored; they have no effect here:\n{}\
         \n  Rejected unless set to the value that disables them, because they would change the text:\n{}\
         \nSwitches have the forms --NAME, --no-NAME and --NAME=on|off. \
         Each flag can also be set by the environment variable shown.",
        names(|v| matches!(v, Treatment::Hint(_))),
        names(|v| matches!(v, Treatment::Silent)),
        names(|v| matches!(v, Treatment::Refused(_))),
    )
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

    fn seen(flag: &str, value: Option<&str>) -> GivenFlag {
        GivenFlag { known: find(flag).unwrap(), flag: flag.into(), value: value.map(Into::into) }
    }

    fn verdict(flag: &str, value: Option<&str>) -> Result<(), Failure> {
        let terminal = Terminal::new(ColorWhen::Off, true, 0);
        judge(&[seen(flag, value)], &terminal)
    }

    #[test]
    fn no_name_stands_twice() {
        let mut names: Vec<_> = KNOWN.iter().flat_map(|k| k.names).collect();
        names.sort_unstable();
        for pair in names.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }

    #[test]
    fn refused_by_one_sentence_unless_neutral() {
        let failure = verdict("--mirostat", Some("2")).unwrap_err();
        assert_eq!(failure.exit.code(), 2);
        assert!(failure.message.starts_with("--mirostat 2: "));
        assert_eq!(verdict("--mirostat", Some("0")), Ok(()));
        assert!(verdict("--typical", Some("0.9")).is_err());
        assert_eq!(verdict("--typical", Some("1.0")), Ok(()));
        assert!(verdict("--dry-multiplier", Some("x")).is_err());
        assert!(verdict("--lora", Some("a.gguf")).is_err());
        assert_eq!(verdict("-sm", Some("row")), Ok(()));
        assert_eq!(verdict("--no-warmup", None), Ok(()));
    }

    #[test]
    fn the_environment_counts_where_the_line_is_silent() {
        let env = |name: &str| match name {
            "THERMOCLINE_ARG_SPLIT_MODE" => Some("row".to_owned()),
            "THERMOCLINE_ARG_CPU_MOE" => Some("0".to_owned()),
            "THERMOCLINE_ARG_LORA" => Some(String::new()),
            _ => None,
        };
        let mut flags = Vec::new();
        from_environment(&mut flags, env);
        assert_eq!(flags.len(), 1);
        assert_eq!(flags[0].shown(), "THERMOCLINE_ARG_SPLIT_MODE=row");
        let mut flags = vec![seen("--split-mode", Some("layer"))];
        from_environment(&mut flags, env);
        assert_eq!(flags.len(), 1);
    }
}
