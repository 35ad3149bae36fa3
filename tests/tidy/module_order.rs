//! A module of the engine may import only modules below it, in the order that the head of
//! `src/engine/mod.rs` lists.

use super::lists::{DEVICE_NAMES, ENGINE_PURE};
use super::rules::at;
use super::tree::{Source, Tree};

const ENGINE: &str = "src/engine/";
const HEAD: &str = "src/engine/mod.rs";

/// The engine's modules, lowest first.
fn order(tree: &Tree) -> Vec<&str> {
    let entries = tree.text(HEAD).lines().filter_map(|line| line.strip_prefix("//! - `"));
    entries.filter_map(|entry| Some(entry.split_once('`')?.0)).collect()
}

/// The engine's module that a file belongs to, and the number of modules above the file.
fn module_of(file: &Source) -> Option<(&str, usize)> {
    let path = file.path.strip_prefix(ENGINE)?.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    Some((path.split('/').next()?, path.matches('/').count()))
}

/// The first name below the crate root in the path `name`; `None` if the path stays within its
/// module or leaves the crate.
fn below_root(name: &str, depth: usize) -> Option<&str> {
    let mut rest = name;
    if let Some(path) = name.strip_prefix("crate::") {
        rest = path;
    } else {
        for _ in 0..=depth {
            rest = rest.strip_prefix("super::")?;
        }
    }
    rest.split("::").next()
}

pub(super) fn engine_imports_go_down(tree: &Tree) -> Vec<String> {
    if !tree.has(HEAD) {
        return Vec::new();
    }
    let order = order(tree);
    let rank = |name: &str| order.iter().position(|module| *module == name);
    let mut faults = Vec::new();
    for file in tree.below(ENGINE).filter(|f| f.is_rust() && f.path != HEAD) {
        let Some((module, depth)) = module_of(file) else { continue };
        let Some(own) = rank(module) else {
            faults.push(at(
                file,
                1,
                format!("`{module}` is not in the order of modules in {HEAD}"),
            ));
            continue;
        };
        for (line, name) in file.names() {
            let Some(used) = below_root(&name, depth) else { continue };
            match rank(used) {
                Some(other) if other <= own => {}
                Some(_) => faults.push(at(
                    file,
                    line,
                    format!("`{module}` imports `{used}`, which is above it in {HEAD}"),
                )),
                None => faults.push(at(
                    file,
                    line,
                    format!("`{name}`: import it from its module, which {HEAD} lists"),
                )),
            }
        }
    }
    for module in &order {
        let path = format!("{ENGINE}{module}");
        if !tree.has(&path) && !tree.has(&format!("{path}.rs")) {
            faults.push(format!("{HEAD}: module `{module}` does not exist"));
        }
    }
    faults
}

/// Sizes are computed before anything is allocated, so this code must not use device memory.
pub(super) fn engine_sizes_allocate_nothing(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let pure = |f: &&Source| ENGINE_PURE.iter().any(|folder| f.path.starts_with(folder));
    for file in tree.rust().filter(pure) {
        for (line, name) in file.names() {
            let used = name.strip_prefix("hal::").unwrap_or_default();
            // A `Device` may be asked for sizes and plans.
            if used != "Device" && DEVICE_NAMES.contains(&used) {
                faults.push(at(file, line, format!("uses `hal::{used}`: only shapes and bytes here; allocate in src/engine/load")));
            }
        }
    }
    faults
}
