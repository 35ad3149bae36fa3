//! Weights on disk: the words of a model whose weights are partly on disk are those of the same
//! model in memory, to the bit, whatever the budget; and a file that fails is an error.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::Bytes;
use hal::format::Format;
use tempfile::NamedTempFile;
use thermocline::engine::{
    Engine, EngineOptions, Error, LogitsRequest, NeuronReads, PagingOptions,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::synthetic::Spec;

use crate::placement_is_invisible::{cpu_device, ignore_notices};
use crate::support::Tiny;

/// A file with these bytes that is removed at the end.
fn temp_file(bytes: &[u8]) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    file
}

fn open(path: &Path) -> Arc<Model> {
    let file = File::open(path).unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

fn load(model: &Arc<Model>, budget: Option<Bytes>) -> Result<Engine, Error> {
    let paging =
        budget.map(|budget| PagingOptions { budget, depth: 3, neurons: NeuronReads::Layer });
    let n_ctx = model.positions.as_ref().map_or(128, |table| table.n_positions().min(128));
    let options = EngineOptions { n_ctx, n_ubatch: 32, paging, ..EngineOptions::default() };
    let devices = vec![cpu_device(2)];
    Engine::load(Arc::clone(model), devices, options, None, ignore_notices(), &|_, _| {})
}

/// The logits of a prompt of several micro-batches and of single tokens after it.
fn logits(engine: &mut Engine) -> Vec<Vec<f32>> {
    let n_vocab = engine.model().n_vocab();
    let n = 57.min(engine.max_tokens());
    let ids: Vec<u32> = (0..n).map(|i| (i * i * 7 + 3 * i + 1) as u32 % n_vocab as u32).collect();
    let (mut all, never) = (Vec::new(), AtomicBool::new(false));
    let mut sequence = engine.new_sequence();
    let (prompt, rest) = ids.split_at(n * 4 / 5);
    for part in [prompt].into_iter().chain(rest.chunks(1)) {
        engine
            .feed(&mut sequence, part, LogitsRequest::All, &never, &mut |_, row| {
                all.push(row.to_vec());
            })
            .unwrap();
    }
    all
}

/// Runs a model with all weights in memory and with several budgets, from the smallest possible
/// one. Returns the number of units that were not in memory when they were needed.
fn check(name: &str, model: &Arc<Model>) -> u64 {
    let mut whole = load(model, None).unwrap();
    let expected = logits(&mut whole);
    drop(whole);
    let mut budget = Bytes(1);
    let mut smallest = loop {
        match load(model, Some(budget)) {
            Ok(engine) => break engine,
            Err(Error::Store(store::Error::Capacity { needed, capacity })) => {
                assert!(needed > capacity, "{name}");
                budget += needed - capacity;
            }
            Err(error) => panic!("{name}: {error}"),
        }
    };
    let tiers = smallest.tiers().unwrap();
    assert!(smallest.devices()[0].ledger().used() <= budget, "{name}");
    assert!(logits(&mut smallest) == expected, "{name} with the smallest budget");
    let misses = smallest.take_stats().unwrap().disk.misses;
    let rest = tiers.on_disk();
    for eighths in [1, 4, 7, 8] {
        let budget = budget + Bytes(rest.0 * eighths / 8 + 4096);
        let mut engine = load(model, Some(budget)).unwrap();
        assert!(logits(&mut engine) == expected, "{name} with {budget}");
    }
    misses
}

#[test]
fn any_budget_gives_the_bits_of_a_model_in_memory() {
    let tiny = Tiny { n_layer: 6, n_embd: 128, n_ff: 640, format: Format::Q8_0, ..Tiny::default() };
    for (name, tiny) in [
        ("silu.gguf", Tiny { activation: "silu", ..tiny.clone() }),
        ("tied.gguf", Tiny { activation: "silu", tied: true, format: Format::F16, ..tiny.clone() }),
        ("relu.gguf", tiny.clone()),
        ("relu.pwri", Tiny { pwri: true, rank: 32, format: Format::Q4_0, ..tiny }),
    ] {
        let file = temp_file(&tiny.bytes());
        let misses = check(name, &open(file.path()));
        assert!(misses > 50, "{name}: {misses}");
    }
}

#[test]
fn experts_on_disk_give_the_bits_of_experts_in_memory() {
    for spec in ["256x4x256x4/2*16/2:Q4_0:silu", "128x3x96x4/2*8/3:Q8_0:relu"] {
        let mut parsed = Spec::parse(spec).unwrap();
        parsed.n_vocab = 512;
        let file = temp_file(b"");
        parsed.write(file.path(), &mut |_, _| true).unwrap();
        let misses = check(spec, &open(file.path()));
        assert!(misses > 20, "{spec}: {misses}");
    }
}

#[test]
fn every_family_on_disk_has_the_bits_of_the_family_in_memory() {
    for (name, model) in crate::families::models() {
        check(&name, &model);
    }
    let file = temp_file(&crate::families::qwen4exp::bytes());
    check("qwen4exp", &open(file.path()));
}

#[test]
fn a_file_that_is_shortened_or_changed_is_an_error() {
    let tiny = Tiny { n_layer: 6, n_embd: 128, n_ff: 640, activation: "silu", ..Tiny::default() };
    let bytes = tiny.bytes();
    for shortened in [true, false] {
        let file = temp_file(&bytes);
        let model = open(file.path());
        let used = load(&model, None).unwrap().devices()[0].ledger().used();
        let budget = used + Bytes(bytes.len() as u64 * 2 / 3);
        let mut engine = load(&model, Some(budget)).unwrap();
        assert!(engine.tiers().unwrap().on_disk() > Bytes(0));
        let opened = fs::OpenOptions::new().write(true).open(file.path()).unwrap();
        if shortened {
            // The header stays: it is mapped.
            opened.set_len(bytes.len() as u64 / 2).unwrap();
        } else {
            opened.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let mut sequence = engine.new_sequence();
        let never = AtomicBool::new(false);
        let fed =
            engine.feed(&mut sequence, &[1, 2, 3], LogitsRequest::Last, &never, &mut |_, _| {});
        let error = fed.unwrap_err().to_string();
        let expected = if shortened { "was " } else { "was changed while in use" };
        assert!(error.contains(expected), "{error}");
        if !shortened {
            // The header was read from a mapping before the change, and weights would be after it.
            let error = load(&model, Some(budget)).err().unwrap().to_string();
            assert!(error.contains("was changed while in use"), "{error}");
        }
    }
}

#[test]
fn the_command_keeps_to_a_budget_and_refuses_one_that_is_too_small() {
    let file = temp_file(thermocline::embedded::BYTES);
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["run", "--device", "none", "-m", file.path().to_str().unwrap()]);
        command.args([
            "-p",
            "Once",
            "-n",
            "12",
            "--temp",
            "0",
            "--repack-cache",
            "off",
            "-c",
            "96",
        ]);
        command.args(["-ub", "32", "--no-auto-profile"]);
        let output = command.args(more).stdin(std::process::Stdio::null()).output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), notes)
    };
    let (_, expected, notes) = run(&["--ram-budget", "1GiB"]);
    assert!(!notes.contains("disk"), "{notes}");
    let (code, text, notes) = run(&["--ram-budget", "74MiB"]);
    assert_eq!((code, text), (Some(0), expected), "{notes}");
    for part in
        ["of weights stay on disk, because only 74.00 MiB", "--ram-budget sets", "read per token"]
    {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let (code, text, notes) = run(&["--ram-budget", "65MiB"]);
    assert_eq!((code, text.as_str()), (Some(4), ""), "{notes}");
    assert!(notes.contains("65.00 MiB"), "{notes}");
    let (code, _, notes) = run(&["--ram-budget", "66MiB", "--no-mmap"]);
    assert_eq!(code, Some(4), "{notes}");
}
