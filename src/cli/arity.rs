//! How many of the words after a flag are its values.

use std::collections::VecDeque;
use std::ffi::OsString;

/// Words that a switch or `--numa` takes as its value even without `=`.
const SWITCH_VALUES: [&str; 15] = [
    "on",
    "off",
    "auto",
    "true",
    "false",
    "enabled",
    "disabled",
    "0",
    "1",
    "-1",
    "always",
    "never",
    "distribute",
    "isolate",
    "numactl",
];

/// How many values a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arity {
    /// No value.
    Nothing,
    /// The next word, even if it starts with `-`.
    One,
    /// The next two words.
    Two,
    /// The next word, and the word after it if that is a number.
    Scaled,
    /// The next word if it is a switch value, such as on, off or auto.
    Maybe,
    /// The next word if it is a single plain word, which must then be on, off or auto.
    State,
}

/// Whether `value` is a value of a switch, or a list of them.
pub(super) fn is_switch_value(value: &str) -> bool {
    value.split(',').all(|value| SWITCH_VALUES.contains(&value))
}

impl Arity {
    pub(super) fn is_switch(self) -> bool {
        matches!(self, Self::Maybe | Self::State)
    }

    /// Removes the flag's value from the words that follow it; `None` if it takes no value or none
    /// follows.
    pub(super) fn take(self, rest: &mut VecDeque<OsString>) -> Option<OsString> {
        match self {
            Self::Nothing => None,
            Self::One => rest.pop_front(),
            Self::Scaled => {
                let mut value = rest.pop_front()?;
                let is_number = |text: &str| text.parse::<f32>().is_ok();
                let scaled = value.to_str().and_then(|value| value.rsplit_once(':'));
                let is_scaled = scaled.is_some_and(|(_, scale)| is_number(scale));
                let next = rest.front().and_then(|next| next.to_str());
                if !is_scaled && next.is_some_and(is_number) {
                    value.push(" ");
                    value.push(rest.pop_front().unwrap_or_default());
                }
                Some(value)
            }
            Self::Two => {
                let mut value = rest.pop_front()?;
                value.push(" ");
                value.push(rest.pop_front().unwrap_or_default());
                Some(value)
            }
            Self::Maybe => {
                let next = rest.front()?.to_str()?;
                if is_switch_value(next) { rest.pop_front() } else { None }
            }
            Self::State => {
                let next = rest.front()?.to_str()?;
                let is_plain = next.chars().all(|c| c.is_ascii_alphanumeric());
                if is_plain || is_switch_value(next) { rest.pop_front() } else { None }
            }
        }
    }
}
