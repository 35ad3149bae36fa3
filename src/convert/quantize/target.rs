//! The named mixes.

use std::str::FromStr;

use hal::format::Format;

use crate::Error;

/// A mix of types: the base type of most tensors, and the extra precision of sensitive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    name: &'static str,
    base: Format,
    /// llama.cpp's `general.file_type`.
    file_type: u32,
    pub(super) extra: Extra,
}

/// Extra precision of sensitive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    /// All tensors have the base type, a float type.
    None,
    /// The output matrix only.
    Output,
    /// V and down matrices of the first layers.
    Some,
    /// V and down matrices of about half of the layers, and some other matrices.
    More,
    /// Expert matrices get the base type, all other matrices Q8_0.
    Experts,
}

const TARGETS: &[Target] = &[
    target("F32", Format::F32, 0, Extra::None),
    target("F16", Format::F16, 1, Extra::None),
    target("BF16", Format::BF16, 32, Extra::None),
    target("Q8_0", Format::Q8_0, 7, Extra::Output),
    target("Q4_0", Format::Q4_0, 2, Extra::Output),
    target("Q4_1", Format::Q4_1, 3, Extra::Output),
    target("Q5_0", Format::Q5_0, 8, Extra::Output),
    target("Q5_1", Format::Q5_1, 9, Extra::Output),
    target("Q4_K_S", Format::Q4_K, 14, Extra::Some),
    target("Q4_K_M", Format::Q4_K, 15, Extra::More),
    target("Q5_K_S", Format::Q5_K, 16, Extra::Output),
    target("Q5_K_M", Format::Q5_K, 17, Extra::More),
    target("Q6_K", Format::Q6_K, 18, Extra::Output),
    target("MXFP4", Format::MXFP4, 38, Extra::Experts),
];

/// Other names of mixes: alias, name.
const ALIASES: &[(&str, &str)] = &[("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M"), ("MXFP4_MOE", "MXFP4")];

const fn target(name: &'static str, base: Format, file_type: u32, extra: Extra) -> Target {
    Target { name, base, file_type, extra }
}

impl Target {
    /// All mixes.
    pub fn all() -> impl Iterator<Item = Target> {
        TARGETS.iter().copied()
    }

    /// Name of the mix, such as `Q4_K_M`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.name
    }

    /// llama.cpp's number for "mostly this type".
    #[must_use]
    pub fn file_type(self) -> u32 {
        self.file_type
    }

    /// The format of most tensors.
    #[must_use]
    pub fn format(self) -> Format {
        self.base
    }
}

impl FromStr for Target {
    type Err = Error;

    /// Parses a name or an alias, ignoring case.
    fn from_str(name: &str) -> Result<Target, Error> {
        let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let wanted = alias.map_or(name, |(_, meant)| meant);
        Target::all().find(|target| target.name.eq_ignore_ascii_case(wanted)).ok_or_else(|| {
            Error::Target {
                found: name.to_owned(),
                known: Target::all().map(|target| target.name.to_owned()).collect(),
            }
        })
    }
}
