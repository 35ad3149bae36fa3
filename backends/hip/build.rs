//! Puts the sources of the kernels into the program: AMD has nothing like PTX, so they are compiled where they run.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that kernels include from, and what they are called there. `kernels-hip` has HIP's dialect, and kernels that
/// take the place of those in `kernels-cuda`.
const FOLDERS: [(&str, &str); 5] = [
    ("kernels-cuda", ""),
    ("kernels-cuda/cache", "cache/"),
    ("kernels-cuda/lib", "lib/"),
    ("kernels-cuda/formats", "formats/"),
    ("kernels-hip", ""),
];

#[allow(clippy::disallowed_methods, reason = "how cargo tells a build script where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let root = fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))?;
    println!("cargo::rerun-if-changed=build.rs");
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
    let mut table = String::from("&[\n");
    for (name, path) in sources {
        let path = path.to_str().ok_or("a path that is no text")?;
        writeln!(table, "    ({name:?}, include_str!({path:?})),")?;
    }
    table.push(']');
    fs::write(out.join("sources.rs"), table)?;
    Ok(())
}
