//! The named mixes.

use std::str::FromStr;

use hal::format::Format;

use crate::Error;

/// A mix of types: the base type of most tensors, and the types of sensitive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    name: &'static str,
    base: Format,
    /// llama.cpp's `general.file_type`; `None` for a copy, which keeps the file's.
    file_type: Option<u32>,
    pub(super) mixture: Mixture,
}

/// How the types of sensitive tensors differ from the base type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mixture {
    /// No tensor is changed.
    Copy,
    /// All tensors have the base type, a float type.
    None,
    /// The output matrix only.
    Output,
    /// As `Output`; with an importance matrix, the down matrices of the first layers get a minimum
    /// per block.
    Legacy,
    /// Expert matrices get the base type, all other matrices Q8_0.
    Experts,
    Q2K,
    Q2KS,
    Q3KS,
    Q3KM,
    Q3KL,
    Q4KS,
    Q4KM,
    Q5KM,
    Iq4,
}

const TARGETS: &[Target] = &[
    target("F32", Format::F32, 0, Mixture::None),
    target("F16", Format::F16, 1, Mixture::None),
    target("BF16", Format::BF16, 32, Mixture::None),
    target("Q8_0", Format::Q8_0, 7, Mixture::Output),
    target("Q4_0", Format::Q4_0, 2, Mixture::Legacy),
    target("Q4_1", Format::Q4_1, 3, Mixture::Output),
    target("Q5_0", Format::Q5_0, 8, Mixture::Legacy),
    target("Q5_1", Format::Q5_1, 9, Mixture::Output),
    target("Q2_K", Format::Q2_K, 10, Mixture::Q2K),
    target("Q2_K_S", Format::Q2_K, 21, Mixture::Q2KS),
    target("Q3_K_S", Format::Q3_K, 11, Mixture::Q3KS),
    target("Q3_K_M", Format::Q3_K, 12, Mixture::Q3KM),
    target("Q3_K_L", Format::Q3_K, 13, Mixture::Q3KL),
    target("IQ4_XS", Format::IQ4_XS, 30, Mixture::Iq4),
    target("IQ4_NL", Format::IQ4_NL, 25, Mixture::Iq4),
    target("Q4_K_S", Format::Q4_K, 14, Mixture::Q4KS),
    target("Q4_K_M", Format::Q4_K, 15, Mixture::Q4KM),
    target("Q5_K_S", Format::Q5_K, 16, Mixture::Output),
    target("Q5_K_M", Format::Q5_K, 17, Mixture::Q5KM),
    target("Q6_K", Format::Q6_K, 18, Mixture::Output),
    target("Q1_0", Format::Q1_0, 40, Mixture::Output),
    target("MXFP4", Format::MXFP4, 38, Mixture::Experts),
    Target { name: "COPY", base: Format::F32, file_type: None, mixture: Mixture::Copy },
];

/// Other names of mixes: alias, name.
const ALIASES: &[(&str, &str)] =
    &[("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M"), ("MXFP4_MOE", "MXFP4")];

/// llama.cpp's mixes that are only read here: names and numbers.
const CODEBOOKS: &[(&str, u32)] = &[
    ("IQ2_XXS", 19),
    ("IQ2_XS", 20),
    ("IQ3_XS", 22),
    ("IQ3_XXS", 23),
    ("IQ1_S", 24),
    ("IQ3_S", 26),
    ("IQ3_M", 27),
    ("IQ2_S", 28),
    ("IQ2_M", 29),
    ("IQ1_M", 31),
];

const fn target(name: &'static str, base: Format, file_type: u32, mixture: Mixture) -> Target {
    Target { name, base, file_type: Some(file_type), mixture }
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

    /// llama.cpp's number for "mostly this type"; `None` for a copy.
    #[must_use]
    pub fn file_type(self) -> Option<u32> {
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

    /// Parses a name or an alias, ignoring case, or llama.cpp's number of the type.
    fn from_str(name: &str) -> Result<Target, Error> {
        let number = name.parse::<u32>().ok();
        if let Some(target) = Target::all().find(|t| number.is_some() && t.file_type == number) {
            return Ok(target);
        }
        let codebook =
            |&&(known, id): &&(&str, u32)| Some(id) == number || known.eq_ignore_ascii_case(name);
        if let Some((found, _)) = CODEBOOKS.iter().find(codebook) {
            return Err(Error::CodebookTarget { found: (*found).to_owned() });
        }
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
