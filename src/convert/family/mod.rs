//! The families that can be converted: a table of names, and what is done to which tensor.
//!
//! Adding one: a [`Family`] in `table.rs`, made of rules that others share, and a function that sets its keys.

mod keys;
mod rope;
mod rules;
mod table;

pub(super) use keys::Build;
pub(super) use rules::{How, Rule};

use super::Error;
use super::config::Json;

/// A family of models as Hugging Face holds it, and what its file will say.
pub(super) struct Family {
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// Names in `architectures` of `config.json`.
    pub(super) classes: &'static [&'static str],
    /// The activation that a file of this architecture means where it does not say; empty where it never says.
    pub(super) activation: &'static str,
    /// What each tensor becomes, groups of rules that families share.
    pub(super) rules: &'static [&'static [Rule]],
    /// Sets the keys that only `config.json` knows.
    pub(super) keys: fn(&mut Build<'_>) -> Result<(), Error>,
    /// Whether a `llama` vocabulary puts a space in front of a text, where the family decides.
    pub(super) space_prefix: Option<bool>,
    /// PowerInfer's container knows it.
    pub(super) power_infer: bool,
}

/// Class names of everything that can be converted.
#[must_use]
pub fn classes() -> Vec<&'static str> {
    table::ALL.iter().flat_map(|family| family.classes).copied().collect()
}

/// The family of a checkpoint.
///
/// # Errors
/// One that is not in the table.
pub(super) fn find(config: &Json) -> Result<&'static Family, Error> {
    let named = config.list("architectures")?.and_then(|list| list.first()?.as_str());
    let Some(found) = named else {
        return Err(config.missing("architectures", "a list with the name of the model's class"));
    };
    table::ALL.iter().find(|family| family.classes.contains(&found)).ok_or_else(|| {
        Error::Architecture {
            file: config.file().to_owned(),
            found: found.to_owned(),
            known: classes(),
        }
    })
}
