//! Enforces the conventions of ARCHITECTURE.md: a rule is a function from the repository's text to
//! a list of faults.
//!
//! Clippy and the compiler check the other conventions (lints, function length, documentation,
//! matched arms).

mod bytes;
mod documents;
mod installation;
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
fn the_repository_follows_the_rules() {
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

/// Fails unless a rule reports a fault of `files` that contains `says`.
#[track_caller]
fn expect_fault(files: &[(&str, &str)], says: &str) {
    let tree = Tree::new(files);
    let faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    assert!(faults.iter().any(|f| f.contains(says)), "no fault says {says:?}: {faults:#?}");
}

/// Fails if a rule reports a fault of a file with this path and text.
#[track_caller]
fn expect_no_fault(path: &str, text: &str) {
    let tree = Tree::new(&[(path, text)]);
    let faults: Vec<String> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    let about: Vec<&String> = faults.iter().filter(|f| f.starts_with(path)).collect();
    assert!(about.is_empty(), "{about:#?}");
}

#[test]
fn device_crates_are_imported_only_where_allowed() {
    expect_fault(&[("src/placement/plan.rs", "use hal::{Bytes, Device};")], "uses `hal::Device`");
    expect_fault(&[("src/text/chat/a.rs", "fn f() { hal::Queue::new(); }")], "uses `hal::Queue`");
    expect_fault(
        &[("src/engine/Cargo.toml", "[dependencies]\nfaer.workspace = true")],
        "src/engine/Cargo.toml:2: depends on `faer`",
    );
    expect_no_fault("src/engine/a.rs", "use hal::Device;");
    expect_no_fault("src/model/a.rs", "//! As `hal::Device` wants it.\nuse hal::HostRows;");
    expect_no_fault("src/gguf/a.rs", "#[cfg(test)]\nmod tests {\n    use hal::Device;\n}");
    expect_no_fault("src/learn/Cargo.toml", "[dependencies]\nfaer.workspace = true");
}

#[test]
fn installing_needs_no_toolkit() {
    expect_fault(
        &[(
            "backends/hip/Cargo.toml",
            "[target.'cfg(unix)'.dependencies]\nhip-sys.workspace = true",
        )],
        "its build script wants ROCm",
    );
    expect_no_fault(
        "a/Cargo.toml",
        "[target.'cfg(unix)'.dev-dependencies]\nhip-sys.workspace = true",
    );
}

#[test]
fn engine_modules_import_downwards() {
    let head =
        ("src/engine/mod.rs", "//! Lowest first:\n//! - `load`: tensors\n//! - `step`: steps");
    let up = "`load` imports `step`, which is above it";
    expect_fault(&[head, ("src/engine/load.rs", "use crate::step::StepStats;")], up);
    expect_fault(&[head, ("src/engine/load/a.rs", "use super::super::step::StepStats;")], up);
    expect_fault(
        &[head, ("src/engine/load/mod.rs", "fn f() {\n    super::step::g();\n}")],
        "load/mod.rs:2",
    );
    expect_fault(
        &[head, ("src/engine/step.rs", "use crate::LoadedModel;")],
        "import it from its module",
    );
    expect_fault(&[head, ("src/engine/run.rs", "")], "`run` is not in the order");
    expect_fault(&[head, ("src/engine/load.rs", "")], "module `step` does not exist");
    expect_fault(&[("src/engine/size/a.rs", "use hal::{Device, Tensor};")], "uses `hal::Tensor`");
    let down = "use super::lane::Lane;\nuse crate::load::LoadedModel;\n#[cfg(test)]\nmod tests {\n    use crate::run::Engine;\n}";
    let tree = Tree::new(&[head, ("src/engine/load/a.rs", ""), ("src/engine/step/a.rs", down)]);
    assert_eq!(module_order::engine_imports_go_down(&tree), [""; 0]);
}

#[test]
fn backends_stay_below() {
    expect_fault(
        &[("src/engine/a.rs", "use cpu::CpuBackend;")],
        "only src/runtime/devices.rs names backends",
    );
    expect_fault(&[("src/cli/a.rs", "#[cfg(feature = \"cuda\")]\nfn f() {}")], "checks features");
    expect_fault(
        &[("backends/cpu/src/a.rs", "use thermocline::model::Model;")],
        "never the engine",
    );
    expect_fault(&[("backends/hal/src/a.rs", "use std::{fmt, fs::File};")], "hal does no input");
    let cargo = "[dependencies]\ncudarc.workspace = true\n";
    expect_fault(&[("backends/hal/Cargo.toml", cargo)], "hal depends on `cudarc`");
    expect_fault(
        &[("backends/cpu/Cargo.toml", "[dependencies]\nthermocline = \"1\"")],
        "reverse this",
    );
    expect_fault(
        &[("backends/cpu/Cargo.toml", "[dependencies]\nmodel.workspace = true")],
        "reverse this",
    );
    expect_no_fault("src/runtime/devices.rs", "use cpu::CpuBackend;");
    expect_no_fault("src/cli/a.rs", "use crate::devices::{cpu, BACKENDS};\nfn f() { cpu(None); }");
    expect_no_fault(
        "backends/hal/Cargo.toml",
        "[package]\nname = \"x\"\n[dependencies]\nhalf.workspace = true",
    );
}

#[test]
fn only_the_command_reads_the_environment_and_prints() {
    expect_fault(
        &[("src/engine/a.rs", "fn f() { std::env::var(\"X\"); }")],
        "read in src/cli only",
    );
    expect_fault(
        &[("backends/cpu/src/a.rs", "fn f() { eprintln!(\"x\"); }")],
        "only src/cli prints",
    );
    expect_fault(
        &[("src/model/a.rs", "static N: AtomicUsize = AtomicUsize::new(0);")],
        "a mutable global",
    );
    expect_no_fault("src/cli/a.rs", "fn f() { println!(\"{:?}\", std::env::var(\"X\")); }");
    expect_no_fault("src/model/a.rs", "static NAMES: &[&str] = &[\"println!\"]; // Mutex");
}

#[test]
fn files_are_short() {
    expect_fault(&[("src/gguf/a.rs", &"\n".repeat(501))], "501 lines, at most 500");
    expect_no_fault("src/gguf/a.rs", &"\n".repeat(500));
}

#[test]
fn ops_and_formats_have_one_name() {
    let ops = ("backends/hal/src/op/mod.rs", "\nops!(\n    MatMul, Post\n);");
    expect_fault(&[ops], "`MatMul` is declared by no `op!`");
    expect_fault(&[ops], "`MatMul` has no function of its name");
    expect_fault(&[ops], "`Post` has no case named `HandOff/..`");
    let op = ("backends/hal/src/op/mat_mul.rs", "op! {\n    MatMul {\n        read w,");
    let tree = [ops, op, ("backends/cpu/src/reference/a.rs", "pub(super) fn matmul(")];
    let faults = RULES.iter().flat_map(|rule| rule(&Tree::new(&tree))).collect::<Vec<_>>();
    assert!(!faults.iter().any(|f| f.contains("`MatMul` is decl") || f.contains("no function")));

    let table = "\nformats! {\n    /// Four bits.\n    Q4_0 => q4_0, 32, 18, Some(2);\n    U32 => ids, 1, 4, None;\n}";
    let formats = ("backends/hal/src/format/mod.rs", table);
    expect_fault(&[formats], "`Q4_0` has no backends/hal/src/format/q4_0.rs");
    expect_fault(&[formats], "`Q4_0` has no kernels-cuda/formats/q4_0.cuh");
    expect_fault(&[formats], "format `Q4_0` is in only one");
    expect_fault(&[formats, ("backends/simd/src/avx2/mod.rs", "")], "`Format::Q4_0` has no kernel");
    expect_fault(
        &[formats, ("docs/formats.md", "| Q4_0 | yes |\n| Q3_K | no |")],
        "format `Q3_K` is in only",
    );
}

#[test]
fn kernels_are_shared_by_both_vendors() {
    expect_fault(&[("kernels-cuda/add.cu", "x[threadIdx.x] = 0;")], "`threadIdx` is one vendor's");
    expect_fault(
        &[("kernels-cuda/VARIANTS", "add weight\n# gone weight")],
        "there is no file `add.cu`",
    );
    expect_no_fault("kernels-cuda/add.cu", "");
    expect_no_fault("kernels-cuda/dialect.h", "threadIdx");
}

#[test]
fn unsafe_code_is_listed_and_justified() {
    expect_fault(
        &[("src/model/a.rs", "fn f() { unsafe { g() } }")],
        "outside of the files in UNSAFE",
    );
    expect_fault(
        &[("src/gguf/map.rs", "fn f() {\n    unsafe { g() }\n}")],
        "src/gguf/map.rs:2: no `// SAFETY:`",
    );
    expect_fault(
        &[("src/gguf/map.rs", "// SAFETY: old.\nlet a = 1;\nunsafe { g() }")],
        "no `// SAFETY:`",
    );
    expect_no_fault(
        "src/gguf/map.rs",
        "fn f() {\n    // SAFETY: g\n    // is kind.\n    let x =\n        unsafe { g() };\n}",
    );
    expect_no_fault("src/gguf/a.rs", "//! Nothing unsafe here.\n#![forbid(unsafe_code)]");
}

#[test]
fn unfinished_and_stale_text_is_found() {
    expect_fault(&[("src/gguf/a.rs", "fn f() { todo!() }")], "`todo!`: implement it");
    expect_fault(&[("docs/a.md", concat!("see /wo", "rk/notes"))], "exists on only one machine");
    expect_fault(
        &[("src/gguf/a.rs", concat!("\"../sha", "red/x\""))],
        "only tests may read files outside",
    );
    expect_fault(&[("docs/a.md", "see `src/gone.rs`.")], "`src/gone.rs` does not exist");
    expect_fault(
        &[("src/gguf/a.rs", "include_str!(\"../assets/gone.json\")")],
        "gone.json` does not exist",
    );
    expect_fault(&[("tests/lost.rs", ""), ("tests/main.rs", "mod other;")], "add `mod lost;`");
    expect_no_fault("src/gguf/a.rs", "// todo!\nconst A: &str = \"dbg!\";");
}

#[test]
fn the_repository_is_small() {
    expect_fault(
        &[("assets/a.txt", &"a".repeat(1_000_001))],
        "assets/a.txt:1: 1000001 bytes, at most",
    );
    expect_no_fault("assets/a.txt", &"a".repeat(1_000_000));
    let sizes = (0..16).map(|i| (format!("assets/{i}"), 999_999)).collect();
    let faults = bytes::files_are_small(&Tree { sizes, ..Tree::default() });
    assert_eq!(faults, ["binary files have 15999984 bytes, at most 15000000"]);
    let parts: Vec<(String, String)> =
        (0..27).map(|i| (format!("assets/{i}"), "a".repeat(999_999))).collect();
    let files: Vec<(&str, &str)> = parts.iter().map(|(path, text)| (&**path, &**text)).collect();
    expect_fault(&files, "a checkout has 26999973 bytes");
}

#[test]
fn scripts_are_listed_and_named_alike() {
    expect_fault(&[("scripts/make_it.py", "#!/usr/bin/env python3")], "without an extension");
    expect_fault(&[("scripts/fuzz", "#!/bin/sh")], "called `verb_object`");
    expect_fault(&[("scripts/it.sh", "echo")], "neither a program");
    expect_fault(
        &[("scripts/make_it", "#!/bin/sh"), ("scripts/README.md", "make_it")],
        "not in the tables",
    );
    let faults = bytes::script_names_are_uniform(&Tree::new(&[
        ("scripts/README.md", "| `make_it` | it |\n| `it.py` | it |"),
        ("scripts/make_it", "#!/bin/sh"),
        ("scripts/it.py", ""),
    ]));
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn required_documents_exist() {
    expect_fault(&[("CHANGELOG.md", "# Changelog")], "no `## [Unreleased]`");
    let readme = ("README.md", "    cargo test --workspace");
    expect_fault(&[readme, (".ci/run", "cargo test")], "no `cargo test --workspace`");
    expect_fault(&[("README.md", "# It")], "no `cargo test` command");
}

#[test]
fn words_follow_the_glossary() {
    expect_fault(&[("docs/a.md", "It\nis no\nlist.")], "docs/a.md:2: \"is no\": write");
    expect_fault(
        &[("src/gguf/a.rs", "// Rows that nobody\n// reads.")],
        "src/gguf/a.rs:1: \"nobody\"",
    );
    expect_fault(&[("src/gguf/a.rs", "/// Of so\n    /// many.\nfn f() {}")], "\"so many\"");
    expect_fault(
        &[("src/gguf/a.rs", "f(\"it is \\\n    made Anew\");")],
        "src/gguf/a.rs:2: \"anew\"",
    );
    expect_fault(&[("shaders/a.wgsl", "x = 1; // learnt")], "\"learnt\"");
    expect_fault(&[("scripts/a", "# The command line cannot be meant.")], "write `invalid`");
    expect_no_fault(
        "docs/a.md",
        "There is no GPU. It is no longer so. How many tokens? Nobodys, is not.",
    );
    expect_no_fault(
        "src/gguf/a.rs",
        "fn f(nobody: bool, told_at: u8) { format!(\"{told:?}\") } // fine",
    );
    expect_no_fault("assets/calibration.txt", "Nobody.");
}

#[test]
fn code_and_comments_are_separated() {
    let text =
        "let a = \"x \\\" // y\"; // b\nlet c = 'd'; let e: &'f str = r#\"g\"h\"#; /* i\n */ j";
    let source = Source::new("src/a.rs", text);
    let words: Vec<&str> = source.code().split_whitespace().collect();
    let expected =
        ["let", "a", "=", ";", "let", "c", "=", ";", "let", "e:", "&'f", "str", "=", ";", "j"];
    assert_eq!(words, expected);
    assert_eq!(source.code().matches('\n').count(), 2);
}
