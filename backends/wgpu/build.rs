//! Embeds every shader of `shaders/`; its path without extension is its name.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[allow(clippy::disallowed_methods, reason = "cargo passes the output folder this way")]
fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let folder = fs::canonicalize(
        PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../shaders"),
    )?;
    println!("cargo::rerun-if-changed=build.rs");
    let mut shaders = Vec::new();
    find(&folder, "", &mut shaders)?;
    shaders.sort();
    let mut table = String::from("&[\n");
    for (name, path) in &shaders {
        let path = path
            .to_str()
            .ok_or_else(|| format!("the path '{}' is not valid Unicode", path.display()))?;
        writeln!(table, "    ({name:?}, include_str!({path:?})),")?;
    }
    table.push(']');
    fs::write(out.join("shaders.rs"), table)?;
    Ok(())
}

/// Adds the shaders of a folder and its subfolders; their names begin with `prefix`.
fn find(
    folder: &Path,
    prefix: &str,
    shaders: &mut Vec<(String, PathBuf)>,
) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={}", folder.display());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        let name = format!(
            "{prefix}{}",
            stem.ok_or_else(|| format!("the name of '{}' is not valid Unicode", path.display()))?
        );
        if path.is_dir() {
            find(&path, &format!("{name}/"), shaders)?;
        } else if path.extension().is_some_and(|ending| ending == "wgsl") {
            shaders.push((name, path));
        }
    }
    Ok(())
}
