//! Predictors and thresholds: from a text to a side file, and their use in the engine.

mod hostile;
mod import;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hal::Bytes;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, Sparsity, StepStats, Streaming};
use thermocline::learned::{Section, SideFile};
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::Placement;
use thermocline::predictor::{Chooser, Layers, PredictorRun, read};
use thermocline::{devices, embedded};

use crate::placement_is_invisible::{sim_device, stream::split};
use crate::support::packed::unpack;

/// An interrupt that never comes.
static NEVER: AtomicBool = AtomicBool::new(false);

/// Runs the command with its own folder for side files.
fn thermocline(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command
        .env_clear()
        .env("THERMOCLINE_ARG_BACKEND", "cpu")
        .env("THERMOCLINE_ARG_PROBE_SIZE", "16")
        .args(args)
        .arg("--repack-cache")
        .arg(folder);
    command.stdin(Stdio::null()).output().unwrap()
}

fn text() -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/reference/eval.txt");
    path.to_string_lossy().into_owned()
}

/// A short run of `predictor` on the built-in model.
fn train_predictor(folder: &Path, out: &Path, more: &[&str]) -> Output {
    let (text, out) = (text(), out.to_string_lossy());
    let args = ["predictor", "-f", &text, "--out", &out, "--tokens", "4096", "-t", "2"];
    let args: Vec<&str> = args.iter().chain(more).copied().collect();
    thermocline(folder, &args)
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn model(activation: Option<&str>) -> Arc<Model> {
    let activation = activation.map(str::to_owned);
    let options = ModelOptions { activation, ..ModelOptions::default() };
    Arc::new(Model::from_file(embedded::file().unwrap(), &options).unwrap())
}

fn chooser(path: &Path, model: &Model) -> Chooser {
    let learned = SideFile::open(path, &model.file).unwrap();
    read(&learned, model).unwrap().unwrap()
}

fn engine(
    model: &Arc<Model>,
    sparsity: Sparsity,
    chooser: Option<&Chooser>,
    repack: bool,
) -> Engine {
    let options = EngineOptions {
        n_ctx: 128,
        // In a step of several tokens, gates are counted once.
        n_ubatch: 1,
        sparsity,
        chooser: chooser.cloned().map(Arc::new),
        repack,
        ..EngineOptions::default()
    };
    let devices = vec![devices::cpu(Some(2))];
    let quiet = Arc::new(|_: &str| {});
    Engine::load(Arc::clone(model), devices, options, None, quiet, &|_, _| {}).unwrap()
}

/// Logits of all tokens of a text, and its statistics.
fn logits(engine: &mut Engine, tokens: &[u32]) -> (Vec<f32>, StepStats) {
    let mut sequence = engine.new_sequence();
    let mut all = Vec::new();
    let interrupt = AtomicBool::new(false);
    let keep = &mut |_: usize, row: &[f32]| all.extend_from_slice(row);
    let stats = engine.feed(&mut sequence, tokens, LogitsRequest::All, &interrupt, keep).unwrap();
    (all, stats)
}

fn story() -> Vec<u32> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/reference/greedy.json.gz");
    let json: serde_json::Value = serde_json::from_slice(&unpack(&path)).unwrap();
    fn longest_list(value: &serde_json::Value) -> Vec<u32> {
        match value {
            serde_json::Value::Array(values) if values.iter().all(serde_json::Value::is_u64) => {
                values.iter().map(|id| id.as_u64().unwrap() as u32).collect()
            }
            serde_json::Value::Array(values) => {
                values.iter().map(longest_list).max_by_key(Vec::len).unwrap_or_default()
            }
            serde_json::Value::Object(map) => {
                map.values().map(longest_list).max_by_key(Vec::len).unwrap_or_default()
            }
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_) => Vec::new(),
        }
    }
    let tokens = longest_list(&json);
    assert!(tokens.len() >= 32, "a story of {} tokens", tokens.len());
    tokens
}

/// `1 - cos` of two runs' logits: a distance.
fn cosine_distance(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    1.0 - dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn a_trained_predictor_saves_gates_within_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("learned.gguf");
    let table = stdout(&train_predictor(folder.path(), &out, &["--rank", "64", "--train", "40"]));
    assert_eq!(table.lines().count(), 7, "{table}");
    let model = model(None);
    let chooser = chooser(&out, &model);
    assert!(matches!(&chooser.layers, Layers::Predictors(layers) if layers.len() == 4));
    let tokens = story();
    let (exact, all) = logits(&mut engine(&model, Sparsity::Exact, None, true), &tokens);
    let mut before: Option<(f64, f64)> = None;
    for error in [0.01, 0.05, 0.2] {
        let mut engine = engine(&model, Sparsity::Within(error), Some(&chooser), true);
        assert!(engine.predicts() && engine.predictor_bytes(0).0 > 0);
        let (near, some) = logits(&mut engine, &tokens);
        let (distance, gates) = (cosine_distance(&exact, &near), some.gates / all.gates);
        assert!(some.active <= all.active && gates < 1.0, "{error}: {gates}");
        assert!(distance > 0.0 && distance < 0.05, "{error}: {distance}");
        if let Some(before) = before {
            assert!(
                distance > before.0 && gates <= before.1,
                "{error}: {distance} {gates} {before:?}"
            );
        }
        before = Some((distance, gates));
        // The skipped neurons do not depend on the chunks of the text or on threads.
        let one = devices::cpu(Some(1));
        let options = EngineOptions { n_ubatch: 8, ..engine.options().clone() };
        let quiet = Arc::new(|_: &str| {});
        let model = Arc::clone(&model);
        let mut other = Engine::load(model, vec![one], options, None, quiet, &|_, _| {}).unwrap();
        assert!(cosine_distance(&near, &logits(&mut other, &tokens).0).abs() < 1e-5);
    }
    // Without a down projection stored by neuron, the predictor is not used; gates select the
    // neurons.
    let mut plain = engine(&model, Sparsity::Within(0.2), Some(&chooser), false);
    assert!(!plain.predicts());
    assert!(cosine_distance(&exact, &logits(&mut plain, &tokens).0).abs() < 1e-6);
    check_streamed(&model, &chooser, &tokens);
}

#[test]
fn sign_predictors_need_no_factors_or_training() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("learned.gguf");
    let table = stdout(&train_predictor(folder.path(), &out, &["--kind", "sign"]));
    assert!(table.contains("Q1_0") && table.lines().count() == 7, "{table}");
    let model = model(None);
    let chooser = chooser(&out, &model);
    let Layers::Predictors(layers) = &chooser.layers else { panic!("a predictor") };
    let bytes = (1280 * 256 / 128 * 18 + 4 * 1280) as u64;
    assert!(layers.iter().all(|layer| layer.fc1.is_none() && layer.bytes().0 == bytes));
    let tokens = story();
    let (exact, all) = logits(&mut engine(&model, Sparsity::Exact, None, true), &tokens);
    let mut engine = engine(&model, Sparsity::Within(0.05), Some(&chooser), true);
    assert!(engine.predicts());
    let (near, some) = logits(&mut engine, &tokens);
    assert!(cosine_distance(&exact, &near) < 0.05, "{}", cosine_distance(&exact, &near));
    assert!(some.gates < 0.6 * all.gates, "{} of {}", some.gates, all.gates);
    check_streamed(&model, &chooser, &tokens);
    // For an activation without exact zeros, signs cannot predict active neurons.
    let output =
        train_predictor(folder.path(), &out, &["--kind", "sign", "--ffn-activation", "silu"]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("exact zeros"), "{stderr}");
}

#[test]
fn thresholds_skip_neurons_of_a_silu_model() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("learned.gguf");
    let silu = ["--ffn-activation", "silu"];
    let table = stdout(&train_predictor(folder.path(), &out, &silu));
    assert_eq!(table.lines().count(), 7, "{table}");
    let model = model(Some("silu"));
    let chooser = chooser(&out, &model);
    assert!(matches!(&chooser.layers, Layers::Thresholds(layers) if layers.len() == 4));
    let tokens = story();
    let mut dense = engine(&model, Sparsity::Off, None, true);
    let (off, all) = logits(&mut dense, &tokens);
    assert_eq!(all.active, all.neurons);
    let mut before = all.active;
    for error in [0.003, 0.05, 0.2] {
        for repack in [true, false] {
            let mut engine = engine(&model, Sparsity::Within(error), Some(&chooser), repack);
            assert!(engine.is_sparse() && !engine.predicts());
            let (near, some) = logits(&mut engine, &tokens);
            assert!(
                cosine_distance(&off, &near) < 0.2,
                "{error}: {}",
                cosine_distance(&off, &near)
            );
            assert!(some.active < all.active, "{error}: {} of {}", some.active, all.active);
            if repack {
                assert!(some.active < before, "{error}: {} {before}", some.active);
                before = some.active;
            }
        }
    }
    check_streamed(&model, &chooser, &tokens);
}

/// When weights are streamed in prefill, the predictor is streamed too and selects the same
/// neurons.
fn check_streamed(model: &Arc<Model>, chooser: &Chooser, tokens: &[u32]) {
    let long: Vec<u32> = tokens.iter().copied().cycle().take(64).collect();
    let run = |placement: Option<Placement>| {
        let options = EngineOptions {
            n_ctx: 128,
            n_ubatch: 64,
            sparsity: Sparsity::Within(0.05),
            chooser: Some(Arc::new(chooser.clone())),
            streaming: Streaming::Forced { from: 17, chunk_bytes: Bytes(50_000) },
            ..EngineOptions::default()
        };
        let mut all = vec![devices::cpu(Some(2))];
        let no_delay = Duration::ZERO..Duration::ZERO;
        all.extend(placement.is_some().then(|| sim_device(1, Bytes::MAX, no_delay, 1).1));
        let (model, quiet) = (Arc::clone(model), Arc::new(|_: &str| {}));
        let mut engine = Engine::load(model, all, options, placement, quiet, &|_, _| {}).unwrap();
        logits(&mut engine, &long)
    };
    let ((alone, some), (streamed, there)) = (run(None), run(Some(split(model, Some(3)))));
    assert!(cosine_distance(&alone, &streamed) < 0.02, "{}", cosine_distance(&alone, &streamed));
    assert!((there.active / some.active - 1.0).abs() < 0.01, "{there:?} {some:?}");
    assert_eq!(there.off_cpu, there.active);
}

/// Writes a synthetic model with four experts, of which a token uses two, and opens it.
fn experts(folder: &Path, activation: &str) -> (String, Arc<Model>) {
    let path = folder.join("experts.gguf");
    let file = path.to_string_lossy().into_owned();
    let spec = format!("128x2x256x4/2*4/2:F16:{activation}");
    let made = ["bench", "--synthetic", &spec, "--write", &file, "-p", "0", "-n", "1", "-r", "1"];
    stdout(&thermocline(folder, &made));
    let model = Model::from_file(gguf::File::open(&path).unwrap(), &ModelOptions::default());
    (file, Arc::new(model.unwrap()))
}

#[test]
fn thresholds_skip_neurons_of_experts() {
    let folder = tempfile::tempdir().unwrap();
    let (file, model) = experts(folder.path(), "silu");
    let out = folder.path().join("learned.gguf");
    let table = stdout(&train_predictor(folder.path(), &out, &["-m", &file]));
    assert!(table.starts_with("layer  chosen   error"), "{table}");
    let chooser = chooser(&out, &model);
    assert!(matches!(&chooser.layers, Layers::Thresholds(layers) if layers.len() == 2));
    let tokens: Vec<u32> = (1..65).map(|i| i * 37 % 256).collect();
    let (off, all) = logits(&mut engine(&model, Sparsity::Off, None, true), &tokens);
    let mut before = all.active;
    for error in [0.01, 0.05, 0.2] {
        let within = Sparsity::Within(error);
        let (near, some) = logits(&mut engine(&model, within, Some(&chooser), true), &tokens);
        let distance = cosine_distance(&off, &near);
        assert!(distance < f64::from(error), "{error}: {distance}");
        assert!(some.active < before, "{error}: {} {before}", some.active);
        before = some.active;
    }
    // Half of the neurons on another device.
    let options = EngineOptions {
        n_ctx: 128,
        n_ubatch: 1,
        sparsity: Sparsity::Within(0.05),
        chooser: Some(Arc::new(chooser.clone())),
        ..EngineOptions::default()
    };
    let all =
        vec![devices::cpu(Some(2)), sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1];
    let quiet = Arc::new(|_: &str| {});
    let cut = Some(split(&model, Some(3)));
    let divided = Engine::load(Arc::clone(&model), all, options, cut, quiet, &|_, _| {});
    let (there, _) = logits(&mut divided.unwrap(), &tokens);
    let within = Sparsity::Within(0.05);
    let (here, _) = logits(&mut engine(&model, within, Some(&chooser), true), &tokens);
    assert!(cosine_distance(&here, &there) < 1e-4, "{}", cosine_distance(&here, &there));
}

#[test]
fn experts_with_exact_zeros_are_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (file, _) = experts(folder.path(), "relu");
    let output = thermocline(folder.path(), &["predictor", "-m", &file]);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && stderr.contains("skipped exactly"), "{stderr}");
}

#[test]
fn a_resumed_training_run_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, half] =
        ["whole", "half"].map(|name| folder.path().join(name).with_extension("gguf"));
    let short = ["--rank", "32", "--train", "0", "--tokens", "1024"];
    stdout(&train_predictor(folder.path(), &whole, &short));
    let model = model(None);
    let learned = SideFile::open(&whole, &model.file).unwrap();
    let recipe = learned.text(Section::Predictor, "recipe").unwrap().to_owned();
    let Layers::Predictors(layers) = chooser(&whole, &model).layers else { panic!("a predictor") };
    // The state after a run that was ended after two layers.
    let mut maker = PredictorRun::new(&model, &half, &recipe, false, &NEVER).unwrap();
    layers[..2].iter().for_each(|layer| maker.add_predictor(layer.clone()).unwrap());
    let result = read(&SideFile::open(&half, &model.file).unwrap(), &model);
    assert!(result.unwrap_err().to_string().contains("2 of 4 layers"));
    let again = train_predictor(folder.path(), &half, &short);
    assert!(String::from_utf8_lossy(&again.stderr).contains("resuming after layer 1"));
    stdout(&again);
    assert_eq!(std::fs::read(&whole).unwrap(), std::fs::read(&half).unwrap());
    // With the same recipe, the run is already complete. Another recipe is rejected, or restarts
    // the training if that is requested.
    let done = train_predictor(folder.path(), &half, &short);
    assert!(String::from_utf8_lossy(&done.stderr).contains("is already complete"));
    let error =
        PredictorRun::new(&model, &half, "another recipe", false, &NEVER).unwrap_err().to_string();
    assert!(error.contains("another recipe"), "{error}");
    assert!(
        PredictorRun::new(&model, &half, "another recipe", true, &NEVER)
            .unwrap()
            .layers()
            .is_empty()
    );
    assert_eq!(PredictorRun::new(&model, &half, &recipe, false, &NEVER).unwrap().layers().len(), 4);
}

#[test]
fn sparsity_levels_without_a_predictor_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let run = |sparsity: &str| {
        let args = ["-p", "Once", "-n", "4", "--temp", "0", "--sparsity", sparsity, "-t", "1"];
        let args = [&args[..], &["--no-auto-profile"]].concat();
        thermocline(folder.path(), &args)
    };
    for word in ["balanced", "fast", "0.05"] {
        let failed = run(word);
        let says = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(1), "{says}");
        assert!(
            says.contains("no predictor for this model") && says.contains("thermocline predictor"),
            "{says}"
        );
    }
    for word in ["1.5", "0", "-1", "nan", "quick"] {
        let failed = run(word);
        assert_eq!(failed.status.code(), Some(2), "{word}");
    }
    let trained = thermocline(
        folder.path(),
        &[
            "predictor",
            "-f",
            &text(),
            "--tokens",
            "1024",
            "--rank",
            "32",
            "--train",
            "0",
            "-t",
            "2",
        ],
    );
    stdout(&trained);
    assert!(!stdout(&run("balanced")).is_empty());
    let few = folder.path().join("few.txt");
    std::fs::write(&few, "Once upon a time there was a bird.").unwrap();
    let short = thermocline(folder.path(), &["predictor", "-f", &few.to_string_lossy()]);
    assert_eq!(short.status.code(), Some(1), "a text that is too short");
}

#[test]
fn the_size_of_a_predictor_is_limited() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small.gguf");
    let short = ["--train", "0", "--tokens", "1024", "--max-size"];
    stdout(&train_predictor(folder.path(), &out, &[&short[..], &["4%"]].concat()));
    let model = model(None);
    let Layers::Predictors(layers) = chooser(&out, &model).layers else { panic!("a predictor") };
    for (layer, of) in layers.iter().zip(&model.layers) {
        let size = |rows: &hal::HostRows| (rows.desc().n_rows * rows.row_bytes()) as f64;
        let all: f64 = of.ffn.as_ref().unwrap().matrices().map(|(_, rows)| size(rows)).sum();
        let share = layer.bytes().0 as f64 / all;
        assert!(share <= 0.04 && layer.fc1.is_some(), "{share}");
    }
    let path = folder.path().join("none.gguf");
    let output = train_predictor(folder.path(), &path, &[&short[..], &["0.1%"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(
        stderr.contains("more than the limit of 0.1 %") && stderr.contains("--max-size"),
        "{stderr}"
    );
    assert!(!path.exists());
}

#[test]
fn the_first_use_trains_and_a_command_replaces_the_result() {
    let folder = tempfile::tempdir().unwrap();
    let run = || {
        let args = ["-p", "Once", "-n", "40", "--temp", "0", "--sparsity", "balanced", "-t", "2"];
        thermocline(folder.path(), &args)
    };
    let first = run();
    let written = stdout(&first);
    let stderr = String::from_utf8_lossy(&first.stderr).into_owned();
    assert!(
        stderr.contains("no predictor for this model yet")
            && stderr.contains("a trained predictor"),
        "{stderr}"
    );
    let kept = || {
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files = files.filter(|path| path.extension().is_some_and(|end| end == "gguf"));
        let path = files.next().unwrap();
        assert!(files.next().is_none());
        SideFile::open(&path, &model(None).file).unwrap()
    };
    let learned = kept();
    let source = |learned: &SideFile| learned.text(Section::Profile, "source").unwrap().to_owned();
    assert!(source(&learned).starts_with("first use: "), "the plan uses this profile");
    let Layers::Predictors(layers) = chooser(Path::new(learned.name()), &model(None)).layers else {
        panic!("a predictor")
    };
    assert!(layers.iter().all(|layer| layer.fc1.is_none()), "signs need no training");
    let again = run();
    assert_eq!(stdout(&again), written);
    assert!(!String::from_utf8_lossy(&again.stderr).contains("no predictor for this model yet"));
    // An explicit command replaces the automatic predictor.
    let train_args =
        ["predictor", "-f", &text(), "--tokens", "1024", "--rank", "32", "--train", "0"];
    stdout(&thermocline(folder.path(), &train_args));
    let Layers::Predictors(layers) = chooser(Path::new(kept().name()), &model(None)).layers else {
        panic!("a predictor")
    };
    assert!(layers.iter().all(|layer| layer.fc1.is_some()));
    stdout(&thermocline(folder.path(), &["profile", "--tokens", "1024"]));
    assert!(source(&kept()).starts_with("text "));
    let output = thermocline(folder.path(), &["predictor", "--kind", "sign"]);
    assert_eq!(output.status.code(), Some(1), "only --restart replaces a result");
}
