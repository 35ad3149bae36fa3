//! Rules about the installed program.

use super::lists::TESTS_ONLY;
use super::rules::{at, dependencies};
use super::tree::Tree;

/// `cargo install` needs no toolkit of a vendor: packages whose build scripts look for one are for
/// tests alone.
pub(super) fn installing_needs_no_toolkit(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        for (line, section, name) in dependencies(file) {
            let shipped = !section.contains("dev-") && section != "[workspace.dependencies]";
            if let Some((_, why)) = TESTS_ONLY.iter().find(|(test, _)| shipped && *test == name) {
                faults.push(at(
                    file,
                    line,
                    format!("depends on `{name}` ({why}): make it a dev-dependency"),
                ));
            }
        }
    }
    faults
}

/// With several code generation units, kernels call small functions that should be inlined, and take several times
/// as long.
pub(super) fn kernels_are_compiled_in_one_unit(tree: &Tree) -> Vec<String> {
    let manifests = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let lines =
        manifests.flat_map(|file| file.text.lines().enumerate().map(move |line| (file, line)));
    let units = lines.filter_map(|(file, (i, line))| {
        let (_, units) = line.split_once("codegen-units = ")?;
        let units = units.split(|c: char| !c.is_ascii_digit()).next()?;
        (units != "1").then(|| at(file, i + 1, format!("{units} units: kernels are slow, use 1")))
    });
    units.collect()
}
