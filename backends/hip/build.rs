//! Embeds the sources of the kernels into the program. They are compiled on the user's machine,
//! since AMD has no equivalent of PTX.
//!
//! With `THERMOCLINE_HIP_CODE=FOLDER`, the precompiled kernels in a folder from
//! `scripts/make_hip_code` are embedded too.

#[path = "src/stored.rs"]
mod stored;

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable with the folder of precompiled kernels.
const CODE: &str = "THERMOCLINE_HIP_CODE";

/// Folders of kernel files, and their include prefixes. A file in a later folder replaces a file of
/// the same name in an earlier folder; `kernels-hip` has HIP's dialect.
const FOLDERS: [(&str, &str); 5] = [
    ("kernels-cuda", ""),
    ("kernels-cuda/cache", "cache/"),
    ("kernels-cuda/lib", "lib/"),
    ("kernels-cuda/formats", "formats/"),
    ("kernels-hip", ""),
];

#[allow(clippy::disallowed_methods, reason = "cargo passes the output folder this way")]
fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = fs::canonicalize(PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../.."))?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src/stored.rs");
    println!("cargo::rerun-if-env-changed={CODE}");
    let sources = sources(&root)?;
    let mut table = String::from("&[\n");
    for (name, path) in &sources {
        let path = path.to_str().ok_or("a path that is not valid Unicode")?;
        writeln!(table, "    ({name:?}, include_str!({path:?})),")?;
    }
    table.push(']');
    fs::write(out.join("sources.rs"), table)?;
    let folder = std::env::var_os(CODE).filter(|folder| !folder.is_empty());
    let embedded = match folder {
        // A relative path begins at the root of the repository.
        Some(folder) => embedded(&root.join(folder), &root, sources)?,
        None => "&[]".to_owned(),
    };
    fs::write(out.join("embedded.rs"), embedded)?;
    Ok(())
}

/// The kernel files, by name.
fn sources(root: &Path) -> Result<Vec<(String, PathBuf)>, Box<dyn Error>> {
    let mut sources: Vec<(String, PathBuf)> = Vec::new();
    for (folder, prefix) in FOLDERS {
        let folder = root.join(folder);
        println!("cargo::rerun-if-changed={}", folder.display());
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let wanted = [".cu", ".cuh", ".h"].iter().any(|end| name.ends_with(end));
            let cuda = folder.ends_with("kernels-cuda") && name == "dialect.h";
            if wanted && !cuda {
                println!("cargo::rerun-if-changed={}", path.display());
                let name = format!("{prefix}{name}");
                sources.retain(|(other, _)| *other != name);
                sources.push((name, path));
            }
        }
    }
    sources.sort();
    Ok(sources)
}

/// The table of the precompiled kernels in a folder; an error if they were made from other sources.
fn embedded(
    folder: &Path,
    root: &Path,
    mut sources: Vec<(String, PathBuf)>,
) -> Result<String, Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    let flags = root.join("kernels-hip/FLAGS");
    println!("cargo::rerun-if-changed={}", flags.display());
    sources.push(("FLAGS".to_owned(), flags));
    let read = |(name, path): (String, PathBuf)| Ok((name, fs::read(path)?));
    let texts: Vec<(String, Vec<u8>)> =
        sources.into_iter().map(read).collect::<std::io::Result<_>>()?;
    let stamp = stored::stamp(texts.iter().map(|(name, text)| (&**name, &**text)));
    let mut table = String::from("&[\n");
    for stored::StoredUnit { arch, unit, path } in stored::stored(folder, stamp)? {
        println!("cargo::rerun-if-changed={}", path.display());
        let path = path.to_str().ok_or("a path that is not valid Unicode")?;
        writeln!(
            table,
            "    EmbeddedUnit {{ arch: {arch:?}, unit: {unit:?}, packed: include_bytes!({path:?}) }},"
        )?;
    }
    table.push(']');
    Ok(table)
}
