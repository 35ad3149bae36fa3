//! Kernels that were precompiled when the program was built, for some architectures.

use std::io::{self, Read as _};

use flate2::read::DeflateDecoder;

/// A unit of kernels for an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddedUnit {
    /// Architecture without target features: `gfx90a`.
    pub(crate) arch: &'static str,
    pub(crate) unit: &'static str,
    /// The unit's code, compressed with deflate.
    pub(crate) packed: &'static [u8],
}

/// The embedded kernels, by architecture and unit. Empty unless the build had a folder of
/// precompiled kernels; `build.rs` checks that these were made from the embedded sources.
pub(crate) const EMBEDDED: &[EmbeddedUnit] = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

impl EmbeddedUnit {
    fn code(&self) -> io::Result<Vec<u8>> {
        let mut code = Vec::new();
        DeflateDecoder::new(self.packed).read_to_end(&mut code)?;
        Ok(code)
    }
}

/// The architecture that a driver reports, without target features such as `:xnack-`.
pub(crate) fn strip_target_features(arch: &str) -> &str {
    arch.split(':').next().unwrap_or_default()
}

pub(crate) fn has_arch(units: &[EmbeddedUnit], arch: &str) -> bool {
    units.iter().any(|entry| entry.arch == strip_target_features(arch))
}

/// Code of a unit, if it is present and intact.
pub(crate) fn find_code(units: &[EmbeddedUnit], arch: &str, unit: &str) -> Option<Vec<u8>> {
    let arch = strip_target_features(arch);
    let entry = units.iter().find(|entry| entry.unit == unit && entry.arch == arch)?;
    entry.code().ok().filter(|code| !code.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_features_are_stripped_from_the_arch() {
        assert_eq!(strip_target_features("gfx90a:sramecc+:xnack-"), "gfx90a");
        // Deflate data: a stored block of one byte.
        let packed = &[1, 1, 0, 254, 255, 7];
        let units = [EmbeddedUnit { arch: "gfx90a", unit: "add", packed }];
        assert!(has_arch(&units, "gfx90a:xnack-"));
        assert!(!has_arch(&units, "gfx90") && !has_arch(&units, ""));
        assert_eq!(find_code(&units, "gfx90a:xnack+", "add"), Some(vec![7]));
        assert_eq!(find_code(&units, "gfx90a", "norm"), None);
        for packed in [&[0xff][..], &packed[..5], &[]] {
            let broken = [EmbeddedUnit { packed, ..units[0] }];
            assert_eq!(find_code(&broken, "gfx90a", "add"), None, "{packed:?}");
        }
    }

    #[test]
    fn embedded_kernels_are_elf_files() {
        for entry in EMBEDDED {
            let code = entry.code().unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{} for {}", entry.unit, entry.arch);
        }
    }
}
