//! Flags that take one of several names, for value types without a clap parser.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A value of a flag: its name, its line in `--help`, and the typed value.
#[derive(Clone, Debug)]
pub(crate) struct Choice<T> {
    name: &'static str,
    help: &'static str,
    value: T,
}

pub(super) const fn choice<T>(name: &'static str, help: &'static str, value: T) -> Choice<T> {
    Choice { name, help, value }
}

/// clap parser that accepts the names of `choices`.
pub(super) fn one_of<T>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync,
{
    PossibleValuesParser::new(choices.iter().map(possible_value))
        .try_map(|name| find(choices, &name).ok_or_else(|| format!("unknown value '{name}'")))
}

/// The value of the choice called `name`.
pub(super) fn find<T: Clone>(choices: &[Choice<T>], name: &str) -> Option<T> {
    choices.iter().find(|choice| choice.name == name).map(|choice| choice.value.clone())
}

/// The name of the choice that has `value`.
pub(super) fn name_of<T: PartialEq>(choices: &[Choice<T>], value: &T) -> Option<&'static str> {
    choices.iter().find(|choice| choice.value == *value).map(|choice| choice.name)
}

/// The choice as `--help` lists it.
pub(super) fn possible_value<T>(choice: &Choice<T>) -> PossibleValue {
    PossibleValue::new(choice.name).help(choice.help)
}
