//! Puts the kernels in `kernels-cuda/ptx/` into the program, compressed: users need the driver alone.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::DeflateEncoder;

#[allow(clippy::disallowed_methods, reason = "how cargo tells a build script where to write")]
fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-cuda/ptx");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", folder.display());
    let mut units = Vec::new();
    let entries =
        fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "ptx") {
            continue;
        }
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read_to_string(&path)?;
        let word = |start: &str| {
            let found = text.lines().find_map(|line| line.strip_prefix(start));
            found.map(str::trim).ok_or_else(|| format!("{}: no `{start}`", path.display()))
        };
        let target: u32 = word(".target sm_")?.parse()?;
        units.push((word("// unit ")?.to_owned(), target, text));
    }
    units.sort();
    let mut table = String::from("&[\n");
    for (unit, target, text) in units {
        let path = out.join(format!("{unit}.{target}"));
        let mut packed = DeflateEncoder::new(fs::File::create(&path)?, Compression::best());
        packed.write_all(text.as_bytes())?;
        packed.finish()?;
        let path = path.to_str().ok_or("a path that is no text")?;
        writeln!(
            table,
            "    Ptx {{ unit: {unit:?}, target: {target}, packed: include_bytes!({path:?}) }},"
        )?;
    }
    table.push(']');
    fs::write(out.join("ptx.rs"), table)?;
    Ok(())
}
