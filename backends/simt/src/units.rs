//! Units: a unit is one kernel file, compiled for one variant, such as a weight format.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use hal::TensorDesc;
use hal::format::{Code, Format};
use layout::is_transposed_quantised;

/// A file of `kernels-cuda/` in one variant: `add`, `matmul_few.q4_0`, `attention.f16_q8_0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit(String);

impl Unit {
    /// A file that is compiled once.
    #[must_use]
    pub fn plain(file: &str) -> Unit {
        Unit(file.to_owned())
    }

    /// A file that is compiled for each format of weights.
    #[must_use]
    pub fn weight(file: &str, format: Format) -> Unit {
        Unit(format!("{file}.{}", format_name(format)))
    }

    /// A file that reads a down projection with one row per neuron, in the model file's layout or
    /// transposed.
    #[must_use]
    pub fn down(file: &str, desc: &TensorDesc) -> Unit {
        let quants = desc.format.quants().filter(|_| is_transposed_quantised(desc));
        match quants.map(|quants| quants.code) {
            None => Unit::weight(file, desc.format),
            Some(Code::Nibble { .. }) => Unit(format!("{file}.transposed_nibbles")),
            Some(Code::Byte) => Unit(format!("{file}.transposed_bytes")),
        }
    }

    /// A file that reads or writes the KV cache. Its last two arguments are [`cache_format`] of the
    /// keys and of the values.
    #[must_use]
    pub fn cache(file: &str, k: Format, v: Format) -> Unit {
        if k == v && CACHE.contains(&k) {
            Unit::weight(file, k)
        } else {
            Unit(format!("{file}.dynamic"))
        }
    }

    /// The unit's name: `FILE` or `FILE.VARIANT`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

/// The name of a format in kernels: lower case.
#[must_use]
pub fn format_name(format: Format) -> String {
    format!("{format:?}").to_lowercase()
}

/// Formats of the KV cache with a variant of their own, for keys and values in the same format;
/// other pairs share the variant `dynamic`.
const CACHE: [Format; 5] = [Format::F32, Format::F16, Format::BF16, Format::Q8_0, Format::Q4_0];

/// The number of a format of the KV cache in the variant `dynamic` (`cache/dynamic.cuh`): its number
/// in GGUF files.
#[must_use]
pub fn cache_format(format: Format) -> u32 {
    format.gguf_id().unwrap_or(u32::MAX)
}

/// The file of a unit, and the macros that are defined for its compilation. `list` is
/// `kernels-cuda/VARIANTS`; files that it does not contain are compiled once.
#[must_use]
pub fn source<'a>(list: &'a str, unit: &'a str) -> Option<(&'a str, Vec<(&'static str, &'a str)>)> {
    let (file, variant) = unit.split_once('.').unwrap_or((unit, ""));
    let mut lines = list.lines().filter_map(|line| line.trim().split_once(' '));
    let kind = lines.find(|(name, _)| *name == file).map_or("plain", |(_, kind)| kind.trim());
    let names = match kind {
        "plain" if variant.is_empty() => Vec::new(),
        "weight" | "down" | "cache" if !variant.is_empty() => vec![("FORMAT", variant)],
        _ => return None,
    };
    Some((file, names))
}

/// Files with matrix instructions, and the files with the same kernels without them.
const PLAIN_FILES: [(&str, &str); 2] =
    [("matmul_many", "matmul_plain"), ("down_many", "down_plain")];

/// Units that a device does not use because they computed wrongly.
#[derive(Debug, Default)]
pub(crate) struct AvoidedUnits(Mutex<BTreeSet<String>>);

impl AvoidedUnits {
    /// Avoids a unit from now on. Returns whether another unit has its kernels, and it was in use.
    pub(crate) fn add(&self, unit: &str) -> bool {
        plain_unit(unit).is_some()
            && self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(unit.to_owned())
    }

    /// The unit, or the one in its place.
    pub(crate) fn used(&self, unit: Unit) -> Unit {
        let avoided = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match plain_unit(unit.name()) {
            Some(plain) if avoided.contains(unit.name()) => plain,
            Some(_) | None => unit,
        }
    }
}

/// The unit with the same kernels without matrix instructions.
fn plain_unit(unit: &str) -> Option<Unit> {
    let (file, variant) = unit.split_once('.')?;
    let (_, plain) = PLAIN_FILES.iter().find(|(matrix, _)| *matrix == file)?;
    Some(Unit(format!("{plain}.{variant}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unit_names_give_their_source_and_formats() {
        let list = "# with variants\n\nmatmul_few weight\nattention cache\n";
        assert_eq!(source(list, "add"), Some(("add", Vec::new())));
        let few = source(list, "matmul_few.q4_0");
        assert_eq!(few, Some(("matmul_few", vec![("FORMAT", "q4_0")])));
        for (k, v, variant) in [
            (Format::Q4_0, Format::Q4_0, "q4_0"),
            (Format::Q8_0, Format::Q4_0, "dynamic"),
            (Format::IQ4_NL, Format::IQ4_NL, "dynamic"),
        ] {
            let unit = Unit::cache("attention", k, v);
            assert_eq!(source(list, unit.name()), Some(("attention", vec![("FORMAT", variant)])));
        }
        for wrong in ["add.q4_0", "matmul_few", "attention", "none.q4_0"] {
            assert_eq!(source(list, wrong), None, "{wrong}");
        }
    }
}
