//! Perplexity and divergence: compared with sums computed in the test and with the references of
//! the built-in model. Damaged files are rejected.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use thermocline::engine::{
    Engine, EngineOptions, Error as EngineError, LogitsRequest, Sparsity, StepStats,
};
use thermocline::evaluate::{
    self, Chunks, Comparison, Error, LogitsReader, LogitsWriter, Perplexity,
};
use thermocline::model::{Model, ModelOptions};
use thermocline::tokenizer::{Tokenizer, Vocab};
use thermocline::{devices, embedded};

use crate::support::Tiny;

const N_CTX: usize = 16;
static INTERRUPT: AtomicBool = AtomicBool::new(false);

fn engine(model: &Arc<Model>, n_ctx: usize, sparsity: Sparsity) -> Engine {
    let options = EngineOptions { n_ctx, n_ubatch: n_ctx, sparsity, ..EngineOptions::default() };
    let devices = vec![devices::cpu(Some(2))];
    Engine::load(Arc::clone(model), devices, options, None, Arc::new(|_| {}), &|_, _| {}).unwrap()
}

fn text(n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 37 + i * i) % 80).collect()
}

fn chunks(bos: Option<u32>) -> Chunks {
    Chunks::new(text(3 * N_CTX as u32 + 5), N_CTX, bos, None).unwrap()
}

fn measure(engine: &mut Engine, chunks: &Chunks) -> (Perplexity, StepStats) {
    evaluate::perplexity(engine, chunks, None, &INTERRUPT, &mut |_, _| {}).unwrap()
}

fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut sequence = engine.new_sequence();
    let mut rows = Vec::new();
    let sink = &mut |_: usize, row: &[f32]| rows.push(row.to_vec());
    engine.feed(&mut sequence, tokens, LogitsRequest::All, &INTERRUPT, sink).unwrap();
    rows
}

fn negative_log_probability(logits: &[f32], token: u32) -> f64 {
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    sum.ln() - f64::from(logits[token as usize])
}

#[test]
fn perplexity_matches_a_plain_sum() {
    let model = Tiny::default().model();
    let mut engine = engine(&model, N_CTX, Sparsity::Exact);
    let tokens = text(3 * N_CTX as u32 + 5);
    let mut sums = Vec::new();
    for chunk in tokens.chunks_exact(N_CTX) {
        let read = [&[1], &chunk[1..]].concat();
        let rows = logits(&mut engine, &read);
        sums.extend(
            (N_CTX / 2..N_CTX - 1).map(|i| negative_log_probability(&rows[i], chunk[i + 1])),
        );
    }
    let mean = sums.iter().sum::<f64>() / sums.len() as f64;
    let variance = sums.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / sums.len() as f64;
    let error = mean.exp() * (variance / (sums.len() - 1) as f64).sqrt();

    let mut calls = Vec::new();
    let chunks = chunks(Some(1));
    let progress = &mut |done, so_far: &Perplexity| calls.push((done, so_far.nll.n()));
    let (perplexity, stats) =
        evaluate::perplexity(&mut engine, &chunks, None, &INTERRUPT, progress).unwrap();
    assert_eq!(calls, [(1, 7), (2, 14), (3, 21)]);
    assert!((perplexity.value() / mean.exp() - 1.0).abs() < 1e-4, "{perplexity:?} {mean}");
    assert!((perplexity.error() / error - 1.0).abs() < 1e-3);
    let neurons = (3 * (N_CTX - 1) * 3 * 96) as f64;
    assert_eq!(stats.neurons, neurons, "the last token of a chunk is not run");
    assert!(stats.active > 0.2 * neurons && stats.active < 0.8 * neurons, "{stats:?}");
}

#[test]
fn chunks_that_run_at_once_have_the_same_results() {
    let model = Tiny::default().model();
    let folder = tempfile::tempdir().unwrap();
    let run = |n_seq: usize| {
        let path = folder.path().join(n_seq.to_string());
        // Steps of up to 16 tokens, in which other sequences change no bit.
        let options = EngineOptions {
            n_ctx: n_seq * hal::KV_BLOCK,
            n_seq,
            n_ubatch: N_CTX,
            ..EngineOptions::default()
        };
        let (devices, quiet) = (vec![devices::cpu(Some(2))], Arc::new(|_: &str| {}));
        let engine = Engine::load(Arc::clone(&model), devices, options, None, quiet, &|_, _| {});
        let mut engine = engine.unwrap();
        let perplexity = write(&mut engine, &path);
        let compared = compare_with(&path, &mut engine).unwrap();
        (perplexity, std::fs::read(&path).unwrap(), compared)
    };
    let alone = run(1);
    // Two of three chunks at once, then one; all at once; room for more.
    for n_seq in [2, 3, 4] {
        assert_eq!(run(n_seq), alone, "{n_seq} at once");
    }
}

#[test]
fn sparse_and_dense_runs_agree() {
    let model = Tiny::default().model();
    let mut sparse = engine(&model, N_CTX, Sparsity::Exact);
    let mut dense = engine(&model, N_CTX, Sparsity::Off);
    let compare = |engine: &mut Engine, reference: &mut Engine| -> Comparison {
        let sink = &mut |_: usize, _: &Comparison| {};
        evaluate::compare_with_engine(engine, reference, &chunks(None), &INTERRUPT, sink).unwrap().0
    };
    let comparison = compare(&mut sparse, &mut dense);
    assert_eq!(comparison.divergence.n(), 21);
    assert!(comparison.divergence.value().abs() < 1e-5, "{comparison:?}");
    assert_eq!(comparison.same_top(), 1.0);
    let mut again = engine(&model, N_CTX, Sparsity::Exact);
    let comparison = compare(&mut sparse, &mut again);
    assert_eq!((comparison.divergence.value(), comparison.max_divergence), (0.0, 0.0));
    assert_eq!(comparison.perplexity, comparison.reference);
    let mut other = engine(&Tiny { seed: 2, ..Tiny::default() }.model(), N_CTX, Sparsity::Exact);
    let comparison = compare(&mut sparse, &mut other);
    assert!(comparison.divergence.value() > 0.1, "{comparison:?}");
    assert!(comparison.max_divergence > comparison.divergence.value());
    assert!(comparison.same_top() < 0.5);
}

fn write(engine: &mut Engine, path: &Path) -> Perplexity {
    let chunks = chunks(Some(1));
    let mut writer = LogitsWriter::create(path, &chunks, 80).unwrap();
    let sink = &mut |_: usize, _: &Perplexity| {};
    let (perplexity, _) =
        evaluate::perplexity(engine, &chunks, Some(&mut writer), &INTERRUPT, sink).unwrap();
    assert!(!path.exists(), "the file has no name before it is complete");
    writer.finish().unwrap();
    perplexity
}

fn compare_with(path: &Path, engine: &mut Engine) -> Result<Comparison, Error> {
    let mut reader = LogitsReader::open(path, 80, Some(1), None)?;
    let sink = &mut |_: usize, _: &Comparison| {};
    evaluate::compare_with_file(engine, &mut reader, &INTERRUPT, sink)
        .map(|(comparison, _)| comparison)
}

#[test]
fn comparison_through_a_file_matches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.kld");
    let mut engine = engine(&Tiny::default().model(), N_CTX, Sparsity::Exact);
    let perplexity = write(&mut engine, &path);
    let expected = 20 + 4 * 3 * 16 + 3 * 7 * (8 + 160);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), expected);
    let comparison = compare_with(&path, &mut engine).unwrap();
    assert_eq!(comparison.perplexity, perplexity);
    assert!((comparison.reference.value() / perplexity.value() - 1.0).abs() < 1e-3);
    assert!(comparison.divergence.value().abs() < 1e-4, "{comparison:?}");
    // Rounding may swap two tokens with almost equal logits.
    assert!(comparison.same_top() > 0.9);
    let reader = LogitsReader::open(&path, 80, Some(1), Some(2)).unwrap();
    assert_eq!((reader.chunks().n_chunks(), reader.chunks().n_ctx()), (2, N_CTX));
    let other = LogitsReader::open(&path, 81, None, None).unwrap_err();
    assert!(matches!(other, Error::Vocabulary { expected: 81, found: 80, .. }));
}

#[test]
fn an_interrupt_ends_the_evaluation_and_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.kld");
    let mut engine = engine(&Tiny::default().model(), N_CTX, Sparsity::Exact);
    let chunks = chunks(None);
    let mut writer = LogitsWriter::create(&path, &chunks, 80).unwrap();
    let stop = AtomicBool::new(true);
    let sink = &mut |_: usize, _: &Perplexity| {};
    let ended = evaluate::perplexity(&mut engine, &chunks, Some(&mut writer), &stop, sink);
    assert!(matches!(ended, Err(Error::Engine(EngineError::Interrupted))));
    drop(writer);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let (perplexity, _) = measure(&mut engine, &chunks);
    assert_eq!(perplexity.nll.n(), 21, "the KV cache was freed");
}

#[test]
fn damaged_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("base.kld");
    let mut engine = engine(&Tiny::default().model(), N_CTX, Sparsity::Exact);
    write(&mut engine, &path);
    let whole = std::fs::read(&path).unwrap();
    let rows = 20 + 4 * 3 * 16;
    let mut check = |change: &dyn Fn(&mut Vec<u8>), says: &str| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        let error = compare_with(&path, &mut engine).unwrap_err().to_string();
        assert!(error.contains(says) && error.contains("base.kld"), "{error}");
    };
    check(&|b| b.truncate(0), "magic");
    check(&|b| b[0] = b'G', "magic `_logits_`, found `Glogits_`");
    check(&|b| b.truncate(19), "the length is 19");
    check(&|b| b.truncate(rows + 1), "the length of 3 chunks of 16 tokens");
    check(&|b| b.push(0), "expected 3740 bytes");
    check(&|b| b[8..12].copy_from_slice(&2u32.to_le_bytes()), "the context size is 2");
    check(&|b| b[8..12].fill(255), "the length");
    check(&|b| b[12..16].fill(255), "probabilities of 4294967295 tokens");
    check(&|b| b[16..20].fill(0), "the number of chunks is 0");
    check(&|b| b[16..20].fill(255), "the length");
    check(&|b| b[24..28].copy_from_slice(&80u32.to_le_bytes()), "token 1 is 80");
    check(&|b| b[rows..rows + 4].fill(255), "row 0 is a scale of NaN");
    check(&|b| b[rows + 4..rows + 8].copy_from_slice(&9f32.to_le_bytes()), "log probabilities");
    assert!(matches!(compare_with(folder.path(), &mut engine), Err(Error::Open { .. })));
    let missing = folder.path().join("missing");
    assert!(matches!(compare_with(&missing, &mut engine), Err(Error::Open { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn no_logits_file_panics(
        known in any::<bool>(),
        numbers in prop::collection::vec(0u32..5, 3),
        rest in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut bytes = if known { b"_logits_".to_vec() } else { Vec::new() };
        bytes.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        bytes.extend(rest);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        if let Ok(reader) = LogitsReader::open(file.path(), 2, None, None) {
            let chunks = reader.chunks();
            prop_assert!(chunks.n_ctx() >= 3 && chunks.n_chunks() >= 1);
        }
    }
}

/// As in the model's references, each window has a BOS token and 511 tokens, which are all
/// predicted.
#[test]
fn perplexity_of_the_built_in_model_matches_its_reference() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&read("reference.json")).unwrap();
    let file = embedded::file().unwrap();
    let tokenizer = Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
    let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
    let mut engine = engine(&model, 512, Sparsity::Exact);
    let mut total = Perplexity::default();
    let tokens = tokenizer.encode(&read("eval.txt"), false, false).unwrap();
    for window in tokens.chunks(511) {
        let mut sequence = engine.new_sequence();
        let sink = &mut |pos: usize, row: &[f32]| total.add(row, window[pos]);
        let read = [&[1], &window[..window.len() - 1]].concat();
        engine.feed(&mut sequence, &read, LogitsRequest::All, &INTERRUPT, sink).unwrap();
    }
    let expected = &expected["perplexity"];
    assert_eq!(total.nll.n(), expected["flat_tokens"].as_u64().unwrap());
    let (found, expected) = (total.value(), expected["flat"].as_f64().unwrap());
    assert!((found / expected - 1.0).abs() < 0.005, "{found}, expected {expected}");
}

/// Runs the command on the built-in model's evaluation text.
fn command(args: &[&str]) -> std::process::Output {
    let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/eval.txt");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().env("THERMOCLINE_ARG_BACKEND", "cpu");
    command.args(["perplexity", "-c", "64", "--chunks", "2", "-f"]).arg(text);
    command.args(args).output().unwrap()
}

#[test]
fn the_command_reports_on_standard_output() {
    let plain = command(&[]);
    assert!(plain.status.success(), "{plain:?}");
    let line = String::from_utf8(plain.stdout).unwrap();
    assert!(line.starts_with("Final estimate: PPL = ") && line.contains(" +/- "), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert!(String::from_utf8_lossy(&plain.stderr).contains("% of the neurons were computed"));

    let json = command(&["--against", "dense", "--json", "-np", "4"]);
    assert!(String::from_utf8_lossy(&json.stderr).contains("--against runs one chunk at a time"));
    let report: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let ppl = |v: &serde_json::Value| format!("{:.2}", v["ppl"].as_f64().unwrap());
    let printed: f64 =
        line["Final estimate: PPL = ".len()..].split(' ').next().unwrap().parse().unwrap();
    assert!((printed - report["ppl"].as_f64().unwrap()).abs() < 1e-4, "{line} {report}");
    assert_eq!(ppl(&report), ppl(&report["reference"]));
    assert_eq!(report["n_predicted"], 62);
    assert!(report["density"].as_f64().unwrap() < 0.3);
    assert!(report["kl_divergence"]["max"].as_f64().unwrap() < 1e-4);

    let short = command(&["-p", "Once upon a time"]);
    assert_eq!((short.status.code(), short.stdout.len()), (Some(1), 0), "{short:?}");
    assert!(String::from_utf8_lossy(&short.stderr).contains("needs at least 128"));
}
