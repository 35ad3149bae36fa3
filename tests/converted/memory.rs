//! Peak memory of loading, as Linux counts it, in a separate process.
#![cfg(target_os = "linux")]

use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;
use std::{env, fs};

use hal::format::Format;
use thermocline::converted::{self, RepackFile};
use thermocline::devices;
use thermocline::engine::to_repack;

use super::{logits, model_at, options};
use crate::support::Tiny;

const FOLDER: &str = "THERMOCLINE_TEST_MEMORY";

/// A field of /proc/self/status in bytes.
fn status(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap() * 1024
}

/// The part of the test that runs in a child process. Without the parent's variable it does
/// nothing.
#[test]
fn load_in_a_child_process() {
    #[allow(clippy::disallowed_methods)]
    // The parent test passes the folder in this variable.
    let Some(folder) = env::var_os(FOLDER).map(std::path::PathBuf::from) else { return };
    let model = model_at(&folder.join("model.gguf"));
    let cpu = devices::cpu(Some(2));
    let weights = to_repack(&model, &options(), &cpu);
    let before = status("VmRSS:");
    let mut options = options();
    if folder.join("kept").exists() {
        let path = converted::path(&folder, &model.file, &weights).unwrap();
        if !path.exists() {
            converted::write(&path, &model.file, &weights, &cpu, &|_, _| ControlFlow::Continue(()))
                .unwrap();
        }
        options.converted = Some(RepackFile::open(&path, &model.file, &weights).unwrap());
    }
    logits(&Arc::clone(&model), options);
    let replaced: u64 = weights.iter().map(|weight| weight.source_size().0).sum();
    let used = status("VmHWM:") - before;
    let final_size = model.file.size_bytes() - replaced + converted::size(&weights).0;
    // The KV cache and scratch memory are small here. The rest of the allowance is for the
    // allocator and the test itself.
    let most = final_size + final_size / 10 + (6 << 20);
    assert!(replaced > most - final_size, "the limit would not detect a second copy");
    assert!(used > replaced, "{used} bytes: nothing was loaded");
    assert!(used < most, "{used} bytes for {final_size} of weights, {replaced} of them replaced");
}

#[test]
fn repacking_holds_no_second_copy() {
    let folder = tempfile::tempdir().unwrap();
    let tiny =
        Tiny { n_embd: 256, n_ff: 24 << 10, n_layer: 5, format: Format::F16, ..Tiny::default() };
    fs::write(folder.path().join("model.gguf"), tiny.bytes()).unwrap();
    let load = |what: &str| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["--exact", "converted::memory::load_in_a_child_process"]);
        let output = command.env(FOLDER, folder.path()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{what}: {text}");
    };
    load("packed in memory");
    fs::write(folder.path().join("kept"), []).unwrap();
    load("written into a file");
    load("mapped from the file");
}
