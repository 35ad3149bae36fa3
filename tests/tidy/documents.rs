//! Rules about documents: what they must contain, and that the paths they name exist.

use super::rules::at;
use super::tree::Tree;

/// Reports missing headings and commands that readers and other rules rely on.
pub(super) fn documents(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let mut want = |path: &str, what: &str, why: &str| {
        if !tree.text(path).contains(what) {
            faults.push(format!("{path}: no `{what}`: {why}"));
        }
    };
    want("CHANGELOG.md", "## [Unreleased]", "every change that a user sees gets a line there");
    want("README.md", "cargo run --release", "the command that runs it");
    want("ARCHITECTURE.md", "## Where to start reading", "a reader begins there");
    let mut test_command = None;
    for line in tree.text("README.md").lines().map(str::trim) {
        if line.starts_with("cargo test") {
            test_command = test_command.or(Some(line));
        }
    }
    match test_command {
        Some(command) => {
            want(".ci/run", command, "it ends with README's test command, word for word")
        }
        None => {
            faults.push("README.md: no `cargo test` command: the second of its two commands".into())
        }
    }
    faults
}

/// Reports paths in documents, and paths of test data in code, that do not exist.
pub(super) fn paths_exist(tree: &Tree) -> Vec<String> {
    let folders = ["src/", "backends/", "tests/", "docs/", "scripts/", "assets/", ".ci/"];
    let is_path = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let mut faults = Vec::new();
    for file in &tree.files {
        let text = file.path.ends_with(".md") && !file.path.starts_with("assets/train");
        for (i, line) in file.text.lines().enumerate() {
            let pieces = line.split(['`', '"', '(', ')', ' ']).filter(|_| text || file.is_rust());
            for piece in pieces {
                let path = piece.trim_start_matches("../").trim_end_matches(['.', ',', ':', ';']);
                let here = if text { &folders[..] } else { &folders[5..6] };
                let known = here.iter().any(|f| path.starts_with(f) && path.len() > f.len());
                let made_up = file.path.starts_with("tests/tidy");
                if known && !made_up && path.chars().all(is_path) && !tree.has(path) {
                    faults.push(at(
                        file,
                        i + 1,
                        format!("`{path}` does not exist: correct the path"),
                    ));
                }
            }
        }
    }
    faults
}
