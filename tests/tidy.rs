//! Enforces the conventions of ARCHITECTURE.md: a rule is a function from the repository's text to
//! a list of faults.
//!
//! Not here: what clippy and the compiler check (lints, function length, documentation, matched
//! arms).

mod bytes;
mod documents;
mod lists;
mod module_order;
mod rules;
mod tree;
mod words;

use std::path::Path;

use lists::{LARGE, LONG, UNSAFE};
use rules::{RULES, lists_are_current};
use tree::{Source, Tree};

#[test]
fn the_house_is_tidy() {
    let tree = Tree::read(Path::new(env!("CARGO_MANIFEST_DIR")));
    assert!(tree.rust().count() > 50, "the repository was not found");
    let mut faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    faults.extend(lists_are_current(&tree));
    assert!(faults.is_empty(), "{} faults\n{}\n", faults.len(), faults.join("\n"));
}

#[test]
fn exceptions_have_reasons() {
    assert!(LONG.iter().chain(UNSAFE).chain(LARGE).all(|(_, reason)| reason.len() > 10));
}

/// Some rule must complain about `files` in a line that holds `says`.
#[track_caller]
fn bad(files: &[(&str, &str)], says: &str) {
    let tree = Tree::of(files);
    let faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    assert!(faults.iter().any(|f| f.contains(says)), "no fault says {says:?}: {faults:#?}");
}

/// No rule may complain about the one file here.
#[track_caller]
fn good(path: &str, text: &str) {
    let tree = Tree::of(&[(path, text)]);
    let faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    let about: Vec<&String> = faults.iter().filter(|f| f.starts_with(path)).collect();
    assert!(about.is_empty(), "{about:#?}");
}

#[test]
fn devices_and_slow_crates_stay_where_they_belong() {
    bad(&[("src/placement/plan.rs", "use hal::{Bytes, Device};")], "sees `hal::Device`");
    bad(&[("src/text/chat/a.rs", "fn f() { hal::Queue::new(); }")], "sees `hal::Queue`");
    bad(
        &[("src/engine/Cargo.toml", "[dependencies]\nfaer.workspace = true")],
        "src/engine/Cargo.toml:2: depends on `faer`",
    );
    good("src/engine/a.rs", "use hal::Device;");
    good("src/model/a.rs", "//! As `hal::Device` wants it.\nuse hal::HostRows;");
    good("src/gguf/a.rs", "#[cfg(test)]\nmod tests {\n    use hal::Device;\n}");
    good("src/learn/Cargo.toml", "[dependencies]\nfaer.workspace = true");
}

#[test]
fn modules_of_the_engine_import_downwards() {
    let head =
        ("src/engine/mod.rs", "//! Lowest first:\n//! - `load`: tensors\n//! - `step`: steps");
    let up = "`load` imports `step`, which is above it";
    bad(&[head, ("src/engine/load.rs", "use crate::step::StepStats;")], up);
    bad(&[head, ("src/engine/load/a.rs", "use super::super::step::StepStats;")], up);
    bad(&[head, ("src/engine/load/mod.rs", "fn f() {\n    super::step::g();\n}")], "load/mod.rs:2");
    bad(&[head, ("src/engine/step.rs", "use crate::Loaded;")], "import it from its module");
    bad(&[head, ("src/engine/run.rs", "")], "`run` is not in the order");
    bad(&[head, ("src/engine/load.rs", "")], "module `step` does not exist");
    bad(&[("src/engine/size/a.rs", "use hal::{Device, Tensor};")], "sees `hal::Tensor`");
    let down = "use super::lane::Lane;\nuse crate::load::Loaded;\n#[cfg(test)]\nmod tests {\n    use crate::run::Engine;\n}";
    let tree = Tree::of(&[head, ("src/engine/load/a.rs", ""), ("src/engine/step/a.rs", down)]);
    assert_eq!(module_order::engine_imports_go_down(&tree), [""; 0]);
}

#[test]
fn backends_stay_below() {
    bad(
        &[("src/engine/a.rs", "use cpu::CpuBackend;")],
        "only src/runtime/devices.rs names backends",
    );
    bad(&[("src/cli/a.rs", "#[cfg(feature = \"cuda\")]\nfn f() {}")], "asks for features");
    bad(&[("backends/cpu/src/a.rs", "use thermocline::model::Model;")], "never the engine");
    bad(&[("backends/hal/src/a.rs", "use std::{fmt, fs::File};")], "hal does no input");
    let cargo = "[dependencies]\ncudarc.workspace = true\n";
    bad(&[("backends/hal/Cargo.toml", cargo)], "hal depends on `cudarc`");
    bad(&[("backends/cpu/Cargo.toml", "[dependencies]\nthermocline = \"1\"")], "turn it round");
    bad(&[("backends/cpu/Cargo.toml", "[dependencies]\nmodel.workspace = true")], "turn it round");
    good("src/runtime/devices.rs", "use cpu::CpuBackend;");
    good("src/cli/a.rs", "use crate::devices::{cpu, BACKENDS};\nfn f() { cpu(None); }");
    good(
        "backends/hal/Cargo.toml",
        "[package]\nname = \"x\"\n[dependencies]\nhalf.workspace = true",
    );
}

#[test]
fn only_the_command_reads_the_environment_and_prints() {
    bad(&[("src/engine/a.rs", "fn f() { std::env::var(\"X\"); }")], "read in src/cli only");
    bad(&[("backends/cpu/src/a.rs", "fn f() { eprintln!(\"x\"); }")], "only src/cli prints");
    bad(&[("src/model/a.rs", "static N: AtomicUsize = AtomicUsize::new(0);")], "a global");
    good("src/cli/a.rs", "fn f() { println!(\"{:?}\", std::env::var(\"X\")); }");
    good("src/model/a.rs", "static NAMES: &[&str] = &[\"println!\"]; // Mutex");
}

#[test]
fn files_are_short() {
    bad(&[("src/gguf/a.rs", &"\n".repeat(501))], "501 lines, at most 500");
    good("src/gguf/a.rs", &"\n".repeat(500));
}

#[test]
fn a_name_is_one_name_everywhere() {
    let ops = ("backends/hal/src/op/mod.rs", "\nops!(\n    MatMul, Post\n);");
    bad(&[ops], "`MatMul` is declared by no `op!`");
    bad(&[ops], "`MatMul` has no function of its name");
    bad(&[ops], "`Post` has no case named `HandOff/..`");
    let op = ("backends/hal/src/op/mat_mul.rs", "op! {\n    MatMul {\n        read w,");
    let tree = [ops, op, ("backends/cpu/src/reference/a.rs", "pub(super) fn matmul(")];
    let faults = RULES.iter().flat_map(|rule| rule(&Tree::of(&tree))).collect::<Vec<_>>();
    assert!(!faults.iter().any(|f| f.contains("`MatMul` is decl") || f.contains("no function")));

    let table = "\nformats! {\n    /// Four bits.\n    Q4_0 => q4_0, 32, 18, Some(2);\n    U32 => ids, 1, 4, None;\n}";
    let formats = ("backends/hal/src/format/mod.rs", table);
    bad(&[formats], "`Q4_0` has no backends/hal/src/format/q4_0.rs");
    bad(&[formats], "`Q4_0` has no kernels-cuda/formats/q4_0.cuh");
    bad(&[formats], "format `Q4_0` is in only one");
    bad(&[formats, ("backends/cpu/src/simd/avx2/mod.rs", "")], "`Format::Q4_0` has no kernel");
    bad(
        &[formats, ("docs/formats.md", "| Q4_0 | yes |\n| Q3_K | no |")],
        "format `Q3_K` is in only",
    );
}

#[test]
fn kernels_are_one_text() {
    bad(&[("kernels-cuda/add.cu", "x[threadIdx.x] = 0;")], "`threadIdx` is one vendor's");
    bad(&[("kernels-cuda/add.cu", "")], "`add` is a line or a file");
    bad(&[("kernels-cuda/UNITS", "add plain\n# gone weight")], "`add` is a line or a file");
    good("kernels-cuda/dialect.h", "threadIdx");
}

#[test]
fn unsafe_is_rare_and_says_why() {
    bad(&[("src/model/a.rs", "fn f() { unsafe { g() } }")], "outside of the files in UNSAFE");
    bad(
        &[("src/gguf/map.rs", "fn f() {\n    unsafe { g() }\n}")],
        "src/gguf/map.rs:2: no `// SAFETY:`",
    );
    bad(&[("src/gguf/map.rs", "// SAFETY: old.\nlet a = 1;\nunsafe { g() }")], "no `// SAFETY:`");
    good(
        "src/gguf/map.rs",
        "fn f() {\n    // SAFETY: g\n    // is kind.\n    let x =\n        unsafe { g() };\n}",
    );
    good("src/gguf/a.rs", "//! Nothing unsafe here.\n#![forbid(unsafe_code)]");
}

#[test]
fn nothing_is_left_lying_about() {
    bad(&[("src/gguf/a.rs", "fn f() { todo!() }")], "`todo!`: build it");
    bad(&[("docs/a.md", concat!("see /wo", "rk/notes"))], "outside of one machine");
    bad(&[("src/gguf/a.rs", concat!("\"../sha", "red/x\""))], "only tests look outside");
    bad(&[("docs/a.md", "see `src/gone.rs`.")], "`src/gone.rs` is not there");
    bad(&[("src/gguf/a.rs", "include_str!(\"../assets/gone.json\")")], "gone.json` is not there");
    bad(&[("tests/lost.rs", ""), ("tests/main.rs", "mod other;")], "add `mod lost;`");
    good("src/gguf/a.rs", "// todo!\nconst A: &str = \"dbg!\";");
}

#[test]
fn the_repository_is_small() {
    bad(&[("assets/a.txt", &"a".repeat(1_000_001))], "assets/a.txt:1: 1000001 bytes, at most");
    good("assets/a.txt", &"a".repeat(1_000_000));
    let parts: Vec<(String, String)> =
        (0..27).map(|i| (format!("assets/{i}"), "a".repeat(999_999))).collect();
    let files: Vec<(&str, &str)> = parts.iter().map(|(path, text)| (&**path, &**text)).collect();
    bad(&files, "a checkout has 26999973 bytes");
}

#[test]
fn scripts_are_listed_and_named_alike() {
    bad(&[("scripts/make_it.py", "#!/usr/bin/env python3")], "without an extension");
    bad(&[("scripts/fuzz", "#!/bin/sh")], "called `verb_object`");
    bad(&[("scripts/it.sh", "echo")], "neither a program");
    bad(&[("scripts/make_it", "#!/bin/sh"), ("scripts/README.md", "make_it")], "not in the tables");
    let faults = bytes::scripts_have_one_habit(&Tree::of(&[
        ("scripts/README.md", "| `make_it` | it |\n| `it.py` | it |"),
        ("scripts/make_it", "#!/bin/sh"),
        ("scripts/it.py", ""),
    ]));
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn documents_are_there() {
    bad(&[("CHANGELOG.md", "# Changelog")], "no `## [Unreleased]`");
    let readme = ("README.md", "    cargo test --workspace");
    bad(&[readme, (".ci/run", "cargo test")], "no `cargo test --workspace`");
    bad(&[("README.md", "# It")], "no `cargo test` command");
}

#[test]
fn words_are_plain() {
    bad(&[("docs/a.md", "It\nis no\nlist.")], "docs/a.md:2: \"is no\": write");
    bad(&[("src/gguf/a.rs", "// Rows that nobody\n// reads.")], "src/gguf/a.rs:1: \"nobody\"");
    bad(&[("src/gguf/a.rs", "/// Of so\n    /// many.\nfn f() {}")], "\"so many\"");
    bad(&[("src/gguf/a.rs", "f(\"it is \\\n    made Anew\");")], "src/gguf/a.rs:2: \"anew\"");
    bad(&[("shaders/a.wgsl", "x = 1; // learnt")], "\"learnt\"");
    bad(&[("scripts/a", "# The command line cannot be meant.")], "write `invalid`");
    good("docs/a.md", "There is no GPU. It is no longer so. How many tokens? Nobodys, is not.");
    good("src/gguf/a.rs", "fn f(nobody: bool, told_at: u8) { format!(\"{told:?}\") } // fine");
    good("assets/calibration.txt", "Nobody.");
}

#[test]
fn code_and_words_are_separated() {
    let text =
        "let a = \"x \\\" // y\"; // b\nlet c = 'd'; let e: &'f str = r#\"g\"h\"#; /* i\n */ j";
    let source = Source::new("src/a.rs", text);
    let words: Vec<&str> = source.code().split_whitespace().collect();
    let expected =
        ["let", "a", "=", ";", "let", "c", "=", ";", "let", "e:", "&'f", "str", "=", ";", "j"];
    assert_eq!(words, expected);
    assert_eq!(source.code().matches('\n').count(), 2);
}
