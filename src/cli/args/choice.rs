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

/// Reads one of `choices` by its name.
pub(super) fn one_of<T>(choices: &'static [Choice<T>]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync,
{
    PossibleValuesParser::new(choices.iter().map(listed))
        .try_map(|name| find(choices, &name).ok_or_else(|| format!("'{name}' is unknown")))
}

/// The value of this name.
pub(super) fn find<T: Clone>(choices: &[Choice<T>], name: &str) -> Option<T> {
    choices.iter().find(|choice| choice.name == name).map(|choice| choice.value.clone())
}

/// The name of this value.
pub(super) fn name_of<T: PartialEq>(choices: &[Choice<T>], value: &T) -> Option<&'static str> {
    choices.iter().find(|choice| choice.value == *value).map(|choice| choice.name)
}

/// The entry in `--help`.
pub(super) fn listed<T>(choice: &Choice<T>) -> PossibleValue {
    PossibleValue::new(choice.name).help(choice.help)
}
