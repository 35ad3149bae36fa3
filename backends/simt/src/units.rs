//! Which files of kernels there are, and what each is compiled for: a unit is a file and a variant.

use hal::TensorDesc;
use hal::format::{Code, Format};
use layout::has_tables;

/// A file of `kernels-cuda/`, compiled for something: `add`, `matmul_few.q4_0`, `attention.f16_q8_0`.
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

    /// A file that reads a down matrix by neuron, stored so or transposed.
    #[must_use]
    pub fn down(file: &str, desc: &TensorDesc) -> Unit {
        let quants = desc.format.quants().filter(|_| has_tables(desc));
        match quants.map(|quants| quants.code) {
            None => Unit::weight(file, desc.format),
            Some(Code::Nibble { .. }) => Unit(format!("{file}.transposed_nibbles")),
            Some(Code::Byte) => Unit(format!("{file}.transposed_bytes")),
        }
    }

    /// A file that is compiled for each pair of formats of keys and values.
    #[must_use]
    pub fn cache(file: &str, k: Format, v: Format) -> Unit {
        Unit(format!("{file}.{}_{}", format_name(k), format_name(v)))
    }

    /// The name.
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
