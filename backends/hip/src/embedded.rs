//! Kernels that were precompiled when the program was built, for some architectures.

use std::io::{self, Read as _};

use flate2::read::DeflateDecoder;

/// A unit of kernels for an architecture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Embedded {
    /// Without the card's settings: `gfx90a`.
    pub(crate) arch: &'static str,
    pub(crate) unit: &'static str,
    /// Its code, deflated.
    pub(crate) packed: &'static [u8],
}

/// The embedded kernels, by architecture and unit. Empty unless the build was given a folder
/// (`build.rs`), which accepts only code made from the sources that are embedded too.
pub(crate) const EMBEDDED: &[Embedded] = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

impl Embedded {
    fn code(&self) -> io::Result<Vec<u8>> {
        let mut code = Vec::new();
        DeflateDecoder::new(self.packed).read_to_end(&mut code)?;
        Ok(code)
    }
}

/// The architecture in the name that a driver reports, without the settings of the card.
pub(crate) fn base(arch: &str) -> &str {
    arch.split(':').next().unwrap_or_default()
}

/// Whether there are kernels for an architecture.
pub(crate) fn has(all: &[Embedded], arch: &str) -> bool {
    all.iter().any(|one| one.arch == base(arch))
}

/// Code of a unit, if it is present and intact.
pub(crate) fn code(all: &[Embedded], arch: &str, unit: &str) -> Option<Vec<u8>> {
    let one = all.iter().find(|one| one.unit == unit && one.arch == base(arch))?;
    one.code().ok().filter(|code| !code.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_card_are_left_out() {
        assert_eq!(base("gfx90a:sramecc+:xnack-"), "gfx90a");
        // A stored block of one byte.
        let packed = &[1, 1, 0, 254, 255, 7];
        let all = [Embedded { arch: "gfx90a", unit: "add", packed }];
        assert!(has(&all, "gfx90a:xnack-") && !has(&all, "gfx90") && !has(&all, ""));
        assert_eq!(code(&all, "gfx90a:xnack+", "add"), Some(vec![7]));
        assert_eq!(code(&all, "gfx90a", "norm"), None);
        for packed in [&[0xff][..], &packed[..5], &[]] {
            let broken = [Embedded { packed, ..all[0] }];
            assert_eq!(code(&broken, "gfx90a", "add"), None, "{packed:?}");
        }
    }

    #[test]
    fn all_that_is_embedded_is_code() {
        for one in EMBEDDED {
            let code = one.code().unwrap();
            assert!(code.starts_with(b"\x7fELF"), "{} for {}", one.unit, one.arch);
        }
    }
}
