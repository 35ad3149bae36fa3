//! A rule about the dependencies of the installed program.

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
