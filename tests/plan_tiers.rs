//! Plans of weights on disk: the tiers of a plan are those of a run, and shapes need no weights.
#![cfg(unix)]

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use hal::Bytes;
use hal::format::Format;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use thermocline::convert::{self, Target};
use thermocline::engine::{
    Engine, EngineOptions, Error, NeuronReads, PagingOptions, Tiers, planned_tiers,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::{CPU, Placement};
use thermocline::synthetic::Spec;

use crate::placement_is_invisible::{cpu_device, ignore_notices};
use crate::support::Tiny;

fn thermocline(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().args(args).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn plan(args: &[&str]) -> Value {
    let output = thermocline(&[&["plan", "--json"], args].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn options(model: &Model, budget: Bytes) -> EngineOptions {
    let n_ctx = model.positions.as_ref().map_or(128, |table| table.n_positions().min(128));
    let paging = Some(PagingOptions { budget, depth: 2, neurons: NeuronReads::Layer });
    EngineOptions { n_ctx, n_ubatch: 32, paging, ..EngineOptions::default() }
}

/// The tiers that a plan computes.
fn planned_only(model: &Arc<Model>, budget: Bytes) -> Result<Tiers, Error> {
    let (options, placement) =
        (options(model, budget), Placement::all_on(CPU, model.hyper.n_layer));
    planned_tiers(model, &[cpu_device(2)], &options, &placement, false)
}

/// The tiers of a loaded engine, and those that a plan computes.
fn both(model: &Arc<Model>, budget: Bytes) -> [Result<Option<Tiers>, Error>; 2] {
    let (devices, options, quiet) = (vec![cpu_device(2)], options(model, budget), ignore_notices());
    let loaded = Engine::load(Arc::clone(model), devices, options, None, quiet, &|_, _| {});
    [loaded.map(|engine| engine.tiers()), planned_only(model, budget).map(Some)]
}

/// Compares plan and run for budgets from one that is too small to one that holds everything.
/// Returns how many of them had weights on disk.
fn check(name: &str, model: &Arc<Model>) -> usize {
    let most = both(model, Bytes(1 << 40))[1].as_ref().unwrap().unwrap().weights;
    let mut n = 0;
    for tenths in 1..=14 {
        // The cache and scratch of the tiny models take about as much as their weights.
        let budget = Bytes(most.0 * tenths / 5 + (tenths << 12));
        match both(model, budget) {
            [Ok(Some(loaded)), Ok(Some(planned))] => {
                assert_eq!(loaded.weights, planned.weights, "{name}");
                // The plan's need is a bound; a few bytes move a chunk of each of the tiny layers.
                let apart = loaded.on_disk().0.abs_diff(planned.on_disk().0);
                assert!(
                    apart <= loaded.weights.0 / 4 + 4096,
                    "{name} with {budget}: {loaded:?}, {planned:?}"
                );
                n += usize::from(planned.on_disk() > Bytes(0));
            }
            [Err(Error::Store(_)), Err(Error::Store(_))] => {}
            // The plan's need is a bound.
            [Ok(_), Err(Error::Store(_))] => {
                assert!(planned_only(model, budget + Bytes(most.0 / 5)).is_ok(), "{name}");
            }
            [loaded, planned] => panic!("{name} with {budget}: {loaded:?}, {planned:?}"),
        }
    }
    n
}

fn open(bytes: impl FnOnce(&std::path::Path)) -> (NamedTempFile, Arc<Model>) {
    let file = NamedTempFile::new().unwrap();
    bytes(file.path());
    let opened = File::open(file.path()).unwrap();
    (file, Arc::new(Model::from_file(opened, &ModelOptions::default()).unwrap()))
}

#[test]
fn planned_tiers_are_those_of_a_loaded_model() {
    let tiny = Tiny { n_layer: 6, n_embd: 128, n_ff: 640, format: Format::Q8_0, ..Tiny::default() };
    let mut n = 0;
    for (name, tiny) in [
        ("silu", Tiny { activation: "silu", ..tiny.clone() }),
        ("tied", Tiny { activation: "silu", tied: true, format: Format::F16, ..tiny.clone() }),
        ("relu", tiny.clone()),
        ("pwri", Tiny { pwri: true, rank: 32, format: Format::Q4_0, ..tiny }),
    ] {
        let (_file, model) = open(|path| fs::write(path, tiny.bytes()).unwrap());
        n += check(name, &model);
    }
    for spec in ["256x4x256x4/2*16/2:Q4_0:silu", "128x3x96x4/2*8/3:Q8_0:relu"] {
        let mut parsed = Spec::parse(spec).unwrap();
        parsed.n_vocab = 512;
        let (_file, model) = open(|path| parsed.write(path, &mut |_, _| true).unwrap());
        n += check(spec, &model);
    }
    assert!(n > 12, "only {n} budgets had weights on disk");
}

#[test]
fn planned_tiers_are_those_of_every_family() {
    let mut n = 0;
    for (name, model) in crate::families::models() {
        n += check(&name, &model);
    }
    assert!(n > 50, "only {n} budgets had weights on disk");
}

/// 1.4 GiB of experts, 7.2 MB of them in each unit of a layer.
const SPEC: &str = "2048x8x768x16/4*64/4:Q4_0:silu";

fn machine(memory: &str, more: &[&str]) -> Value {
    let cpu = format!("cpu,memory={memory},bandwidth=50GB/s,tflops=1,disk=2GB/s");
    let args = ["--shape", SPEC, "--assume", &cpu, "-c", "256", "-ub", "32"];
    plan(&[&args, more].concat())
}

#[test]
fn a_plan_knows_device_memory_and_disk() {
    let mut last = (0.0, 0.0, f64::INFINITY);
    for memory in ["1GiB", "1150MiB", "1300MiB", "1500MiB"] {
        let plan = machine(memory, &["--device", "none"]);
        let tiers = &plan["tiers"];
        let [memory, disk] = ["memory_bytes", "disk_bytes"].map(|key| number(&tiers[key]));
        assert_eq!(memory + disk, number(&plan["host_bytes_needed"]), "{tiers}");
        assert_eq!(tiers["hits_from"], "uniform");
        let (rate, hits) = (number(&plan["tokens_per_second"]), number(&tiers["hits"]));
        assert!(rate > last.0 && hits > last.1 && disk < last.2, "{memory}: {plan}");
        last = (rate, hits, disk);
        // Experts are read after their router, so compute and disk add up.
        let read = number(&tiers["disk_bytes_per_token"]);
        let waits = read / 2e9;
        assert!((number(&plan["seconds_disk"]) / waits - 1.0).abs() < 1e-6, "{plan}");
        assert_eq!(plan["limit"] == "disk", waits > number(&plan["seconds_cpu"]), "{plan}");
        assert!(
            number(&plan["first_token_seconds"]) > number(&tiers["disk_bytes_per_prompt"]) / 2e9
        );
        let more = tiers["with_more"].as_array().unwrap();
        assert_eq!((more.len(), &more[0]["of"]), (1, &json!("RAM")));
        assert!(number(&more[0]["tokens_per_second"]) > rate, "{more:?}");
    }
    let all = machine("16GiB", &["--device", "none"]);
    assert!(all["tiers"]["hits"].is_null() && number(&all["tiers"]["disk_bytes"]) == 0.0, "{all}");
    assert!(number(&all["tokens_per_second"]) > last.0);
    let limited = machine("16GiB", &["--device", "none", "--ram-budget", "1200MiB"]);
    assert!(number(&limited["tiers"]["disk_bytes"]) > 0.0, "{limited}");
    let card = ["--assume", "card,memory=1200MiB,bandwidth=400GB/s,tflops=20"];
    let card = machine("1GiB", &[&card[..], &["--vram-budget", "1GiB"]].concat());
    assert!(number(&card["tiers"]["device_bytes"]) > 3e8, "{card}");
    let named = |plan: &Value, what: &str| {
        let all = plan["tiers"]["with_more"].as_array().unwrap().iter();
        all.filter(|entry| entry["of"] == what)
            .map(|entry| number(&entry["tokens_per_second"]))
            .next()
    };
    assert!(named(&card, "device memory").unwrap() >= number(&card["tokens_per_second"]));
}

#[test]
fn the_text_and_the_plot_show_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plan.svg");
    let cpu = "cpu,memory=1GiB,bandwidth=50GB/s,disk=2GB/s";
    let args = ["plan", "--shape", SPEC, "--assume", cpu, "--device", "none", "-c", "256", "--svg"];
    let output = thermocline(&[&args[..], &[svg.to_str().unwrap()]].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in
        ["is larger than the memory: about", "on disk", "at 2.00 GB/s", "equally often", "of RAM: "]
    {
        assert!(flat.contains(part), "{part:?} is not in {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("read per token") && svg.matches("#b5a642").count() == 2, "{svg}");
}

/// The figures of a plan are those that a run prints.
#[test]
fn a_run_prints_the_figures_of_the_plan() {
    let file = NamedTempFile::new().unwrap();
    fs::write(file.path(), thermocline::embedded::BYTES).unwrap();
    let path = file.path().to_str().unwrap();
    let flags = [
        "-m",
        path,
        "--device",
        "none",
        "-c",
        "96",
        "-ub",
        "32",
        "--ram-budget",
        "74MiB",
        "--repack-cache",
        "off",
    ];
    let cpu = ["--assume", "cpu,bandwidth=5GB/s,disk=1GB/s"];
    let planned = plan(&[&flags[..], &cpu].concat());
    let run = ["run", "-p", "Once", "-n", "1", "--temp", "0", "--no-auto-profile"];
    let output = thermocline(&[&run[..], &flags].concat());
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    let tiers = &planned["tiers"];
    // The number of MiB before these words of the notes.
    let mebibytes = |words: &str| {
        let (before, _) = notes.split_once(words).unwrap_or_else(|| panic!("{notes}"));
        before.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    for (key, words) in [
        ("disk_bytes", " MiB of "),
        ("always_bytes", " MiB are always in memory"),
        ("disk_bytes_per_token", " MiB from disk at"),
    ] {
        let (planned, run) = (number(&tiers[key]) / f64::from(1 << 20), mebibytes(words));
        assert!((planned / run - 1.0).abs() < 0.02, "{key}: {planned} in the plan, in {notes}");
    }
}

/// A config.json with `more` settings, in a folder.
fn config(more: &Value) -> tempfile::TempDir {
    let mut all = json!({
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
        "max_position_embeddings": 512
    });
    for (key, value) in more.as_object().unwrap() {
        all[key] = value.clone();
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), all.to_string()).unwrap();
    folder
}

#[test]
fn shapes_of_each_kind_of_model_are_planned() {
    let experts = json!({
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "n_shared_experts": 1, "first_k_dense_replace": 1
    });
    let with = |more: Value| {
        let mut all = experts.clone();
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    let delta = json!({
        "model_type": "qwen3_5_moe_text", "head_dim": 64, "first_k_dense_replace": 0,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 64,
        "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4
    });
    let latent = json!({
        "model_type": "deepseek_v3", "num_key_value_heads": 8, "q_lora_rank": 64,
        "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32
    });
    let sinks = json!({
        "model_type": "gpt_oss", "sliding_window": 128, "first_k_dense_replace": 0,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    });
    let opt = json!({"model_type": "opt", "ffn_dim": 1024, "activation_function": "relu"});
    let target: Target = "Q4_0".parse().unwrap();
    let class = json!({"model_type": null, "architectures": ["Glm4MoeForCausalLM"]});
    let by_class = convert::shapes(config(&with(class)).path(), target).unwrap();
    assert_eq!(by_class.metadata().str("general.architecture").unwrap(), Some("glm4moe"));
    for (arch, settings) in [
        ("llama", json!({"hidden_act": "relu"})),
        ("opt", opt),
        ("glm4moe", with(json!({"model_type": "glm4_moe"}))),
        ("deepseek2", with(latent)),
        ("qwen35moe", with(delta)),
        ("gpt-oss", with(sinks)),
    ] {
        let folder = config(&settings);
        let file = convert::shapes(folder.path(), target).unwrap();
        assert_eq!(file.metadata().str("general.architecture").unwrap(), Some(arch));
        let model = Model::from_file(file, &ModelOptions::default()).unwrap();
        assert_eq!(model.hyper.n_layer, 4, "{arch}");
        assert_eq!(model.experts().is_some(), !matches!(arch, "llama" | "opt"), "{arch}");
        assert_eq!(model.is_exactly_sparse(), matches!(arch, "llama" | "opt"), "{arch}");
        let planned = plan(&[
            "--shape",
            folder.path().to_str().unwrap(),
            "--shape-type",
            "Q4_0",
            "-c",
            "64",
            "-ub",
            "8",
            "--device",
            "none",
            "--assume",
            "cpu,bandwidth=50GB/s,tflops=1",
        ]);
        assert!(number(&planned["tokens_per_second"]) > 0.0, "{arch}");
    }
}

/// Shapes are those of the file that `convert` and `quantize` make.
#[test]
fn shapes_are_those_of_the_converted_and_quantised_model() {
    let config = |more: Value| {
        let folder = config(&more);
        convert::shapes(folder.path(), "Q4_K_M".parse().unwrap()).unwrap()
    };
    // A Llama of the same sizes, whose tensors and types `quantize` decides from a real file.
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (folder.path().join("in.gguf"), folder.path().join("out.gguf"));
    let mut spec = Spec::parse("256x4x512x8/4:F16:silu").unwrap();
    spec.n_vocab = 1024;
    spec.write(&input, &mut |_, _| true).unwrap();
    let target = "Q4_K_M".parse().unwrap();
    let job = convert::Quantization::new(input, output.clone(), target);
    job.run(&|_, _| std::ops::ControlFlow::Continue(())).unwrap();
    let made = File::open(&output).unwrap();
    let planned = config(json!({}));
    let list = |file: &File| {
        let mut all: Vec<_> = file
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.clone(), tensor.shape.clone(), tensor.ty))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    assert_eq!(list(&planned), list(&made));
}

#[test]
fn models_of_unknown_shape_and_absurd_sizes_are_refused() {
    let refused = |args: &[&str], code, says: &str| {
        let output = thermocline(&[&["plan"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(says), "{says:?} is not in {text}");
    };
    for (settings, says) in [
        (json!({"model_type": "mamba2"}), "known model types: llama"),
        (json!({"model_type": null}), "model type ``"),
        (json!({"hidden_size": 1_000_000}), "at most 65536"),
        (json!({"num_hidden_layers": 100_000}), "at most 1000"),
        (json!({"num_attention_heads": 0}), "num_attention_heads"),
        (json!({"num_key_value_heads": 3}), "a divisor of the 8 heads"),
        (json!({"intermediate_size": 0}), "intermediate_size"),
        (json!({"model_type": "deepseek_v3"}), "kv_lora_rank"),
        (json!({"model_type": "qwen3_moe", "num_experts": 9}), "num_experts_per_tok"),
        (json!({"layer_types": ["full_attention"]}), "4 entries"),
    ] {
        let folder = config(&settings);
        refused(&["--shape", folder.path().to_str().unwrap()], 3, says);
    }
    refused(&["--shape", "no/such/file"], 2, "no file has this name");
    refused(&["--shape", "7b:Q4_0:relu", "--shape-type", "Q8_0"], 2, "part of");
    refused(&["--shape", "7b:Q4_0:relu", "-m", "x.gguf"], 2, "--shape");
    refused(&["--assume", "card,memory=1GiB,disk=3GB/s"], 2, "a device has no disk");
}
