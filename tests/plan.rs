//! `plan`, `devices` and `doctor` as users see them, for assumed devices.

use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hal::format::Format;
use hal::{Bytes, Device, DeviceId};
use serde_json::Value;
use sim::{SimBackend, SimOptions};
use thermocline::bench::{Shape, speed};

const MIB: u64 = 1 << 20;

fn thermocline(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
    command.env_clear().args(args).stdin(Stdio::null()).output().unwrap()
}

/// The plan of the built-in model with a card of `memory` bytes and these flags.
#[track_caller]
fn plan(memory: u64, more: &[&str]) -> Value {
    let card = format!("card,memory={memory}B,bandwidth=500GB/s,hand-off=0us,op=0us");
    let args = ["plan", "--json", "--assume", &card, "--assume", "cpu,bandwidth=5GB/s", "-c", "64"];
    let output = thermocline(&[&args, more].concat());
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Checks that the items of each device's memory, the CPU's included, add up to its total, and
/// those of its layers to the items.
#[track_caller]
fn columns_add_up(plan: &Value) {
    let sum =
        |value: &Value, keys: &[&str]| keys.iter().map(|key| number(&value[*key])).sum::<u64>();
    let parts =
        ["attention", "cache", "neurons", "hand_offs", "embedding", "head", "scratch", "driver"];
    let layers = plan["layers"].as_array().unwrap();
    for (i, device) in plan["devices"].as_array().unwrap().iter().enumerate() {
        assert_eq!(number(&device["used"]), sum(device, &parts), "{device}");
        let here = layers.iter().filter(|layer| layer["home"] == device["name"]);
        let mut neurons: u64 = here.clone().map(|layer| number(&layer["neuron_bytes"])).sum();
        if i == 0 {
            neurons += layers.iter().map(|layer| number(&layer["cpu_neuron_bytes"])).sum::<u64>();
        }
        assert_eq!(number(&device["neurons"]), neurons, "{device}");
        let cache: u64 = here.map(|layer| number(&layer["cache_bytes"])).sum();
        assert_eq!(number(&device["cache"]), cache, "{device}");
        if let Some(unused) = device["unused"].as_u64() {
            assert_eq!(unused + number(&device["used"]), number(&device["budget"]));
            assert!(device["unused_because"].is_string());
        }
    }
    for layer in layers {
        assert!(number(&layer["attention_bytes"]) > 0 && number(&layer["cache_bytes"]) > 0);
        assert_eq!(number(&layer["cpu_neuron_bytes"]) > 0, layer["kind"] == "split", "{layer}");
    }
}

#[test]
fn more_memory_is_used_and_is_never_slower() {
    let (mut last, mut kinds) = (0.0, std::collections::BTreeSet::new());
    for step in 0..=8 {
        let budget = format!("{}MiB", 64 + 2 * step);
        let plan = plan(1 << 30, &["--vram-budget", &budget, "-ub", "4"]);
        let card = &plan["devices"][1];
        assert!(number(&card["used"]) <= number(&card["budget"]), "{card}");
        columns_add_up(&plan);
        let rate = plan["tokens_per_second"].as_f64().unwrap();
        assert!(rate >= last * (1.0 - 1e-9), "{rate} after {last}");
        let whole = plan["alternatives"]["whole_layers"]["tokens_per_second"].as_f64().unwrap();
        assert!(rate >= whole * (1.0 - 1e-9));
        last = rate;
        for layer in plan["layers"].as_array().unwrap() {
            kinds.insert(layer["kind"].as_str().unwrap().to_owned());
            let neurons: u64 = layer["neurons"].as_object().unwrap().values().map(number).sum();
            assert_eq!(neurons, number(&plan["n_ff"]), "no neuron is lost or doubled");
        }
        assert!(!plan["why"].as_array().unwrap().is_empty());
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["cpu", "device", "split"]);
}

/// The reported budget includes the driver's reserve.
#[test]
fn the_reported_sufficient_budget_is_sufficient() {
    for more in [&["-ub", "4"][..], &["-ub", "64"]] {
        let within = |budget: &str| plan(1 << 30, &[&["--vram-budget", budget], more].concat());
        let little = within("70MiB");
        let rate = |value: &Value| value["tokens_per_second"].as_f64().unwrap();
        let all = &little["alternatives"]["no_limit"];
        assert!(rate(all) > rate(&little));
        let enough = within(&format!("{}B", number(&all["device_bytes"])));
        assert!((rate(&enough) / rate(all) - 1.0).abs() < 1e-9, "{enough}");
        let card = &enough["devices"][1];
        assert_eq!(card["used"], card["budget"]);
        let why = little["why"].to_string();
        let size = why.split_once(" of device memory").unwrap().0;
        let size = size.rsplit_once("with ").unwrap().1;
        assert!((rate(&within(size)) / rate(all) - 1.0).abs() < 1e-9, "{size}");
    }
}

#[test]
fn the_plan_lists_the_memory_of_exchanges() {
    let n_split = |plan: &Value| {
        let layers = plan["layers"].as_array().unwrap().iter();
        layers.filter(|layer| layer["kind"] == "split").count() as u64
    };
    let within = |mebibytes: u64, more: &[&str]| {
        let budget = format!("{mebibytes}MiB");
        plan(1 << 30, &[&["--vram-budget", &budget, "-ub", "4"], more].concat())
    };
    let mut plans = (64..80).map(|mebibytes| (mebibytes, within(mebibytes, &[])));
    let (budget, follows) = plans.find(|(_, plan)| n_split(plan) > 0).unwrap();
    let fixed = within(budget, &["--no-adapt"]);
    let [n_layer, n_ff] = ["n_layer", "n_ff"].map(|key| number(&follows[key]));
    let needs = &follows["exchange"];
    assert_eq!(number(&needs["layers"]), n_split(&follows), "{needs}");
    assert!(number(&needs["neurons_at_once"]) > 0 && number(&needs["host_bytes"]) > 0);
    assert_eq!(number(&needs["counter_bytes"]), 4 * n_layer * n_ff);
    assert!(fixed["exchange"].is_null());
    let scratch = |plan: &Value| number(&plan["devices"][1]["scratch"]);
    assert!(scratch(&follows) >= scratch(&fixed) + number(&needs["counter_bytes"]));
}

/// The built-in model is small, so hand-offs of a millisecond make every split layer slower.
#[test]
fn policies_place_more_than_the_planner_would_and_the_note_says_what_it_costs() {
    let card = format!("card,memory={}B,bandwidth=500GB/s,hand-off=1ms,op=0us", 1 << 30);
    let plan = |more: &[&str]| {
        let args = ["plan", "--json", "--assume", &card, "--assume", "cpu,bandwidth=5GB/s"];
        let budget = ["-c", "64", "-ub", "4", "--vram-budget", "70MiB"];
        let output = thermocline(&[&args, &budget[..], more].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        columns_add_up(&plan);
        plan
    };
    let kinds = |plan: &Value, kind: &str| {
        let layers = plan["layers"].as_array().unwrap().iter();
        layers.filter(|layer| layer["kind"] == kind).count()
    };
    let rate = |plan: &Value| plan["tokens_per_second"].as_f64().unwrap();
    let fastest = plan(&[]);
    let fill = plan(&["--placement", "fill"]);
    let layers = plan(&["--placement", "layers"]);
    let n_layer = usize::try_from(number(&fill["n_layer"])).unwrap();
    assert_eq!((kinds(&fastest, "split"), kinds(&fill, "split")), (0, n_layer));
    assert!(kinds(&layers, "split") == 0 && kinds(&layers, "device") > 0, "{layers}");
    assert!(rate(&fill) < rate(&fastest));
    let note = format!(
        "tokens/s by the estimate, {:.0} % fewer",
        100.0 * (1.0 - rate(&fill) / rate(&fastest))
    );
    assert!(fill["notes"].to_string().contains(&note), "{note}: {}", fill["notes"]);
    assert!(!fastest["notes"].to_string().contains("by the estimate"), "{}", fastest["notes"]);
    let card = &fill["devices"][1];
    assert!(number(&card["used"]) > number(&card["budget"]) * 99 / 100, "{card}");
}

#[test]
fn overrides_of_tensors_are_rules_of_the_plan() {
    let homes = |more: &[&str]| {
        let plan = plan(1 << 30, more);
        let layers = plan["layers"].as_array().unwrap().iter();
        layers.map(|layer| layer["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let kinds = homes(&["-ngl", "99", "-ot", r"blk\.[01]\.ffn_=CPU,blk\.2\.=CPU"]);
    assert_eq!(kinds[..4], ["split", "split", "cpu", "device"]);
    let kinds = homes(&["-ot", r"blk\.1\.=card", "-ot", "ffn_=CPU"]);
    assert_eq!(kinds[1], "device", "{kinds:?}");
    assert!(kinds.iter().filter(|kind| *kind == "device").count() == 1, "{kinds:?}");
    assert_eq!(homes(&["-cmoe", "-ncmoe", "3"]), homes(&[]), "the built-in model has no experts");
    let refused = thermocline(&["plan", "--assume", "card,memory=8GiB", "-ot", "ffn_up=CPU"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2), "{text}");
    assert!(text.contains(r"write blk\.0\.ffn_=CPU"), "{text}");
}

#[test]
fn only_bench_takes_several_policies() {
    let output = thermocline(&["plan", "--placement", "fill,layers"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("--placement has several"), "{text}");
    let output = thermocline(&["plan", "--placement", "hottest"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && text.contains("fastest, fill, layers"), "{text}");
}

/// For split layers the plan reports the minimum number of tokens for which weights are streamed,
/// or why they are not.
#[test]
fn prefill_streams_where_it_is_faster() {
    let within = |mebibytes: u64, batch: &str| {
        let budget = format!("{mebibytes}MiB");
        plan(1 << 30, &["--vram-budget", &budget, "-ub", batch])
    };
    let rate = |prompt: &Value, key: &str| prompt[key].as_f64().unwrap();
    let mut from = std::collections::BTreeSet::new();
    for mebibytes in 64..80 {
        let plan = within(mebibytes, "64");
        let (prompt, card) = (&plan["prompt"], &plan["devices"][1]);
        let lines = prompt["lines"].to_string();
        assert!(number(&card["used"]) <= number(&card["budget"]), "{card}");
        assert!(rate(prompt, "tokens_per_second") >= rate(prompt, "cpu_alone_tokens_per_second"));
        assert!(rate(prompt, "whole_layers_tokens_per_second") > 0.0);
        match prompt["streams"][0]["from_tokens"].as_u64() {
            Some(n) => {
                from.insert(n);
                assert!(lines.contains(&format!(
                    "from {n} tokens on, weights on the CPU are streamed to card"
                )));
                assert!(number(&prompt["streams"][0]["slot_bytes"]) < number(&card["scratch"]));
            }
            None => assert!(!lines.contains("are streamed to card in chunks of"), "{lines}"),
        }
        let few = within(mebibytes, "16");
        assert!(few["prompt"]["streams"][0]["from_tokens"].is_null(), "short steps use hand-offs");
        let split = few["layers"].as_array().unwrap().iter().any(|layer| layer["kind"] == "split");
        let why =
            few["prompt"]["lines"].to_string().contains("weights on the CPU are not streamed");
        assert_eq!(split, why);
    }
    assert_eq!(from.into_iter().collect::<Vec<_>>(), [32]);
}

#[test]
fn prefill_is_at_least_as_fast_as_with_whole_layers() {
    let mut paid = 0;
    for kibibytes in (72 << 10..84 << 10).step_by(512) {
        let budget = format!("{kibibytes}KiB");
        // With a long KV cache and few active neurons, the best placements for decode and prefill
        // differ.
        let args = ["plan", "--json", "-c", "4096", "-ub", "16", "--density", "0.06"];
        let card = "card,memory=1GiB,bandwidth=500GB/s,hand-off=0us,op=0us";
        let assume = ["--assume", card, "--assume", "cpu,bandwidth=5GB/s"];
        let output = thermocline(&[&args[..], &assume, &["--vram-budget", &budget]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (prompt, others) = (&plan["prompt"], &plan["alternatives"]);
        let rate = |value: &Value, key: &str| value[key].as_f64().unwrap();
        let [mine, whole, fastest] = ["", "whole_layers_", "fastest_tokens_"]
            .map(|name| rate(prompt, &format!("{name}tokens_per_second")));
        assert!(mine >= whole * (1.0 - 1e-9), "{budget}: {prompt}");
        let [whole, most] =
            ["whole_layers", "fastest_tokens"].map(|name| rate(&others[name], "tokens_per_second"));
        let tokens = rate(&plan, "tokens_per_second");
        assert!(tokens >= whole * (1.0 - 1e-9) && tokens <= most * (1.0 + 1e-9), "{budget}");
        let says = prompt["lines"].to_string().contains("slower than possible, for faster prefill");
        assert_eq!(says, !prompt["token_seconds_paid"].is_null());
        assert!(!says || (mine > fastest && tokens < most), "{budget}: {prompt}");
        paid += usize::from(says);
    }
    assert!(paid > 0, "in some plan decode is slower for faster prefill");
}

#[test]
fn prefill_speeds_are_given_or_assumed() {
    let plan = |card: &str| -> Value {
        let args = ["plan", "--json", "--assume", card, "--assume", "cpu,bandwidth=5GB/s,tflops=1"];
        let output = thermocline(&args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let speed = |plan: &Value, key: &str| plan["devices"][1][key].as_f64().unwrap();
    let card = plan("card,memory=1GiB,tflops=40,upload=12GB/s");
    // The built-in model has two bytes per weight.
    assert!((speed(&card, "prompt_bytes_per_second") / 40e12 - 1.0).abs() < 1e-9);
    assert!((speed(&card, "upload_bytes_per_second") / 12e9 - 1.0).abs() < 1e-9);
    assert!(!card["notes"].to_string().contains("tflops"), "{}", card["notes"]);
    let guessed = plan("card,memory=1GiB");
    assert!(speed(&guessed, "prompt_bytes_per_second") > 0.0);
    let notes = guessed["notes"].to_string();
    assert!(notes.contains("card multiplies at") && notes.contains("(upload)"), "{notes}");
}

#[test]
fn flags_constrain_the_plan() {
    let homes = |flags: &[&str]| -> Vec<String> {
        let plan = plan(1 << 30, flags);
        let layers = plan["layers"].as_array().unwrap().iter();
        layers.map(|layer| layer["kind"].as_str().unwrap().to_owned()).collect()
    };
    let all = homes(&[]);
    assert!(all.iter().all(|kind| kind == "device"), "{all:?}");
    let two = homes(&["-ngl", "2"]);
    assert_eq!(two.iter().filter(|kind| *kind == "device").count(), 2);
    assert!(two.ends_with(&["device".to_owned(), "device".to_owned()]));
    assert!(homes(&["-nkvo"]).iter().all(|kind| kind == "cpu"));
    let head = |flags: &[&str]| plan(1 << 30, flags)["head"].as_str().unwrap().to_owned();
    assert_eq!((head(&["-nkvo"]), head(&["-ngl", "99", "-nkvo"])), ("card".into(), "card".into()));
    let neither = plan(1 << 30, &["-ngl", "2", "--disable-gpu-index"]);
    assert_eq!(neither["layers"], plan(1 << 30, &["--disable-gpu-index"])["layers"]);
    assert_eq!(plan(1 << 30, &["--device", "none"])["devices"].as_array().unwrap().len(), 1);
    let more = plan(1 << 30, &["--vram-budget", "9GiB"]);
    assert_eq!(number(&more["devices"][1]["budget"]), 1 << 30, "at most the device memory");
    assert!(homes(&["--disable-gpu-index"]).iter().all(|kind| kind != "device"));
    assert!(homes(&["--vram-budget", "0"]).iter().all(|kind| kind == "cpu"));
    let half = plan(1 << 30, &["--vram-budget", "50%"]);
    assert_eq!(number(&half["devices"][1]["budget"]), 512 * MIB);
}

#[test]
fn the_plan_is_printed_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.svg");
    let card = "ca<\u{ffff}rd,memory=1GiB,bandwidth=500GB/s,hand-off=0us,op=0us";
    let args =
        ["plan", "--assume", card, "--assume", "cpu,bandwidth=5GB/s", "-c", "64", "-ub", "4"];
    let more = ["--vram-budget", "70MiB", "--svg", path.to_str().unwrap()];
    let output = thermocline(&[&args[..], &more].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in ["tokens/s", "why: ", "layers", "ca<"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    let answer = text.lines().next().unwrap();
    assert!(answer.contains(" fits: about ") && answer.ends_with("tokens/s expected"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(svg.contains("ca&lt;?rd") && !svg.contains("ca<"));
    for part in ["not to scale", "ms per token", env!("CARGO_PKG_VERSION")] {
        assert!(svg.contains(part), "{part:?} is not in the plot");
    }
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("the plot is in '"), "{told}");
    // The legend and the bars have the card's colour and the CPU's.
    assert!(svg.matches("#d9822b").count() > 2 && svg.matches("#8aa1b8").count() > 2, "{svg}");
    assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
}

#[test]
fn invalid_plan_arguments_are_rejected() {
    let failure = |args: &[&str], code, says: &str| {
        let output = thermocline(&[&["plan"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(says), "{says:?} is not in {text}");
        assert!(code != 2 || !text.contains("note: "), "{text}");
    };
    failure(
        &["--assume", "a,memory=1GiB", "--vram-budget", "8,4"],
        2,
        "2 memory budgets for 1 device",
    );
    failure(&["--assume", "card"], 2, "has no memory");
    failure(&["--assume", "card,memory=lots"], 2, "not a memory size");
    failure(&["--assume", "a,b,memory=1GiB"], 2, "two names of one device");
    failure(&["--assume", "memory=1GiB,memory=2GiB"], 2, "given twice");
    failure(&["--assume", "memory=20MiB"], 2, "512.00 MiB are left free");
    failure(&["--assume", "memory=1GiB", "--vram-budget", "200%"], 2, "0% to 100%");
    failure(&["--assume", "memory=1GiB,speed=9"], 2, "not one of memory");
    failure(&["--assume", "memory=1GiB,tflops=0"], 2, "not a number of operations");
    failure(&["--density", "0"], 2, "not a fraction");
    failure(&["--assume", "a,memory=1GiB", "--main-gpu", "7"], 5, "no device number 7");
    failure(&["--assume", "a,memory=1GiB", "--device", "a,A"], 2, "twice");
    failure(&["--assume", "cpu,op=1us", "--assume", "CPU,op=2us"], 2, "cpu may be given only once");
    failure(
        &["--assume", "a,memory=1GiB", "--vram-budget", "1,2"],
        2,
        "2 memory budgets for 1 device",
    );
    failure(&["-m", "gone.gguf"], 3, "gone.gguf");
    failure(
        &["--svg", "gone/x.svg", "--assume", "memory=1GiB", "--assume", "cpu,bandwidth=5"],
        1,
        "cannot write",
    );
}

#[test]
fn devices_and_doctor_report() {
    let listed = thermocline(&["devices"]);
    assert!(listed.status.success());
    assert!(String::from_utf8_lossy(&listed.stdout).starts_with("CPU: "));
    let listed = thermocline(&["devices", "--json"]);
    let report: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert!(number(&report["cpu"]["threads"]) > 0);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let switches = ["--device-options", "subgroups=off,CUDA0:graphs=off"];
    let arguments = ["doctor", "--json", "-t", "1", "--report", file.to_str().unwrap()];
    let doctor = thermocline(&[&arguments[..], &switches].concat());
    let report: Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let sent: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(sent["devices"], report["devices"]);
    assert_eq!(sent["device_options"], "all:subgroups=off,CUDA0:graphs=off");
    assert_eq!(sent["system"]["os"], std::env::consts::OS);
    assert!(sent["program"]["build"].as_str().unwrap().contains("backends: cpu"), "{sent}");
    let cpu = &report["devices"][0];
    assert!(cpu["bytes_per_second"].as_f64().unwrap() > 0.0, "{cpu}");
    assert!(cpu["read_gb_s"].as_f64().unwrap() > 0.0);
    let devices = report["devices"].as_array().unwrap()[1..].iter();
    for device in devices.filter(|device| device["error"].is_null()) {
        assert!(!device["ways"].as_array().unwrap().is_empty(), "{device}");
        assert!(device["prompt_bytes_per_second"].as_f64().unwrap() > 0.0, "{device}");
        assert_eq!(device["self_test"]["passed"], true, "{device}");
        assert!(device["hand_off_seconds"].as_f64().unwrap() > 0.0, "{device}");
    }
    for missing in report["missing"].as_array().unwrap() {
        assert!(!missing["hint"].as_str().unwrap().is_empty());
    }
    assert!(report["verdict"]["tokens_per_second"].as_f64().unwrap() > 0.0, "{report}");
    assert!(!report["verdict"]["next"].as_str().unwrap().is_empty());
    assert!(!report["checks"].as_array().unwrap().is_empty());
    let report = thermocline(&["doctor", "-t", "1"]);
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let end: Vec<&str> = text.lines().filter(|line| !line.starts_with(' ')).collect();
    assert!(text.contains("GB/s") && end[end.len() - 1].starts_with("improve: "), "{text}");
    assert!(end[end.len() - 2].starts_with("verdict: a 7B model at Q4_0 "), "{text}");
}

/// Hides all Vulkan drivers from the loader.
#[cfg(target_os = "linux")]
#[test]
fn without_a_driver_run_uses_the_cpu_and_notes_why() {
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        let missing = "/nonexistent";
        command.env_clear().env("VK_DRIVER_FILES", missing).env("VK_ICD_FILENAMES", missing);
        command.args(["run", "-p", "Once upon", "-n", "4", "--temp", "0"]).args(more);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let [text, notes] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code(), text, notes)
    };
    let (code, text, notes) = run(&[]);
    assert!(code == Some(0) && text.starts_with("Once upon"), "{text}{notes}");
    let why: Vec<&str> = notes.lines().filter(|line| line.contains("runs on the CPU")).collect();
    assert!(why.len() == 1 && why[0].contains("no GPU was found"), "{notes}");
    let (code, other, notes) = run(&["--placement", "fill"]);
    assert!(code == Some(0) && other == text, "{other}{notes}");
    assert!(notes.contains("--placement has no effect"), "{notes}");
    let (code, text, notes) = run(&["--backend", "wgpu"]);
    assert!(code == Some(5) && text.is_empty(), "{text}{notes}");
    assert!(notes.contains("mesa-vulkan-drivers"), "{notes}");
}

/// Skipped without a driver. A GPU is used as well as a software driver.
#[test]
fn filling_splits_layers_on_the_device_that_there_is() {
    let found = thermocline(&["devices", "--json"]);
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    if found["devices"].as_array().unwrap().len() < 2 {
        return;
    }
    let run = |more: &[&str]| {
        let args = ["run", "-p", "Once upon", "-n", "12", "--temp", "0", "-c", "64", "-ub", "4"];
        let output = thermocline(&[&args, more].concat());
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    let [expected, _] = run(&["--device", "none"]);
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let fill = ["--placement", "fill", "--vram-budget", "70MiB"];
    let traced = [&fill[..], &["--trace", trace.to_str().unwrap()]].concat();
    let [text, notes] = run(&traced);
    assert_eq!(text, expected, "{notes}");
    assert!(notes.contains("split with the CPU"), "{notes}");
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(trace.contains("neurons"), "{trace}");
}

#[test]
fn the_cost_of_ops_and_hand_offs_is_measured() {
    let wait = Duration::from_millis(1);
    let measure = |delay| {
        let options = SimOptions { delay, ..SimOptions::default() };
        let device = Device::new(SimBackend::new(options), DeviceId(1), Bytes::MAX);
        let shape = Shape { n_embd: 512, n_ff: 700, ..Shape::of_7b_model(Format::Q8_0) };
        speed(&device, &shape, Some(Bytes(4 << 20))).unwrap()
    };
    let slow = measure(wait..wait + Duration::from_nanos(1));
    assert!(slow.op >= wait.as_secs_f64() * 0.5, "{slow:?}");
    assert!(slow.hand_off >= 2.0 * wait.as_secs_f64(), "a post and a merge: {slow:?}");
    let quick = measure(Duration::ZERO..Duration::ZERO);
    assert!(quick.op < slow.op && quick.hand_off < slow.hand_off);
    assert!(quick.dense > 0.0 && quick.sparse > 0.0);
}
