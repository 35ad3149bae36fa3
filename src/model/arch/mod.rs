//! The families, one value each. Adding one: a file here and a line in [`ALL`].

mod bamboo;
mod llama;

use super::ArchSpec;

/// Everything that runs.
pub const ALL: &[ArchSpec] = &[llama::LLAMA, bamboo::BAMBOO];

/// The family called `name` in `general.architecture`.
#[must_use]
pub fn find(name: &str) -> Option<&'static ArchSpec> {
    ALL.iter().find(|spec| spec.name == name)
}
