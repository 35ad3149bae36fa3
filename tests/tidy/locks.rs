//! Rules about dependencies that `Cargo.toml` and the lock files of two workspaces state.

use std::collections::{BTreeMap, BTreeSet};

use super::lists::TESTS_ONLY;
use super::rules::{at, dependencies};
use super::tree::Tree;

const FUZZ: &str = "fuzz/Cargo.lock";

/// A package of a lock file: its versions, and the names of its dependencies.
#[derive(Default)]
struct Locked<'a> {
    versions: BTreeSet<&'a str>,
    dependencies: BTreeSet<&'a str>,
}

fn packages(lock: &str) -> BTreeMap<&str, Locked<'_>> {
    let mut packages: BTreeMap<&str, Locked<'_>> = BTreeMap::new();
    for entry in lock.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = entry.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().trim_matches('"')
        };
        let package = packages.entry(value("name = ")).or_default();
        package.versions.insert(value("version = "));
        let listed = entry.lines().filter_map(|line| line.strip_prefix(" \""));
        package.dependencies.extend(listed.map(|name| name.split(['"', ' ']).next().unwrap_or("")));
    }
    packages
}

/// The fuzzed readers are those of the program: `fuzz/Cargo.lock` has the versions and the
/// dependencies of `Cargo.lock`.
pub(super) fn fuzz_locks_the_same_versions(tree: &Tree) -> Vec<String> {
    let (root, fuzz) = (packages(tree.text("Cargo.lock")), packages(tree.text(FUZZ)));
    let fix = "copy Cargo.lock over it, then run `cargo metadata` in fuzz/";
    let mut faults = Vec::new();
    for (name, locked) in &fuzz {
        let Some(own) = root.get(name) else { continue };
        for version in locked.versions.difference(&own.versions) {
            faults.push(format!("{FUZZ}: {name} {version} is not in Cargo.lock: {fix}"));
        }
        if name.starts_with("thermocline") {
            let for_tests = for_tests(tree, name);
            for missing in own.dependencies.difference(&locked.dependencies) {
                if !for_tests.contains(*missing) {
                    faults.push(format!("{FUZZ}: {name} lacks its dependency {missing}: {fix}"));
                }
            }
        }
    }
    faults
}

/// Packages that only tests of the crate `name` use.
fn for_tests(tree: &Tree, name: &str) -> BTreeSet<String> {
    let line = format!("name = \"{name}\"");
    let crates = tree.files.iter().filter(|file| file.path.ends_with("Cargo.toml"));
    let Some(own) = crates.clone().find(|file| file.text.lines().any(|text| text == line)) else {
        return BTreeSet::new();
    };
    let own = dependencies(own).filter(|(_, section, _)| *section != "[workspace.dependencies]");
    let (tests, other): (Vec<_>, Vec<_>) =
        own.partition(|(_, section, _)| section.contains("dev-dependencies"));
    let used: BTreeSet<&str> = other.iter().map(|(_, _, name)| *name).collect();
    let only = tests.iter().map(|(_, _, name)| *name).filter(|name| !used.contains(name));
    only.map(|alias| package(tree, alias)).collect()
}

/// The package that the workspace calls `alias`.
fn package(tree: &Tree, alias: &str) -> String {
    let start = format!("{alias} = {{ package = \"");
    let named = tree.text("Cargo.toml").lines().find_map(|line| line.strip_prefix(&start));
    named.and_then(|rest| rest.split('"').next()).unwrap_or(alias).to_owned()
}

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
