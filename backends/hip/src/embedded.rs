//! Kernels that were precompiled when the program was built, for some architectures.

use std::io::{self, Read as _};

use flate2::read::DeflateDecoder;

/// A unit of kernels for an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EmbeddedUnit {
    /// Architecture, without the card's settings: `gfx90a`.
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

/// The architecture in the name that a driver reports, without the settings of the card.
pub(crate) fn strip_target_features(arch: &str) -> &str {
    arch.split(':').next().unwrap_or_default()
}

/// Whether there are kernels for an architecture.
pub(crate) fn has(all: &[EmbeddedUnit], arch: &str) -> bool {
    all.iter().any(|one| one.arch == strip_target_features(arch))
}

/// Code of a unit, if it is present and intact.
pub(crate) fn code(all: &[EmbeddedUnit], arch: &str, unit: &str) -> Option<Vec<u8>> {
    let one = all.iter().find(|one| one.unit == unit && one.arch == strip_target_features(arch))?;
    one.code().ok().filter(|code| !code.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_features_are_stripped_from_the_arch() {
        assert_eq!(strip_target_features("gfx90a:sramecc+:xnack-"), "gfx90a");
        // A stored block of one byte.
        let packed = &[1, 1, 0, 254, 255, 7];
        let all = [EmbeddedUnit { arch: "gfx90a", unit: "add", packed }];
        assert!(has(&all, "gfx90a:xnack-") && !has(&all, "gfx90") && !has(&all, ""));
        assert_eq!(code(&all, "gfx90a:xnack+", "add"), Some(vec![7]));
        assert_eq!(code(&all, "gfx90a", "norm"), None);
        for packed in [&[0xff][..], &packed[..5], &[]] {
            let broken = [EmbeddedUnit { packed, ..all[0] }];
            assert_eq!(code(&broken, "gfx90a", "add"), None, "{packed:?}");
        }
    }

    #[test]
    fn embedded_kernels_are_elf_files() {
        for one in EMBEDDED {
            let code = one.code().unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{} for {}", one.unit, one.arch);
        }
    }
}
