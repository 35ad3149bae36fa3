//! Reads a folder of kernels that `scripts/make_hip_code` has precompiled. The build script and
//! tests use this module.

use std::fs;
use std::path::{Path, PathBuf};

const EXTENSION: &str = ".deflated";
/// The file with the stamp of the sources that a folder's kernels were made from.
const STAMP_FILE: &str = "SOURCES";

/// A unit of kernels for an architecture.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredUnit {
    pub(crate) arch: String,
    pub(crate) unit: String,
    /// Path of the unit's code, compressed with deflate.
    pub(crate) path: PathBuf,
}

/// 64-bit FNV-1a over the names, lengths and contents of sources in order, as
/// `scripts/kernel_units.py` computes it.
pub(crate) fn stamp<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> u64 {
    let add = |sum: u64, bytes: &[u8]| {
        let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(sum, step)
    };
    files.into_iter().fold(0xcbf2_9ce4_8422_2325, |sum, (name, text)| {
        let sum = add(sum, &(name.len() as u64).to_le_bytes());
        let sum = add(sum, name.as_bytes());
        add(add(sum, &(text.len() as u64).to_le_bytes()), text)
    })
}

/// All kernels of a folder, by architecture and unit: a subfolder per architecture with a file per
/// unit.
///
/// # Errors
/// A message about a file that cannot be read, or about kernels made from other sources.
pub(crate) fn stored(folder: &Path, stamp: u64) -> Result<Vec<StoredUnit>, String> {
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
    for (arch, arch_folder) in list(folder)? {
        if !arch_folder.is_dir() {
            continue;
        }
        let sources = fs::read_to_string(arch_folder.join(STAMP_FILE)).unwrap_or_default();
        if sources.trim() != format!("{stamp:016x}") {
            return Err(format!(
                "{} has kernels made from other sources: run `scripts/make_hip_code {} {arch}` to rebuild them",
                arch_folder.display(),
                folder.display(),
            ));
        }
        for (name, path) in list(&arch_folder)? {
            if let Some(unit) = name.strip_suffix(EXTENSION) {
                found.push(StoredUnit { arch: arch.clone(), unit: unit.to_owned(), path });
            }
        }
    }
    if found.is_empty() {
        return Err(format!("{} has no kernels", folder.display()));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_depends_on_where_names_and_texts_end() {
        let stamp_of =
            |files: &[(&str, &str)]| stamp(files.iter().map(|(n, t)| (*n, t.as_bytes())));
        let stamps = [
            stamp_of(&[]),
            stamp_of(&[("a", "b")]),
            stamp_of(&[("ab", "")]),
            stamp_of(&[("a", ""), ("b", "")]),
            stamp_of(&[("b", ""), ("a", "")]),
        ];
        assert!(stamps.iter().enumerate().all(|(i, stamp)| !stamps[..i].contains(stamp)));
    }

    #[test]
    fn kernels_of_other_sources_are_refused_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let none = stored(folder.path(), 7).unwrap_err();
        assert!(none.ends_with("has no kernels"), "{none}");
        let arch = folder.path().join("gfx1100");
        fs::create_dir(&arch).unwrap();
        fs::write(arch.join("add.deflated"), "code").unwrap();
        fs::write(folder.path().join("note"), "unrelated").unwrap();
        for stale in [None, Some(""), Some("0000000000000008")] {
            if let Some(text) = stale {
                fs::write(arch.join("SOURCES"), text).unwrap();
            }
            let refused = stored(folder.path(), 7).unwrap_err();
            assert!(refused.contains("made from other sources"), "{refused}");
            assert!(refused.contains("make_hip_code") && refused.contains("gfx1100"), "{refused}");
        }
        fs::write(arch.join("SOURCES"), "0000000000000007\n").unwrap();
        let found = stored(folder.path(), 7).unwrap();
        let path = arch.join("add.deflated");
        assert_eq!(found, [StoredUnit { arch: "gfx1100".into(), unit: "add".into(), path }]);
        assert!(stored(&folder.path().join("none"), 7).is_err());
    }
}
