//! Test data that the repository stores compressed (crate `planes`).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) fn unpack(packed: &Path) -> Vec<u8> {
    planes::decompress(packed).unwrap_or_else(|e| panic!("{}: {e}", packed.display()))
}

pub(crate) fn unpack_planes(packed: &Path, width: usize) -> Vec<u8> {
    planes::unpack(packed, width).unwrap_or_else(|e| panic!("{}: {e}", packed.display()))
}

/// A folder below `target/` with the models, token ids and logits of `tests/families/`, unpacked
/// once per process. Other processes may unpack the same files at the same time.
pub(crate) fn families() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("families");
        fs::create_dir_all(&folder).unwrap();
        let names = fs::read_dir(&packed).unwrap().map(|entry| entry.unwrap().file_name());
        let mut known = Vec::new();
        for name in names.map(|name| name.into_string().unwrap()) {
            let from = packed.join(&name);
            if name.ends_with(".rs") || from.is_dir() {
                continue;
            }
            let (name, bytes) = if let Some(name) = name.strip_suffix(".planes.gz") {
                (name, unpack_planes(&from, planes::width(name)))
            } else if let Some(name) = name.strip_suffix(".gz") {
                (name, unpack(&from))
            } else {
                (&name[..], fs::read(&from).unwrap())
            };
            let name = name.to_owned();
            let part = folder.join(format!("{name}.{}.part", std::process::id()));
            fs::write(&part, bytes).unwrap();
            fs::rename(part, folder.join(&name)).unwrap();
            known.push(name);
        }
        // Models of an earlier state of the repository must not be tested.
        for entry in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name().into_string().unwrap();
            if !known.contains(&name) && !name.ends_with(".part") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        folder
    })
}
