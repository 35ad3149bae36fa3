//! Generation with a full context.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thermocline::engine::{Engine, EngineOptions, Sequence};
use thermocline::generate::{Emit, EndReason, Generator, Report, Settings};
use thermocline::model::{Model, ModelOptions};
use thermocline::sample::{Sampler, SamplerConfig};
use thermocline::tokenizer::{TokenType, Tokenizer, Vocab};
use thermocline::{devices, embedded};

/// Continues `prompt` in a new sequence.
fn generate(generator: Generator<'_>, prompt: &[u32], emit: &mut Emit<'_>) -> Report {
    let mut sequence = generator.engine.new_sequence();
    generator.resume(&mut sequence, prompt, emit).unwrap()
}

/// Interrupts a generation after `n` pieces of text; returns how it ended and the number of context
/// shifts.
fn interrupted_after(engine: &mut Engine, tokenizer: &Tokenizer, n: usize) -> (EndReason, usize) {
    let options = Settings {
        n_predict: Some(60),
        context_shift: true,
        n_keep: 1,
        end_of_text: false,
        ..Settings::default()
    };
    let interrupt = AtomicBool::new(false);
    let mut n_emitted = 0;
    let mut emit = |_: &str| {
        n_emitted += 1;
        interrupt.store(n_emitted > n, Ordering::Relaxed);
        ControlFlow::Continue(())
    };
    let mut sampler = Sampler::new(&SamplerConfig::default(), tokenizer).unwrap();
    let prompt = [1, 5, 9, 12];
    let (settings, interrupt) = (&options, &interrupt);
    let generator = Generator { engine, tokenizer, sampler: &mut sampler, settings, interrupt };
    let report = generate(generator, &prompt, &mut emit);
    (report.ended, report.n_shifts)
}

fn built_in(n_ctx: usize) -> (Engine, Tokenizer) {
    built_in_with(n_ctx, |_| {})
}

fn built_in_with(n_ctx: usize, changes: impl Fn(&mut Vocab)) -> (Engine, Tokenizer) {
    let file = embedded::file().unwrap();
    let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
    changes(&mut vocab);
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
    let options = EngineOptions { n_ctx, n_ubatch: 8, ..EngineOptions::default() };
    let devices = vec![devices::cpu(Some(1))];
    let quiet = Arc::new(|_: &str| {});
    let engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
    (engine, tokenizer)
}

/// Six greedy tokens after `prompt`: in `sequence`, or in a new one.
fn greedy(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    sequence: Option<&mut Sequence>,
    prompt: &[u32],
) -> (String, Report) {
    let options = Settings { n_predict: Some(6), end_of_text: false, ..Settings::default() };
    let config = SamplerConfig { temp: 0.0, ..SamplerConfig::default() };
    let mut sampler = Sampler::new(&config, tokenizer).unwrap();
    let interrupt = AtomicBool::new(false);
    let mut text = String::new();
    let mut emit = |piece: &str| {
        text.push_str(piece);
        ControlFlow::Continue(())
    };
    let (settings, interrupt) = (&options, &interrupt);
    let generator = Generator { engine, tokenizer, sampler: &mut sampler, settings, interrupt };
    let report = match sequence {
        Some(sequence) => generator.resume(sequence, prompt, &mut emit).unwrap(),
        None => generate(generator, prompt, &mut emit),
    };
    (text, report)
}

/// The file is the built-in model with a sparse tail: 1 TiB in all.
#[test]
fn a_file_larger_than_memory_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    std::fs::write(&path, embedded::BYTES).unwrap();
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["run", "--device", "none", "-m", path.to_str().unwrap()]);
        command.args(["-p", "Once", "-n", "4", "--temp", "0", "--repack-cache", "off"]);
        let output = command.args(more).stdin(std::process::Stdio::null()).output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), notes)
    };
    let (_, small, notes) = run(&[]);
    assert!(!notes.contains("of memory"), "{notes}");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    if let Err(error) = file.set_len(1 << 40) {
        println!("skipped: the file system has no sparse files of 1 TiB: {error}");
        return;
    }
    let (code, large, notes) = run(&[]);
    assert_eq!((code, large), (Some(0), small), "{notes}");
    // Its weights fit, so that none of them stays on disk.
    assert!(!notes.contains("of memory"), "{notes}");
    let (code, text, notes) = run(&["--ram-check"]);
    assert_eq!((code, text.as_str()), (Some(4), ""), "{notes}");
    assert!(notes.contains("error: the model needs 1.0"), "{notes}");
}

#[test]
fn a_sequence_keeps_the_common_prefix_of_prompts() {
    let (mut engine, tokenizer) = built_in(128);
    let prompts = [
        vec![1, 5, 9, 12, 40, 41, 42],
        vec![1, 5, 9, 12, 40, 41, 42, 50, 51],
        vec![1, 5, 9, 13],
        vec![1, 5, 9, 13],
        vec![2, 5],
    ];
    // The sequence also has the generated tokens, which the next prompt need not share.
    let reused = [0, 7, 3, 3, 0];
    let mut sequence = engine.new_sequence();
    for (prompt, n_reused) in prompts.iter().zip(reused) {
        let (text, report) = greedy(&mut engine, &tokenizer, Some(&mut sequence), prompt);
        let (fresh, _) = greedy(&mut engine, &tokenizer, None, prompt);
        assert_eq!((report.n_reused, text), (n_reused, fresh), "{prompt:?}");
        assert!(sequence.tokens().starts_with(prompt));
    }
}

#[test]
fn generation_can_be_interrupted_at_any_step() {
    let (mut engine, tokenizer) = built_in(16);
    // Interrupts each step until the context has been full once, including the context shift.
    for n in 0..24 {
        let (ended, _) = interrupted_after(&mut engine, &tokenizer, n);
        assert_eq!(ended, EndReason::Interrupted, "after {n}");
    }
    let (ended, n_shifts) = interrupted_after(&mut engine, &tokenizer, 1000);
    assert_eq!(ended, EndReason::Length);
    assert!(n_shifts > 1, "{n_shifts} shifts");
}

/// Generates the token `id` three times after a prompt.
fn repeat_token(
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    id: u32,
    options: Settings,
) -> (String, Report) {
    let options = Settings {
        n_predict: Some(3),
        context_shift: false,
        n_keep: 1,
        stops: Vec::new(),
        ..options
    };
    let config = SamplerConfig { temp: 0.0, logit_bias: vec![(id, 1e6)], ..Default::default() };
    let mut sampler = Sampler::new(&config, tokenizer).unwrap();
    let interrupt = AtomicBool::new(false);
    let mut text = String::new();
    let mut emit = |piece: &str| {
        text.push_str(piece);
        ControlFlow::Continue(())
    };
    let prompt = [1, 5, 9];
    let (settings, interrupt) = (&options, &interrupt);
    let generator = Generator { engine, tokenizer, sampler: &mut sampler, settings, interrupt };
    let report = generate(generator, &prompt, &mut emit);
    (text, report)
}

#[test]
fn listed_control_tokens_are_written_and_end_tokens_are_not() {
    const MARK: u32 = 300;
    let (mut engine, tokenizer) = built_in_with(32, |vocab| {
        vocab.tokens[MARK as usize] = b"<think>".to_vec();
        vocab.types[MARK as usize] = TokenType::Control;
    });
    let options = |written: &[u32], ends: &[u32], special| Settings {
        n_predict: None,
        context_shift: false,
        n_keep: 1,
        stops: Vec::new(),
        end_of_text: true,
        end_tokens: ends.to_vec(),
        special,
        written_tokens: written.to_vec(),
    };
    let three = "<think><think><think>";
    for (options, expected, end) in [
        (options(&[], &[], false), "", None),
        (options(&[MARK], &[], false), three, None),
        (options(&[MARK + 1], &[], false), "", None),
        (options(&[], &[], true), three, None),
        (options(&[MARK], &[MARK], true), "", Some(MARK)),
    ] {
        let (text, report) = repeat_token(&mut engine, &tokenizer, MARK, options.clone());
        assert_eq!((text.as_str(), report.end), (expected, end), "{options:?}");
        assert_eq!(report.ended == EndReason::EndOfText, end.is_some());
    }
}
