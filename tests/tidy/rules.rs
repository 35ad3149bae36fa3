//! The rules. Each returns one line per fault: the place, the fault, and what to do.

use std::collections::BTreeSet;

use super::bytes::{files_are_small, script_names_are_uniform};
use super::documents::{documents, paths_exist};
use super::installation::{installing_needs_no_toolkit, kernels_are_compiled_in_one_unit};
use super::lists::{
    BACKENDS, DEVICE_NAMES, HAL_NEEDS, LARGE, LONG, MAX_LINES, OWNED, PURE, SRC_CRATES, UNSAFE,
};
use super::module_order::{engine_imports_go_down, engine_sizes_allocate_nothing};
use super::tree::{Source, Tree};
use super::words::plain_words;

/// A rule: returns the faults that it finds, one line each.
pub(crate) type Rule = fn(&Tree) -> Vec<String>;

pub(crate) const RULES: &[Rule] = &[
    pure_code_uses_no_device,
    engine_imports_go_down,
    engine_sizes_allocate_nothing,
    dependencies_have_one_owner,
    installing_needs_no_toolkit,
    kernels_are_compiled_in_one_unit,
    backends_named_once,
    backends_use_no_src_crate,
    only_commands_do_io,
    no_globals,
    file_length,
    ops_have_one_name,
    formats_have_one_name,
    kernel_sources_are_shared,
    unsafe_is_listed,
    nothing_unfinished,
    no_developer_names,
    documents,
    paths_exist,
    tests_are_run,
    files_are_small,
    script_names_are_uniform,
    plain_words,
];

pub(super) fn at(file: &Source, line: usize, what: impl std::fmt::Display) -> String {
    format!("{}:{line}: {what}", file.path)
}

fn first(path: &str) -> &str {
    path.split("::").next().unwrap_or(path)
}

/// Numbers and texts of the lines of `code` that contain `what` as a whole word.
fn lines_with<'a>(code: &'a str, what: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.lines().enumerate().filter_map(move |(i, line)| {
        let hit = line.match_indices(what).any(|(at, _)| {
            !line[..at].ends_with(part) && !line[at + what.len()..].starts_with(part)
        });
        hit.then_some((i + 1, line))
    })
}

fn pure_code_uses_no_device(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let pure = |f: &&Source| PURE.iter().any(|folder| f.path.starts_with(folder));
    for file in tree.rust().filter(pure) {
        for (line, name) in file.names() {
            let used = first(name.strip_prefix("hal::").unwrap_or_default());
            if DEVICE_NAMES.contains(&used) {
                faults.push(at(file, line, format!("uses `hal::{used}`: this code only transforms data; pass what it needs as arguments")));
            }
        }
    }
    faults
}

/// The dependencies in a `Cargo.toml`: line, section and name of each.
pub(super) fn dependencies(file: &Source) -> impl Iterator<Item = (usize, &str, &str)> {
    let mut section = "";
    file.text.lines().enumerate().filter_map(move |(i, line)| {
        if line.starts_with('[') {
            section = line;
            return None;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let is_name = !name.is_empty() && !name.starts_with(['#', '}', ']']);
        (section.contains("dependencies") && is_name).then_some((i + 1, section, name))
    })
}

fn dependencies_have_one_owner(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in
        tree.files.iter().filter(|f| f.path.ends_with("/Cargo.toml") || f.path == "Cargo.toml")
    {
        for (line, section, name) in dependencies(file) {
            let other = |(owned, owner): &&(&str, &str)| *owned == name && *owner != file.path;
            if section != "[workspace.dependencies]"
                && let Some((_, owner)) = OWNED.iter().find(other)
            {
                faults.push(at(
                    file,
                    line,
                    format!("depends on `{name}`: only {owner} does (OWNED)"),
                ));
            }
        }
    }
    faults
}

fn backends_named_once(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.below("src/").filter(|f| f.is_rust() && f.path != "src/runtime/devices.rs") {
        for (line, name) in file.names() {
            if name.contains("::") && BACKENDS.contains(&first(&name)) {
                faults.push(at(
                    file,
                    line,
                    format!("`{name}`: only src/runtime/devices.rs names backends"),
                ));
            }
        }
        // The names of features are in literals, which are blanked in `shipped`, so any use of
        // `feature` is reported.
        let asking = lines_with(file.shipped(), "feature").filter(|(_, text)| text.contains("cfg"));
        for (line, _) in asking {
            faults.push(at(file, line, "only src/runtime/devices.rs checks features"));
        }
    }
    faults
}

fn backends_use_no_src_crate(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.below("backends/").filter(|f| f.is_rust()) {
        for (line, name) in file.names() {
            if first(&name) == "thermocline" {
                faults.push(at(file, line, "backends see ops on tensors, never the engine"));
            }
            let io = ["std::fs", "std::net", "std::io", "std::process"];
            if file.path.starts_with("backends/hal/src") && io.iter().any(|p| name.starts_with(p)) {
                faults.push(at(file, line, format!("`{name}`: hal does no input or output")));
            }
        }
    }
    for file in tree.below("backends/").filter(|f| f.path.ends_with("Cargo.toml")) {
        for (line, section, name) in dependencies(file) {
            if SRC_CRATES.contains(&name) {
                faults.push(at(file, line, "a backend depends on the engine: reverse this"));
            }
            let hal = file.path == "backends/hal/Cargo.toml" && section == "[dependencies]";
            if hal && !HAL_NEEDS.contains(&name) {
                faults.push(at(file, line, format!("hal depends on `{name}`: the contract names no library of a device (HAL_NEEDS)")));
            }
        }
    }
    faults
}

fn only_commands_do_io(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    // Exceptions: the program sets a variable for its drivers when it starts, and cargo passes
    // settings to build scripts in variables.
    let below = |f: &&Source| {
        let may = ["src/cli/", "src/main.rs", "examples/"];
        !may.iter().any(|path| f.path.starts_with(path)) && !f.path.ends_with("build.rs")
    };
    for file in tree.rust().filter(below) {
        for (line, name) in file.names() {
            if ["env::var", "env::args", "env::set_var"].iter().any(|part| name.contains(part)) {
                faults.push(at(
                    file,
                    line,
                    format!("`{name}`: the environment is read in src/cli only; take an argument"),
                ));
            }
        }
        for what in ["println!", "eprintln!", "print!", "eprint!"] {
            for (line, _) in lines_with(file.shipped(), what) {
                faults.push(at(
                    file,
                    line,
                    format!("`{what}`: only src/cli prints; return it or give a notice"),
                ));
            }
        }
    }
    faults
}

fn no_globals(tree: &Tree) -> Vec<String> {
    let changing = ["mut ", "Atomic", "Mutex", "RwLock", "OnceLock", "LazyLock", "Cell<"];
    let mut faults = Vec::new();
    // Exceptions: the command keeps its Ctrl-C flag in a global, and the test suite and the fuzzers
    // cache costly data; a signal handler and the callbacks of a fake driver have nothing else than
    // globals; a compiler that is not thread-safe has one lock per process.
    let may = [
        "src/cli/",
        "src/gguf/fault.rs",
        "backends/conformance/",
        "backends/hip/src/compiler.rs",
        "backends/fakes/src/executor.rs",
        "fuzz/",
    ];
    for file in tree.rust().filter(|f| !may.iter().any(|folder| f.path.starts_with(folder))) {
        for (line, text) in lines_with(file.shipped(), "static") {
            let declares = text.trim_start().trim_start_matches("pub ").starts_with("static ");
            if declares && changing.iter().any(|word| text.contains(word)) {
                faults.push(at(file, line, "a mutable global: make it a field and pass it"));
            }
        }
        for (line, _) in lines_with(file.shipped(), "thread_local!") {
            faults.push(at(file, line, "a thread-local global: make it a field and pass it"));
        }
    }
    faults
}

fn file_length(tree: &Tree) -> Vec<String> {
    let long = |file: &&Source| {
        file.text.lines().count() > MAX_LINES && LONG.iter().all(|(path, _)| *path != file.path)
    };
    let fault = |file: &Source| {
        let n = file.text.lines().count();
        at(
            file,
            n,
            format!(
                "{n} lines, at most {MAX_LINES}: split it by subject, or list it in LONG if it is a table"
            ),
        )
    };
    tree.rust().filter(long).map(fault).collect()
}

/// The text between `open` and the next `close`.
fn table<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
    let Some(start) = text.find(open) else { return "" };
    let body = &text[start + open.len()..];
    &body[..body.find(close).unwrap_or(body.len())]
}

const OPS: &str = "backends/hal/src/op/mod.rs";
const FORMATS: &str = "backends/hal/src/format/mod.rs";

fn ops_have_one_name(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let names = table(tree.text(OPS), "\nops!(", ");");
    let plain = |text: &str| text.to_lowercase().replace('_', "");
    for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let declared = format!("\n    {name} {{");
        if !tree.below("backends/hal/src/op/").any(|f| f.text.contains(&declared)) {
            faults.push(format!("{OPS}: `{name}` is declared by no `op!` in backends/hal/src/op/"));
        }
        let function = |line: &str| {
            let name_of = line.trim_start().split("fn ").nth(1).unwrap_or_default();
            plain(name_of.split(['(', '<']).next().unwrap_or_default()) == plain(name)
        };
        let mut reference = tree.below("backends/cpu/src/reference/");
        let handed_off = ["Post", "Merge"].contains(&name);
        if !handed_off && !reference.any(|f| f.code().lines().any(function)) {
            faults.push(format!("{OPS}: `{name}` has no function of its name in backends/cpu/src/reference/: write the oracle first"));
        }
        // The two ends of a hand-off are tested together.
        let subject = if handed_off { "HandOff" } else { name };
        let case = format!("\"{subject}/");
        let named = |f: &Source| f.text.contains(&case);
        if !tree.below("backends/conformance/src/").any(named) {
            faults.push(format!(
                "{OPS}: `{name}` has no case named `{subject}/..` in backends/conformance/src/cases/"
            ));
        }
    }
    if names.is_empty() {
        faults.push(format!("{OPS}: no `ops!` table, or tests/tidy/rules.rs cannot read it"));
    }
    faults
}

/// Name and module of the formats that weights are stored in.
fn formats(tree: &Tree) -> Vec<(String, String)> {
    let weights = |line: &str| {
        let (name, rest) = line.trim().split_once("=>")?;
        let module = rest.split(',').next()?.trim();
        let stored = rest.contains("Some(") && !line.trim().starts_with("//");
        stored.then(|| (name.trim().to_owned(), module.to_owned()))
    };
    table(tree.text(FORMATS), "\nformats! {", "\n}").lines().filter_map(weights).collect()
}

fn formats_have_one_name(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let formats = formats(tree);
    if formats.is_empty() {
        faults
            .push(format!("{FORMATS}: no `formats!` table, or tests/tidy/rules.rs cannot read it"));
    }
    let simd = "backends/simd/src/";
    let folder = |f: &Source| {
        let rest = f.path.strip_prefix(simd)?;
        rest.split_once('/').map(|(level, _)| format!("{simd}{level}/"))
    };
    let levels: BTreeSet<String> = tree.files.iter().filter_map(folder).collect();
    for (name, module) in &formats {
        let file = format!("backends/hal/src/format/{module}.rs");
        if !tree.has(&file) {
            faults.push(format!(
                "{FORMATS}: `{name}` has no {file}: put blocks, scales and rounding in it"
            ));
        }
        let file = format!("kernels-cuda/formats/{}.cuh", name.to_lowercase());
        if !tree.has(&file) {
            faults.push(format!("{FORMATS}: `{name}` has no {file}: CUDA and HIP include it"));
        }
        for level in &levels {
            let arm = format!("Format::{name}");
            if !tree.below(level).any(|f| lines_with(f.code(), &arm).next().is_some()) {
                faults.push(format!("{level}: `{arm}` has no kernel: write one, or give its arm the plain one with a comment that says why"));
            }
        }
    }
    let listed: BTreeSet<String> = (tree.text("docs/formats.md").lines())
        .filter_map(|line| Some(line.strip_prefix("| ")?.split_once(" |")?.0.to_owned()))
        .filter(|cell| {
            cell.starts_with(['F', 'B', 'Q', 'I', 'M']) && cell.contains(char::is_numeric)
        })
        .collect();
    let known: BTreeSet<String> = formats.into_iter().map(|(name, _)| name).collect();
    for name in known.symmetric_difference(&listed) {
        faults.push(format!("docs/formats.md: format `{name}` is in only one of this page's table and the `formats!` table"));
    }
    faults
}

/// Vendor-specific words, which belong in a dialect file.
const VENDORS_WORDS: &[&str] =
    &["__CUDA", "__HIP", "__AMD", "__shfl", "__syncthreads", "threadIdx", "blockIdx", "atomicAdd"];

/// CUDA and HIP share the kernel sources, and `kernels-cuda/VARIANTS` lists files that exist.
fn kernel_sources_are_shared(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    let variants = "kernels-cuda/VARIANTS";
    let listed: BTreeSet<&str> = (tree.text(variants).lines())
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let kernels = |f: &&Source| f.path.ends_with(".cu") || f.path.ends_with(".cuh");
    let mut there = BTreeSet::new();
    for file in tree.below("kernels-cuda/").filter(kernels) {
        let name = file.path.trim_start_matches("kernels-cuda/").strip_suffix(".cu");
        there.extend(name);
        for word in VENDORS_WORDS {
            for (i, _) in file.text.lines().enumerate().filter(|(_, line)| line.contains(word)) {
                faults.push(at(
                    file,
                    i + 1,
                    format!("`{word}` is one vendor's: give it a name in every dialect.h"),
                ));
            }
        }
    }
    for name in listed.difference(&there) {
        faults.push(format!("{variants}: there is no file `{name}.cu`"));
    }
    faults
}

fn unsafe_is_listed(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.rust() {
        let listed = UNSAFE.iter().any(|(path, _)| file.path.starts_with(path));
        let text: Vec<&str> = file.text.lines().collect();
        for (line, code) in lines_with(file.code(), "unsafe") {
            if !listed {
                faults.push(at(file, line, "`unsafe` outside of the files in UNSAFE: find a safe way, or list the file with its reason"));
            } else if !is_type(code) && !is_justified(&text, line - 1) {
                faults.push(at(
                    file,
                    line,
                    "no `// SAFETY:` directly above: say which requirement holds and what ensures it",
                ));
            }
        }
    }
    faults
}

/// Whether `unsafe` is part of a function's declaration or type. Only calls need a justification.
fn is_type(code: &str) -> bool {
    code.contains("unsafe fn") || (code.contains("unsafe extern") && code.contains("fn("))
}

/// Whether a `// SAFETY:` comment stands above the statement around `line`, or inside it above
/// `line`.
fn is_justified(text: &[&str], line: usize) -> bool {
    for above in text[..line].iter().rev().take(12).map(|line| line.trim()) {
        if above.starts_with("// SAFETY:") {
            return true;
        }
        if !above.starts_with("//") && (above.is_empty() || above.ends_with([';', '}'])) {
            return false;
        }
    }
    false
}

fn nothing_unfinished(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in tree.rust() {
        for what in ["todo!", "unimplemented!", "dbg!"] {
            for (line, _) in lines_with(file.code(), what) {
                let advice = "implement it, or return `Plan::No` with a reason earlier";
                faults.push(at(file, line, format!("`{what}`: {advice}")));
            }
        }
    }
    faults
}

/// Names from a developer's machine. `concat!` keeps them out of this file.
const DEVELOPER_NAMES: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/.lib", "rary"),
    concat!("/tmp/", "COMMON"),
    concat!("/ro", "ot/"),
];

fn no_developer_names(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for file in &tree.files {
        for word in DEVELOPER_NAMES {
            for (i, _) in file.text.lines().enumerate().filter(|(_, line)| line.contains(word)) {
                faults.push(at(
                    file,
                    i + 1,
                    format!("`{word}` exists on only one machine: remove it"),
                ));
            }
        }
        let data = concat!("../sha", "red");
        if !file.path.contains("tests") && file.text.contains(data) {
            faults.push(at(file, 1, format!("`{data}`: only tests may read files outside of the repository, and they skip if the files do not exist")));
        }
    }
    faults
}

fn tests_are_run(tree: &Tree) -> Vec<String> {
    let main = tree.text("tests/main.rs");
    let manifest = tree.text("Cargo.toml");
    let mut faults = Vec::new();
    for file in tree.below("tests/") {
        let rest = file.path.trim_start_matches("tests/");
        let name = rest.strip_suffix("/mod.rs").or(rest.strip_suffix(".rs")).unwrap_or_default();
        let subject = !name.is_empty() && !name.contains('/') && name != "main";
        let of_main = main.lines().any(|line| line == format!("mod {name};"));
        let own_binary = manifest.contains(&format!("path = \"{}\"", file.path));
        if subject && !of_main && !own_binary {
            faults.push(at(file, 1, format!("never run: add `mod {name};` to tests/main.rs")));
        }
    }
    faults
}

/// Reports files in the lists of exceptions that do not exist.
pub(crate) fn lists_are_current(tree: &Tree) -> Vec<String> {
    let gone = |(path, _): &&(&str, &str)| !tree.has(path);
    let fault = |(path, why): &(&str, &str)| {
        format!("tests/tidy/lists.rs: `{path}` ({why}) no longer exists: remove it from the list")
    };
    LONG.iter().chain(UNSAFE).chain(LARGE).filter(gone).map(fault).collect()
}
