//! Lists the kernels in `kernels-cuda/ptx/`, so that they are part of the program: users need the driver alone.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

#[allow(clippy::disallowed_methods, reason = "how cargo tells a build script where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-cuda/ptx");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut units = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "ptx") {
            continue;
        }
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path)?;
        let first = text.lines().next().unwrap_or_default();
        let unit = first.strip_prefix("// unit ").ok_or("its first line is not `// unit NAME`");
        let unit = unit.map_err(|why| format!("{}: {why}", path.display()))?;
        units.push((unit.trim().to_owned(), fs::canonicalize(&path)?));
    }
    units.sort();
    let mut table = String::from("&[\n");
    for (unit, path) in units {
        let path = path.to_str().ok_or("a path that is no text")?;
        writeln!(table, "    ({unit:?}, concat!(include_str!({path:?}), \"\\0\")),")?;
    }
    table.push(']');
    fs::write(out.join("ptx.rs"), table)?;
    Ok(())
}
