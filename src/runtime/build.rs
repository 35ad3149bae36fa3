//! Unpacks the built-in model, which the repository stores compressed.

use std::fs;
use std::path::Path;

const NAME: &str = "tinystories-relu-f16.gguf";

fn main() {
    let path = format!("../../assets/{NAME}.planes.gz");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={path}");
    let model = planes::unpack(Path::new(&path), planes::width(NAME));
    let model = model.unwrap_or_else(|error| panic!("{path}: {error}"));
    #[allow(clippy::disallowed_methods)] // cargo passes the folder this way
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&folder).join(NAME), model).expect("OUT_DIR can be written");
}
