//! Traces: events of one row never overlap, the two devices of a split layer work at the same time,
//! and waiting times are reported.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hal::{Bytes, Device};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, StepStats};
use thermocline::model::Model;
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share};
use thermocline::trace::TraceFile;

use crate::placement_is_invisible::{cpu_device, ignore_notices, random_placement, sim_device};
use crate::support::{Tiny, within};

const LIMIT: Duration = Duration::from_secs(120);
const TEXT: [u32; 9] = [3, 17, 60, 2, 9, 41, 41, 7, 30];

fn load(model: &Arc<Model>, devices: Vec<Device>, placement: Placement) -> Engine {
    let options = EngineOptions { n_ctx: 96, n_ubatch: 16, ..EngineOptions::default() };
    let model = Arc::clone(model);
    Engine::load(model, devices, options, Some(placement), ignore_notices(), &|_, _| {}).unwrap()
}

/// Feeds the text in chunks, with a trace at `path` if one is given; returns the logits and the
/// statistics of the steps.
fn feed(engine: &mut Engine, pieces: &[usize], path: Option<&Path>) -> (Vec<f32>, StepStats) {
    let file = path.map(|path| {
        let mut file = TraceFile::create(path).unwrap();
        let infos = engine.devices().iter().map(|device| device.info());
        let devices: Vec<_> = infos.map(|i| (i.name.clone(), i.description.clone())).collect();
        file.engine("a \"test\"", &devices);
        let file = Arc::new(Mutex::new(file));
        let to = Arc::clone(&file);
        engine.set_tracer(Some(Box::new(move |step| to.lock().unwrap().step(step))));
        file
    });
    let (mut sequence, mut logits) = (engine.new_sequence(), Vec::new());
    let (mut stats, mut rest) = (StepStats::default(), &TEXT[..]);
    for &piece in pieces.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (now, after) = rest.split_at(piece.min(rest.len()));
        let interrupt = AtomicBool::new(false);
        let sink = &mut |_: usize, row: &[f32]| logits.extend_from_slice(row);
        stats += engine.feed(&mut sequence, now, LogitsRequest::All, &interrupt, sink).unwrap();
        rest = after;
    }
    engine.set_tracer(None);
    if let Some(file) = file {
        file.lock().unwrap().finish().unwrap();
    }
    (logits, stats)
}

/// A complete event of a trace (`"ph": "X"`); times are in nanoseconds.
#[derive(Debug)]
struct TraceEvent {
    row: u64,
    name: String,
    step: u64,
    begin: u64,
    end: u64,
}

/// The names of the rows and the events of a trace, after checking it: known phases, no overlapping
/// events of one row.
#[track_caller]
fn read(path: &Path) -> (Vec<String>, Vec<TraceEvent>) {
    let text = std::fs::read_to_string(path).unwrap();
    let trace: Value = serde_json::from_str(&text).unwrap();
    let (mut rows, mut events) = (BTreeMap::new(), Vec::new());
    let ns = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as u64;
    for event in trace["traceEvents"].as_array().unwrap() {
        let row = event["tid"].as_u64().unwrap();
        match (event["ph"].as_str().unwrap(), event["name"].as_str().unwrap()) {
            ("M", "thread_name") => {
                let name = event["args"]["name"].as_str().unwrap();
                assert!(rows.insert(row, name.to_owned()).is_none(), "a row has two names");
            }
            ("M", _) => {}
            ("X", name) => events.push(TraceEvent {
                row,
                name: name.to_owned(),
                step: event["args"]["step"].as_u64().unwrap(),
                begin: ns(&event["ts"]),
                end: ns(&event["ts"]) + ns(&event["dur"]),
            }),
            (phase, name) => panic!("{name} is of phase {phase}"),
        }
    }
    for &row in rows.keys() {
        let of_row: Vec<&TraceEvent> = events.iter().filter(|event| event.row == row).collect();
        for pair in of_row.windows(2) {
            // A trace's numbers are exact to about a nanosecond.
            assert!(pair[0].end <= pair[1].begin + 2, "{:?} overlaps {:?}", pair[0], pair[1]);
        }
    }
    assert!(trace["otherData"]["clocks"].is_object());
    (rows.into_values().collect(), events)
}

/// Half of each layer's neurons are on the device, which is the layers' home, the others on the
/// CPU.
fn halves(n_layer: usize) -> Placement {
    let list = |step: u32| Neurons::List((step..96).step_by(2).collect());
    let shares = vec![Share { device: 1, neurons: list(0) }, Share { device: 0, neurons: list(1) }];
    Placement { embed: 1, head: 1, layers: vec![LayerPlacement { home: 1, shares }; n_layer] }
}

#[test]
fn cpu_and_device_shares_overlap_in_the_trace() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let fixed = Duration::from_millis(4);
        let (_, device) = sim_device(1, Bytes::MAX, fixed..fixed, 1);
        let mut engine = load(&model, vec![cpu_device(2), device], halves(3));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let (_, stats) = feed(&mut engine, &[4, 1], Some(&path));
        let (rows, events) = read(&path);
        assert!(rows[0].starts_with("CPU: ") && rows[1].starts_with("SIM1: "), "{rows:?}");
        let find = |row: u64, step: u64, name: &str| {
            let found = events.iter().find(|e| (e.row, e.step, &e.name[..]) == (row, step, name));
            found.unwrap_or_else(|| panic!("no {name} in row {row} of step {step}: {events:?}"))
        };
        let n_steps = events.iter().map(|event| event.step).max().unwrap();
        assert_eq!(n_steps, 3, "4, 1 and 4 tokens");
        let (mut overlaps, mut all) = (0, 0);
        for step in 1..=n_steps {
            for layer in 0..3 {
                let [here, there] =
                    [0, 1].map(|row| find(row, step, &format!("layer {layer} neurons")));
                let attention = find(1, step, &format!("layer {layer} attention"));
                let merge = find(1, step, &format!("layer {layer} merge"));
                // The CPU computes neurons after the attention and before the merge.
                assert!(attention.end <= here.begin + 1_000_000 && here.end <= merge.begin);
                let both = here.end.min(there.end).saturating_sub(here.begin.max(there.begin));
                (overlaps, all) = (overlaps + usize::from(both > 0), all + 1);
            }
            find(1, step, "head");
            assert!(events.iter().any(|e| e.step == step && e.name == "layer 1 hand-off"));
        }
        // The device takes at least 4 ms for its neurons, so an overlap is missing only if the
        // machine delays the CPU for as long.
        assert!(2 * overlaps > all, "{overlaps} of {all} layers overlap: {events:?}");
        let [cpu, devices] = stats.waits.shares().unwrap();
        assert!(devices < cpu && cpu > 0.5 && cpu <= 1.0 && devices >= 0.0, "{cpu} {devices}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no other file is left");
    });
}

#[test]
fn tracing_changes_no_bit_and_its_events_are_consistent() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let folder = tempfile::tempdir().unwrap();
        for seed in 0..6 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let delay = Duration::ZERO..Duration::from_micros(200);
            let (_, a) = sim_device(1, Bytes::MAX, delay.clone(), seed);
            let (_, b) = sim_device(2, Bytes::MAX, delay, seed + 1);
            let placement = random_placement(&mut rng, &model, 3);
            let split = placement.n_split() > 0;
            let mut engine = load(&model, vec![cpu_device(2), a, b], placement.clone());
            let path = folder.path().join(format!("{seed}.json"));
            let (plain, untraced) = feed(&mut engine, &[3, 1, 2], None);
            let (traced, stats) = feed(&mut engine, &[3, 1, 2], Some(&path));
            assert_eq!(plain, traced);
            for stats in [stats, untraced] {
                assert_eq!(stats.waits.shares().is_some(), split, "{placement:?}");
            }
            let (rows, events) = read(&path);
            assert_eq!(rows.len(), 3);
            for layer in 0..3 {
                let home = placement.layers[layer].home as u64;
                let name = format!("layer {layer} attention");
                assert!(events.iter().filter(|e| e.name == name).all(|e| e.row == home));
                assert!(events.iter().any(|e| e.name == name), "{events:?}");
            }
        }
    });
}

#[test]
fn an_unfinished_trace_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.json");
    drop(TraceFile::create(&path).unwrap());
    TraceFile::create(&path).unwrap().finish().unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(TraceFile::create(&folder.path().join("missing/trace.json")).is_err());
}

#[test]
fn run_writes_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let run = |path: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().stdin(Stdio::null()).current_dir(folder.path());
        let args = ["run", "-n", "3", "--backend", "cpu", "--no-auto-profile", "--trace", path];
        command.args(args).output().unwrap()
    };
    let output = run("trace.json");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && stderr.contains(" steps are in the trace"), "{stderr}");
    let (rows, events) = read(&folder.path().join("trace.json"));
    // The steps are the prompt and every generated token except the last.
    assert!(events.iter().map(|event| event.step).max().unwrap() >= 3, "{stderr}");
    assert_eq!(rows.len(), 1);
    let names = ["embedding", "layer 0 attention", "layer 0 neurons", "head", "copy"];
    assert!(names.iter().all(|name| events.iter().any(|e| e.name == *name)), "{events:?}");
    let output = run("missing/trace.json");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write the trace"));
}
