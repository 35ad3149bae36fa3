//! Rules about sizes and scripts.

use super::lists::LARGE;
use super::tree::Tree;

/// Maximum number of bytes of a file that is not in LARGE.
const MAX_BYTES: u64 = 1_000_000;
/// Maximum number of bytes of all files that are not text: models, compiled kernels, test data.
const MAX_BINARY_BYTES: u64 = 15_000_000;
/// Maximum number of bytes of a checkout without `.git`: the binary files, and 11.5 MB of text.
const MAX_TOTAL_BYTES: u64 = 26_500_000;

/// Limits the size of each file, of all binary files and of the checkout, so that generated data does not pile up.
pub(crate) fn files_are_small(tree: &Tree) -> Vec<String> {
    let large = |(path, size): &&(String, u64)| {
        *size > MAX_BYTES && LARGE.iter().all(|(listed, _)| listed != path)
    };
    let fault = |(path, size): &(String, u64)| {
        format!(
            "{path}:1: {size} bytes, at most {MAX_BYTES}: compress it, generate it, or list it in LARGE"
        )
    };
    let mut faults: Vec<String> = tree.sizes.iter().filter(large).map(fault).collect();
    let binary = |(path, _): &&(String, u64)| tree.files.iter().all(|file| file.path != *path);
    let sum: u64 = tree.sizes.iter().filter(binary).map(|(_, size)| size).sum();
    if sum > MAX_BINARY_BYTES {
        faults.push(format!("binary files have {sum} bytes, at most {MAX_BINARY_BYTES}"));
    }
    let sum: u64 = tree.sizes.iter().map(|(_, size)| size).sum();
    if sum > MAX_TOTAL_BYTES {
        faults.push(format!("a checkout has {sum} bytes, at most {MAX_TOTAL_BYTES}"));
    }
    faults
}

/// Programs in `scripts/` are called `verb_object`, without the extension of their language; the
/// modules that they import end in `.py`, and the libraries that they compile in `.c`.
/// `scripts/README.md` lists all.
pub(crate) fn script_names_are_uniform(tree: &Tree) -> Vec<String> {
    let index = tree.text("scripts/README.md");
    let mut faults = Vec::new();
    for file in tree.below("scripts/") {
        let name = file.path.trim_start_matches("scripts/");
        if name.starts_with('.') || name.ends_with(".md") {
            continue;
        }
        let mut fault = |what: &str| faults.push(format!("{}:1: {what}", file.path));
        if file.text.starts_with("#!") {
            let words: Vec<&str> = name.split('_').collect();
            let plain = |word: &&str| {
                !word.is_empty()
                    && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
            };
            if words.len() < 2 || !words.iter().all(plain) {
                fault("a program is called `verb_object`, without an extension");
            }
        } else if !name.ends_with(".py") && !name.ends_with(".c") {
            fault("neither a program (`#!` in its first line) nor a module (`.py`, `.c`)");
        }
        if !index.contains(&format!("| `{name}` |")) {
            fault("not in the tables of scripts/README.md");
        }
    }
    faults
}
