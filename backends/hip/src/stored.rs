//! Kernels that `scripts/make_hip_code` has compiled before, as the build script finds them in a folder: it is part of that
//! script, and of tests.

use std::fs;
use std::path::{Path, PathBuf};

/// What a file of kernels ends in.
const END: &str = ".deflated";
/// The file that says which sources all others beside it were made from.
const SOURCES: &str = "SOURCES";

/// A unit of kernels for an architecture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stored {
    pub(crate) arch: String,
    pub(crate) unit: String,
    /// Its code, deflated.
    pub(crate) path: PathBuf,
}

/// FNV-1a, 64 bits, over names and texts of sources in their order: `scripts/kernel_units.py` counts the same way.
pub(crate) fn stamp<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> u64 {
    let add = |sum: u64, bytes: &[u8]| {
        let one = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(sum, one)
    };
    files.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum, (name, text)| {
        let sum = add(sum, &(name.len() as u64).to_le_bytes());
        let sum = add(sum, name.as_bytes());
        add(add(sum, &(text.len() as u64).to_le_bytes()), text)
    })
}

/// All that a folder has, by architecture and unit: a folder of each architecture with a file of each unit.
///
/// # Errors
/// A sentence: what cannot be read, and what was made from other sources than those of this stamp.
pub(crate) fn stored(folder: &Path, stamp: u64) -> Result<Vec<Stored>, String> {
    let list = |folder: &Path| -> Result<Vec<(String, PathBuf)>, String> {
        let fail = |error: std::io::Error| format!("{}: {error}", folder.display());
        let entries = fs::read_dir(folder).map_err(fail)?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            names.extend(entry.file_name().into_string().ok().map(|name| (name, entry.path())));
        }
        Ok(names)
    };
    let mut found = Vec::new();
    for (arch, of_arch) in list(folder)? {
        if !of_arch.is_dir() {
            continue;
        }
        let sources = fs::read_to_string(of_arch.join(SOURCES)).unwrap_or_default();
        if sources.trim() != format!("{stamp:016x}") {
            return Err(format!(
                "{} holds kernels of other sources than these: `scripts/make_hip_code {} {arch}` makes them anew",
                of_arch.display(),
                folder.display(),
            ));
        }
        for (name, path) in list(&of_arch)? {
            if let Some(unit) = name.strip_suffix(END) {
                found.push(Stored { arch: arch.clone(), unit: unit.to_owned(), path });
            }
        }
    }
    if found.is_empty() {
        return Err(format!("{} holds no kernels", folder.display()));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_tells_names_and_texts_apart() {
        let of = |files: &[(&str, &str)]| stamp(files.iter().map(|(n, t)| (*n, t.as_bytes())));
        let all = [
            of(&[]),
            of(&[("a", "b")]),
            of(&[("ab", "")]),
            of(&[("a", ""), ("b", "")]),
            of(&[("b", ""), ("a", "")]),
        ];
        assert!(all.iter().enumerate().all(|(i, stamp)| !all[..i].contains(stamp)));
    }

    #[test]
    fn kernels_of_other_sources_are_refused_with_what_helps() {
        let folder = tempfile::tempdir().unwrap();
        let none = stored(folder.path(), 7).unwrap_err();
        assert!(none.ends_with("holds no kernels"), "{none}");
        let arch = folder.path().join("gfx1100");
        fs::create_dir(&arch).unwrap();
        fs::write(arch.join("add.deflated"), "code").unwrap();
        fs::write(folder.path().join("note"), "of somebody").unwrap();
        for stale in [None, Some(""), Some("0000000000000008")] {
            if let Some(text) = stale {
                fs::write(arch.join("SOURCES"), text).unwrap();
            }
            let refused = stored(folder.path(), 7).unwrap_err();
            assert!(refused.contains("of other sources than these"), "{refused}");
            assert!(refused.contains("make_hip_code") && refused.contains("gfx1100"), "{refused}");
        }
        fs::write(arch.join("SOURCES"), "0000000000000007\n").unwrap();
        let found = stored(folder.path(), 7).unwrap();
        let path = arch.join("add.deflated");
        assert_eq!(found, [Stored { arch: "gfx1100".into(), unit: "add".into(), path }]);
        assert!(stored(&folder.path().join("none"), 7).is_err());
    }
}
