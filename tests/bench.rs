//! The formats of the reports of `thermocline bench`. No test depends on speed.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::packed::families;

/// A synthetic model that is small enough to be made and run quickly.
const SHAPE: &str = "64x2x128x4/2:Q8_0";

const LLAMA_BENCH: &[&str] = &[
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "cpu_mask",
    "cpu_strict",
    "poll",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_cpu_moe",
    "split_mode",
    "main_gpu",
    "no_kv_offload",
    "flash_attn",
    "devices",
    "tensor_split",
    "tensor_buft_overrides",
    "use_mmap",
    "use_direct_io",
    "embeddings",
    "no_op_offload",
    "no_host",
    "fit_target",
    "fit_min_ctx",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
];

/// The backend, and a probe of the memory bandwidth that takes little time.
const ENVIRONMENT: [(&str, &str); 2] =
    [("THERMOCLINE_ARG_BACKEND", "cpu"), ("THERMOCLINE_ARG_PROBE_SIZE", "16")];

fn bench(activation: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let model = format!("{SHAPE}:{activation}");
    command.env_clear().envs(ENVIRONMENT);
    command.args(["bench", "--synthetic", &model, "-t", "1"]).args(args);
    command.stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// Splits a line at commas outside of quotes, and removes the quotes.
fn values(line: &str, quote: char) -> Vec<String> {
    let (mut values, mut quoted) = (vec![String::new()], false);
    for c in line.chars() {
        match c {
            c if c == quote => quoted = !quoted,
            ',' if !quoted => values.push(String::new()),
            c => values.last_mut().unwrap().push(c),
        }
    }
    assert!(!quoted, "a quote is open: {line}");
    values
}

#[test]
fn json_begins_with_llama_benchs_columns_and_has_a_row_per_combination() {
    let args = ["-p", "3,5", "-n", "2", "-pg", "2,1", "-d", "0,4", "-ub", "2,4", "-r", "2"];
    let output = bench("relu", &[&args[..], &["-o", "json", "-oe", "jsonl"]].concat());
    let rows: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
    let tests: Vec<_> = rows
        .iter()
        .map(|r| ["n_ubatch", "n_depth", "n_prompt", "n_gen"].map(|k| r[k].as_u64().unwrap()))
        .collect();
    let mut expected = Vec::new();
    for n_ubatch in [2, 4] {
        for n_depth in [0, 4] {
            for [n_prompt, n_gen] in [[3, 0], [5, 0], [0, 2], [2, 1]] {
                expected.push([n_ubatch, n_depth, n_prompt, n_gen]);
            }
        }
    }
    assert_eq!(tests, expected);
    for row in &rows {
        let names: Vec<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(&names[..LLAMA_BENCH.len()], LLAMA_BENCH);
        assert_eq!(&names[names.len() - 2..], ["samples_ns", "samples_ts"]);
        assert_eq!(row["samples_ns"].as_array().unwrap().len(), 2);
        assert!(row["avg_ts"].as_f64().unwrap() > 0.0);
        assert_eq!(row["placement"], "sparse");
        assert_eq!(row["synthetic"], true);
        assert_eq!(row["hot_fraction"], Value::Null);
        assert!(row["load_ns"].as_u64().unwrap() > 0);
        let density = row["density"].as_f64().unwrap();
        assert!(density > 0.0 && density < 1.0, "{density}");
        let generates_only = row["n_prompt"] == 0;
        assert_eq!(row["bytes_per_token"].is_u64(), generates_only);
        assert_eq!(row["bandwidth_share"].is_f64(), generates_only);
        assert_eq!(row["ttft_ns"].is_u64(), !generates_only);
    }
    // Standard error has the same rows, one per line, between the notes.
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<Value> = stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines, rows);
}

#[test]
fn rows_state_the_requested_overrides() {
    let args = ["-p", "2", "-n", "0", "-r", "1", "-o", "jsonl", "-ub", "1,2"];
    let output = bench("relu", &[&args[..], &["-ncmoe", "3", "-ot", "no_such=CPU"]].concat());
    let rows: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert_eq!(row["n_cpu_moe"], 3);
        assert_eq!(row["tensor_buft_overrides"], "no_such=CPU");
    }
    let notes = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(notes.matches("no tensor of the model matches 'no_such=CPU'").count(), 1, "{notes}");
    let output = bench("relu", &[&args[..], &["-cmoe"]].concat());
    let row: Value = serde_json::from_str(stdout(&output).lines().next().unwrap()).unwrap();
    assert_eq!(row["n_cpu_moe"], 2, "the number of layers");
    assert!(String::from_utf8_lossy(&output.stderr).contains("the model has no experts"));
}

#[test]
fn skipped_neurons_reduce_bytes_per_token() {
    let bytes = |args: &[&str]| {
        let args = [&["-p", "0", "-n", "2", "-r", "1", "-o", "jsonl"], args].concat();
        let row: Value = serde_json::from_str(stdout(&bench("relu", &args)).trim()).unwrap();
        let n = row["bytes_per_token"].as_f64().unwrap();
        (n, row["density"].as_f64().unwrap(), row["model_size"].as_f64().unwrap())
    };
    let (sparse, density, size) = bytes(&[]);
    let (dense, all, _) = bytes(&["--sparsity", "off"]);
    let (deep, ..) = bytes(&["--sparsity", "off", "-d", "100"]);
    assert!(density < all && all == 1.0, "{density} {all}");
    assert!(sparse < dense && dense < size, "{sparse} {dense} {size}");
    // Each of the 100 positions has two F16 vectors of 32 values in each of the two layers.
    assert_eq!(deep - dense, 100.0 * 2.0 * 2.0 * 32.0 * 2.0);
}

/// These models have layers without neurons, without a mixer or without attention. One has no
/// neurons at all.
#[test]
fn recurrent_models_are_measured() {
    for (name, has_neurons) in
        [("mamba2", false), ("granitehybrid-moe", true), ("nemotron_h", true), ("lfm2", true)]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().envs(ENVIRONMENT);
        let model = families().join(format!("{name}.gguf"));
        command.arg("bench").arg("-m").arg(model);
        command.args(["-t", "1", "-p", "0", "-n", "8", "-r", "1"]);
        let output = command.args(["-o", "json"]).stdin(Stdio::null()).output().unwrap();
        let rows: Vec<Value> = serde_json::from_str(&stdout(&output)).unwrap();
        let [row] = &rows[..] else { panic!("{name}: {rows:?}") };
        let density = row["density"].as_f64();
        assert_eq!(density.is_some_and(|density| density > 0.0), has_neurons, "{name}: {row}");
        let [bytes, size] = ["bytes_per_token", "model_size"].map(|key| row[key].as_f64().unwrap());
        assert!(bytes > 0.5 * size && bytes < 3.0 * size, "{name}: {bytes} of {size}");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!stderr.contains("plain loops on one thread"), "{name}: {stderr}");
        assert_eq!(stderr.contains("no neurons to skip"), !has_neurons, "{name}: {stderr}");
    }
}

#[test]
fn the_table_has_llama_benchs_titles_and_ours() {
    let args = ["-p", "4", "-n", "2", "-d", "3", "-r", "2", "-ctk", "f32", "-ctv", "f32"];
    let text = stdout(&bench("silu", &args));
    let lines: Vec<&str> = text.lines().collect();
    let titles = cells(lines[0]);
    let expected = [
        "model",
        "size",
        "params",
        "backend",
        "threads",
        "type_k",
        "type_v",
        "test",
        "t/s",
        "density",
        "MB/token",
        "bandwidth",
    ];
    assert_eq!(titles, expected);
    assert!(
        cells(lines[1]).iter().all(|rule| rule.trim_end_matches(':').trim_matches('-').is_empty())
    );
    let tests: Vec<_> = lines[2..4].iter().map(|line| cells(line)).collect();
    for (row, name) in tests.iter().zip(["pp4 @ d3", "tg2 @ d3"]) {
        assert!(row[0].starts_with("llama ") && row[0].ends_with("Q8_0 synthetic"), "{row:?}");
        assert_eq!(row[3..8], ["CPU", "1", "f32", "f32", name]);
        assert!(
            row[8]
                .split_once(" ± ")
                .is_some_and(|(a, b)| a.parse::<f64>().is_ok() && b.parse::<f64>().is_ok())
        );
        assert_eq!(row[9], "100.0%");
    }
    assert_eq!(tests[0][10..], ["", ""]);
    assert!(tests[1][10].parse::<f64>().unwrap() > 0.0);
    assert!(lines.last().unwrap().starts_with("build: thermocline-"));
    let widths: Vec<_> = lines[..4].iter().map(|line| line.chars().count()).collect();
    assert!(widths.iter().all(|w| *w == widths[0]), "{widths:?}");
}

#[test]
fn csv_and_sql_hold_as_many_values_as_names() {
    let args = ["-p", "3", "-n", "2", "-r", "1", "-o", "csv", "-oe", "sql"];
    let output = bench("relu", &args);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    let names: Vec<&str> = lines[0].split(',').collect();
    assert_eq!(&names[..LLAMA_BENCH.len()], LLAMA_BENCH);
    assert_eq!(lines.len(), 3);
    for line in &lines[1..] {
        assert_eq!(values(line, '"').len(), names.len());
        assert!(line.starts_with('"') && line.ends_with('"'));
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let sql = &stderr[stderr.find("CREATE TABLE IF NOT EXISTS llama_bench (\n").unwrap()..];
    let (create, inserts) = sql.split_once("\n);\n\n").unwrap();
    let columns: Vec<&str> = create.lines().skip(1).collect();
    assert_eq!(columns.len(), names.len());
    for (column, name) in columns.iter().zip(&names) {
        let (found, kind) = column.trim().trim_end_matches(',').split_once(' ').unwrap();
        assert!(found == *name && ["TEXT", "INTEGER", "REAL"].contains(&kind), "{column}");
    }
    let inserts: Vec<&str> = inserts.lines().filter(|line| line.starts_with("INSERT")).collect();
    assert_eq!(inserts.len(), 2);
    for insert in inserts {
        let (into, row) = insert.split_once(") VALUES (").unwrap();
        assert_eq!(into, format!("INSERT INTO llama_bench ({}", names.join(", ")));
        assert_eq!(values(row.strip_suffix(");").unwrap(), '\'').len(), names.len());
    }
}

#[test]
fn a_written_model_is_kept_and_can_be_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let path = path.to_str().unwrap();
    let only_write = bench("relu", &["-p", "0", "-n", "0", "--write", path]);
    assert_eq!(stdout(&only_write), "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().envs(ENVIRONMENT);
    command.args(["bench", "-m", path, "-p", "2", "-n", "0", "-r", "1"]);
    let prompt = folder.path().join("prompt.txt");
    std::fs::write(&prompt, "One two three.").unwrap();
    command.args(["--prompt-file", prompt.to_str().unwrap(), "-o", "jsonl", "--no-warmup"]);
    let row: Value = serde_json::from_str(stdout(&command.output().unwrap()).trim()).unwrap();
    assert_eq!(row["model_filename"], path);
    assert_eq!(row["synthetic"], true);
    assert_eq!(row["prompt_file"], prompt.to_str().unwrap());
}

#[test]
fn invalid_runs_are_rejected_before_any_output() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.txt");
    std::fs::write(&empty, "").unwrap();
    let cases: [(&[&str], i32, &str); 4] = [
        (&["-p", "0", "-n", "0"], 2, "nothing to measure"),
        (&["-p", "4", "--prompt-file", empty.to_str().unwrap()], 2, "contains no token"),
        (&["-p", "4", "-ctk", "q8_0"], 2, "heads of 16 values"),
        (&["-p", "4000000000", "-n", "0", "-d", "4000000000"], 2, "longer than any context"),
    ];
    for (args, code, says) in cases {
        let output = bench("relu", args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.contains(says) && !stderr.contains("panicked"), "{stderr}");
        assert!(output.stdout.is_empty());
    }
    let unknown = Command::new(env!("CARGO_BIN_EXE_thermocline"))
        .args(["bench", "--synthetic", "huge:Q8_0:relu"])
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

/// `bench` reports a missing backend, with a hint, before it measures. Other commands reject a list
/// of backends.
#[test]
fn a_comparison_with_a_missing_backend_does_not_start() {
    let hidden = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().env("VK_DRIVER_FILES", "/nowhere").args(args);
        command.stdin(Stdio::null()).output().unwrap()
    };
    let args = ["-p", "2", "-n", "2", "-r", "1", "--synthetic", "64x2x128x4/2:Q8_0:relu"];
    if cfg!(target_os = "linux") {
        let output = hidden(&[&["bench", "--backend", "cpu,wgpu"], &args[..]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(5), "{stderr}");
        assert!(output.stdout.is_empty() && stderr.contains("help: "), "{stderr}");
        // Without a device, all budgets give the same run.
        let budgets = ["bench", "-o", "jsonl", "--vram-budget", "1,2,3"];
        let output = hidden(&[&budgets[..], &args].concat());
        assert_eq!(stdout(&output).lines().count(), 2);
        // Budgets of memory matter without one.
        let budgets = ["bench", "-p", "0", "-n", "2", "-r", "1", "--ram-budget=-1,1GiB"];
        let rows = stdout(&hidden(&budgets));
        assert!(rows.contains("RAM 1.00 GiB") && rows.matches("tg2").count() == 2, "{rows}");
    }
    for (args, says) in [
        (&["run", "--backend", "cpu,wgpu"][..], "takes several names"),
        (&["bench", "--backend", "cpu", "--check"], "--check needs at least two configurations"),
    ] {
        let output = hidden(args);
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(says), "{stderr}");
    }
}

/// A device other than the CPU, which may be the software driver, and whether it reports the size
/// of its memory.
fn device() -> Option<(String, bool)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    let listed = command.args(["devices", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let devices = listed["devices"].as_array().into_iter().flatten();
    let known = |device: &Value| {
        (device["name"].as_str().unwrap().to_owned(), device["memory"]["total"].is_u64())
    };
    let found = devices.map(known).find(|(name, _)| name != "CPU");
    if found.is_none() {
        println!("skipped: the CPU is the only device");
    }
    found
}

#[test]
fn backends_and_budgets_are_compared() {
    let Some((device, _)) = device() else { return };
    let device = device.as_str();
    let folder = tempfile::tempdir().unwrap();
    let [plot, trace] = ["plot.svg", "trace.json"].map(|name| folder.path().join(name));
    let args = ["-p", "40", "-n", "3", "-r", "1", "--backend", "cpu,wgpu", "--device", device];
    let more = ["-ngl", "all", "--vram-budget", "1GiB,2GiB", "--check", "-o", "jsonl", "-oe", "md"];
    let files = ["--plot", plot.to_str().unwrap(), "--trace", trace.to_str().unwrap()];
    let output = bench("relu", &[&args[..], &more, &files].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(stderr.matches("is the same at 41 of 41 positions").count(), 2, "{stderr}");
    let rows: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let column = |name: &str| rows.iter().map(|row| row[name].clone()).collect::<Vec<_>>();
    let both = format!("CPU,{device}");
    assert_eq!(column("backends"), ["CPU", "CPU", &both, &both, &both, &both]);
    let gib = |n: u64| Value::from(n << 30);
    let budgets = column("vram_budget_bytes");
    assert_eq!(budgets[..2], [Value::Null, Value::Null]);
    assert_eq!(budgets[2..], [gib(1), gib(1), gib(2), gib(2)]);
    for (row, bytes) in rows.iter().zip(column("device_bytes")) {
        let on_device = row["backends"] != "CPU";
        assert_eq!(bytes.as_str().unwrap().contains(&format!("{device}=")), on_device);
        assert_eq!(row["backend_api"], if on_device { "wgpu" } else { "cpu" });
        assert_eq!(row["logit_difference"].is_f64(), on_device);
        assert!(row["logit_difference"].as_f64().unwrap_or(0.0) < 8e-2, "{row}");
    }
    let header = stderr.lines().find(|line| line.starts_with("| model")).unwrap();
    for title in ["budget", "memory by device", "hot", "CPU waited", "first token", "logits differ"]
    {
        assert!(cells(header).contains(&title), "{header}");
    }
    let picture = std::fs::read_to_string(&plot).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    for says in ["pp40: tokens per second", "tg3: tokens per second", "memory by device", device] {
        assert!(picture.contains(says), "{says}");
    }
    let trace: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|e| e["name"] == "layer 1 neurons" && e["tid"] == 1), "{trace}");
    assert!(trace["otherData"]["clocks"][device].is_string());
}

#[test]
fn equivalent_budgets_are_measured_once() {
    let Some((device, reports_memory)) = device() else { return };
    let run = |more: &[&str]| {
        let args = ["--backend", "wgpu", "--device", &device, "-p", "2", "-n", "0", "-r", "1"];
        let output = bench("relu", &[&args[..], &["-o", "jsonl"], more].concat());
        let [rows, notes] = [&output.stdout, &output.stderr]
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        (output.status.code(), rows, notes)
    };
    if reports_memory {
        let (code, rows, notes) = run(&["--vram-budget", "90TiB,91TiB", "-ngl", "all", "--check"]);
        assert_eq!((code, rows.lines().count()), (Some(1), 1), "{notes}");
        assert!(
            notes.contains("skipping a budget") && notes.contains("had nothing to compare"),
            "{notes}"
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let (code, rows, notes) = run(&["--vram-budget", "1MiB", "--plot", plot.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{notes}");
    let row: Value = serde_json::from_str(rows.trim()).unwrap();
    assert_eq!((&row["vram_budget_bytes"], &row["backends"]), (&(1 << 20).into(), &"CPU".into()));
    let label = format!("CPU, nothing on {device} within 1.00 MiB");
    assert!(std::fs::read_to_string(&plot).unwrap().contains(&label));
}
