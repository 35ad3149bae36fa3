//! Weights on a device, in memory and on disk: with a placement, the words are those of the same
//! placement with all weights in memory, to the bit, whatever the memory budget.
#![cfg(unix)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hal::format::Format;
use hal::{Bytes, Device, DeviceId};
use tempfile::NamedTempFile;
use thermocline::engine::{
    Engine, EngineOptions, Error, ExchangeStats, Feed, LogitsRequest, NeuronReads, PagingOptions,
    PlannerInputs, StepStats, Streaming, Tiers,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share, Speed};
use thermocline::synthetic::Spec;

use crate::placement_is_invisible::graphics::graphics;
use crate::placement_is_invisible::{Logits, cpu_device, ignore_notices, sim_device};
use crate::support::{Tiny, within};

const LIMIT: Duration = Duration::from_secs(400);

fn open(path: &Path) -> Arc<Model> {
    let file = File::open(path).unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

/// A generated model in a file that is removed at the end.
fn generated(spec: &str) -> (NamedTempFile, Arc<Model>) {
    let file = NamedTempFile::new().unwrap();
    let spec = Spec { n_vocab: 512, ..Spec::parse(spec).unwrap() };
    spec.write(file.path(), &mut |_, _| true).unwrap();
    let model = open(file.path());
    (file, model)
}

fn tiny(tiny: &Tiny) -> (NamedTempFile, Arc<Model>) {
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), tiny.bytes()).unwrap();
    let model = open(file.path());
    (file, model)
}

/// What is loaded where.
#[derive(Clone, Debug)]
struct Case {
    /// Memory of the device.
    device: Bytes,
    /// Host memory; `None` for all weights in memory.
    memory: Option<Bytes>,
    /// `None` for the planned placement.
    placement: Option<Placement>,
    adapt: bool,
}

impl Case {
    fn new(placement: Option<Placement>) -> Case {
        Case { device: Bytes::MAX, memory: None, placement, adapt: false }
    }

    fn options(&self, model: &Model) -> EngineOptions {
        let paging = self.memory.map(|budget| PagingOptions {
            budget,
            depth: 3,
            neurons: NeuronReads::Layer,
        });
        let n_ctx = model.positions.as_ref().map_or(320, |table| table.n_positions().min(320));
        EngineOptions {
            n_ctx: (n_ctx / 32 * 32).max(64),
            n_ubatch: 32,
            n_seq: 2,
            paging,
            adapt: self.adapt,
            streaming: Streaming::Off,
            ..EngineOptions::default()
        }
    }

    fn load_on(&self, model: &Arc<Model>, device: Device) -> Result<Engine, Error> {
        let devices = vec![cpu_device(2), device];
        let (options, placement) = (self.options(model), self.placement.clone());
        Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
    }

    fn load(&self, model: &Arc<Model>) -> Result<Engine, Error> {
        self.load_on(model, sim_device(1, self.device, Duration::ZERO..Duration::ZERO, 1).1)
    }

    /// The case with the smallest memory that suffices, and its engine.
    fn smallest(&self, model: &Arc<Model>) -> (Bytes, Engine) {
        let mut memory = Bytes(1);
        loop {
            match (Case { memory: Some(memory), ..self.clone() }).load(model) {
                Ok(engine) => return (memory, engine),
                Err(Error::Store(store::Error::Capacity { needed, capacity })) => {
                    assert!(needed > capacity);
                    memory += needed - capacity;
                }
                Err(error) => panic!("{self:?}: {error}"),
            }
        }
    }
}

/// Logits of prompts of several micro-batches, of single tokens, and of two sequences at once.
fn logits(engine: &mut Engine) -> Logits {
    let n_vocab = engine.model().n_vocab() as u32;
    let most = engine.max_tokens().min(engine.n_ctx() / 2);
    let ids: Vec<u32> =
        (0..75.min(most) as u32).map(|i| (i * i * 7 + 3 * i + 1) % n_vocab).collect();
    let (mut all, never) = (Vec::new(), AtomicBool::new(false));
    let mut sequences = [engine.new_sequence(), engine.new_sequence()];
    let (prompt, rest) = ids.split_at(ids.len() * 4 / 5);
    for part in [prompt].into_iter().chain(rest[3..].chunks(1)) {
        let sink = &mut |_: usize, row: &[f32]| all.push(row.to_vec());
        engine.feed(&mut sequences[0], part, LogitsRequest::All, &never, sink).unwrap();
    }
    let [first, second] = &mut sequences;
    for (a, b) in rest[..3].chunks(1).zip(prompt[..9].chunks(3)) {
        let want = LogitsRequest::All;
        let mut feeds = [
            Feed { sequence: &mut *first, tokens: a, want },
            Feed { sequence: &mut *second, tokens: b, want },
        ];
        let sink = &mut |_: usize, _: usize, row: &[f32]| all.push(row.to_vec());
        engine.step(&mut feeds, &never, sink).unwrap();
    }
    all
}

/// Bytes of all weights on a device, if everything fits there.
fn all_bytes(model: &Arc<Model>) -> Bytes {
    let case = Case::new(Some(Placement::all_on(1, model.hyper.n_layer)));
    case.load(model).unwrap().devices()[1].ledger().used()
}

/// What the combinations of budgets of a model had.
#[derive(Debug, Default)]
struct Seen {
    /// Units that were not in memory when they were needed.
    misses: u64,
    /// Placements with layers that have neurons on both sides.
    split: usize,
    /// Placements with neurons on the CPU.
    on_cpu: usize,
}

/// Runs a model with several memory sizes of the device, and for each with all weights in memory
/// and with several memory budgets.
fn check(name: &str, model: &Arc<Model>, parts: &[u64]) -> Seen {
    let mut seen = Seen::default();
    let all = all_bytes(model);
    for part in parts {
        let device = Bytes(all.0 * part / 16);
        let planned = Case { device, ..Case::new(None) };
        let placement = planned.smallest(model).1.placement().clone();
        let shares = || placement.layers.iter().map(|layer| &layer.shares);
        seen.split += usize::from(shares().any(|shares| shares.len() > 1));
        seen.on_cpu += usize::from(shares().flatten().any(|share| share.device == 0));
        let place = Case { placement: Some(placement), ..planned };
        let (memory, mut smallest) = place.smallest(model);
        let expected = logits(&mut place.load(model).unwrap());
        let name = format!("{name}, {part}/16");
        assert!(logits(&mut smallest) == expected, "{name}, the smallest memory");
        check_tiers(&name, &smallest, memory, model);
        seen.misses += smallest.take_stats().unwrap().disk.misses;
        let rest = smallest.tiers().unwrap().on_disk();
        for eighths in [3, 8] {
            let memory = Some(memory + Bytes(rest.0 * eighths / 8 + 4096));
            let mut engine = Case { memory, ..place.clone() }.load(model).unwrap();
            assert!(logits(&mut engine) == expected, "{name}, {eighths}/8 of the rest");
        }
    }
    seen
}

/// Every weight is in one tier, and the ledgers keep to their budgets.
fn check_tiers(name: &str, engine: &Engine, memory: Bytes, model: &Model) {
    let Tiers { devices, copies, weights, pinned, cache, .. } = engine.tiers().unwrap();
    assert!(engine.devices()[0].ledger().used() <= memory, "{name}");
    assert!(pinned + cache <= weights, "{name}");
    let file = Bytes(model.file.size_bytes());
    // Whole pages of units, without tables of which steps read a few rows.
    let slack = Bytes(file.0 / 10 + (1 << 20));
    assert!(devices + weights <= file + slack, "{name}: {devices} + {weights} of {file}");
    let ends = model.token_embd.desc().bytes().unwrap();
    assert!(devices + weights + copies + ends + slack >= file, "{name}: {devices}, {weights}");
}

#[test]
fn experts_on_disk_beside_a_device_give_the_bits_of_experts_in_memory() {
    within(LIMIT, || {
        for spec in ["256x3x256x4/2*16/2:Q4_0:silu", "128x3x96x4/2*8/3:Q8_0:relu"] {
            let (_file, model) = generated(spec);
            let seen = check(spec, &model, &[3, 8, 13]);
            let is_split = spec.ends_with("silu");
            assert_eq!(seen.split > 1, is_split, "{spec}: {seen:?}");
            assert!(seen.misses > 20, "{spec}: {seen:?}");
        }
    });
}

#[test]
fn dense_layers_on_disk_beside_a_device_give_the_bits_of_layers_in_memory() {
    within(LIMIT, || {
        let base =
            Tiny { n_layer: 5, n_embd: 128, n_ff: 640, format: Format::Q8_0, ..Tiny::default() };
        for (name, of) in [
            ("silu", Tiny { activation: "silu", ..base.clone() }),
            ("relu", base.clone()),
            ("predicted", Tiny { pwri: true, rank: 32, format: Format::Q4_0, ..base }),
        ] {
            let (_file, model) = tiny(&of);
            let seen = check(name, &model, &[4, 9]);
            assert!(seen.on_cpu == 2 && seen.split == 0, "{name}: {seen:?}");
            assert!(seen.misses > 10, "{name}: {seen:?}");
        }
    });
}

/// Attention on the device and neurons on the CPU, as with `-ot` or `-cmoe`; and dense layers that
/// are split, whose part on the CPU is a copy in memory.
#[test]
fn neurons_of_device_layers_are_read_from_disk_or_copied() {
    within(LIMIT, || {
        let silu =
            Tiny { n_layer: 4, n_embd: 128, n_ff: 640, activation: "silu", ..Tiny::default() };
        let (_file, model) = tiny(&silu);
        let (_other, experts) = generated("128x3x64x4/2*8/2:F16:silu");
        let split = |share: &dyn Fn(u32) -> bool| {
            let n_ff = model.max_n_ff() as u32;
            let list = |here| (0..n_ff).filter(|&n| share(n) == here).collect();
            let on = |device, here| Share { device, neurons: Neurons::List(list(here)) };
            LayerPlacement { home: 1, shares: vec![on(1, true), on(0, false)] }
        };
        let whole = |home| LayerPlacement {
            home,
            shares: vec![Share { device: 0, neurons: Neurons::All }],
        };
        let half = split(&|n| n < 320);
        let of = |layers| Placement { embed: 1, head: 1, layers };
        for (name, model, placement, copied) in [
            ("dense", &model, of(vec![whole(1); 4]), false),
            ("experts", &experts, of(vec![whole(1), whole(1), LayerPlacement::whole(0)]), false),
            ("split", &model, of(vec![half.clone(), whole(1), half, whole(0)]), true),
        ] {
            let case = Case::new(Some(placement));
            let expected = logits(&mut case.load(model).unwrap());
            let (memory, mut smallest) = case.smallest(model);
            assert!(logits(&mut smallest) == expected, "{name}");
            let tiers = smallest.tiers().unwrap();
            assert!(tiers.on_disk() > Bytes(0), "{name}: {tiers:?}");
            assert_eq!(tiers.copies > Bytes(0), copied, "{name}: {tiers:?}");
            let disk = smallest.take_stats().unwrap().disk;
            assert!(disk.misses + disk.ahead > 0, "{name}: {disk:?}");
            assert!(smallest.devices()[0].ledger().used() <= memory, "{name}");
        }
    });
}

#[test]
fn every_family_beside_a_device_has_the_bits_of_the_family_in_memory() {
    within(LIMIT, || {
        let mut split = 0;
        for (name, model) in crate::families::models() {
            split += check(&name, &model, &[8]).split;
        }
        assert!(split > 1, "{split} families had experts on both sides");
    });
}

#[test]
fn a_graphics_device_and_experts_on_disk() {
    let Some(backend) = graphics() else { return };
    within(LIMIT, move || {
        let (_file, model) = generated("128x3x128x4/2*8/2:Q4_0:silu");
        let device = || Device::new(Arc::clone(&backend), DeviceId(1), Bytes::MAX);
        let n = model.experts().unwrap().n_ff as u32;
        let n_ff = model.max_n_ff() as u32;
        let on = |device, here| {
            let list = (0..n_ff).filter(|neuron| (neuron / n).is_multiple_of(2) == here).collect();
            Share { device, neurons: Neurons::List(list) }
        };
        let layer = LayerPlacement { home: 1, shares: vec![on(1, true), on(0, false)] };
        let placement = Placement { embed: 1, head: 1, layers: vec![layer; 3] };
        let case = |memory| Case { memory, adapt: true, ..Case::new(Some(placement.clone())) };
        let (least, _) = case(None).smallest(&model);
        let [expected, got] = [None, Some(least)].map(|memory| {
            let mut engine = case(memory).load_on(&model, device()).unwrap();
            (logits(&mut engine), engine.take_stats().unwrap().disk.misses)
        });
        assert!(got.0 == expected.0);
        assert!(got.1 > 0 && expected.1 == 0);
    });
}

/// A run of single tokens.
struct Run {
    logits: Logits,
    /// Statistics of each half.
    halves: [StepStats; 2],
    exchanged: Option<ExchangeStats>,
}

fn run(engine: &mut Engine, text: &[u32]) -> Run {
    let (mut logits, never) = (Vec::new(), AtomicBool::new(false));
    let mut sequence = engine.new_sequence();
    let halves = [&text[..text.len() / 2], &text[text.len() / 2..]].map(|half| {
        for &token in half {
            let sink = &mut |_: usize, row: &[f32]| logits.push(row.to_vec());
            engine.feed(&mut sequence, &[token], LogitsRequest::Last, &never, sink).unwrap();
        }
        engine.take_stats().unwrap()
    });
    let exchanged = engine.exchange_stats();
    Run { logits, halves, exchanged }
}

/// The first half of the experts of each layer on the device.
fn half_of_the_experts(model: &Model) -> Placement {
    let n_ff = model.max_n_ff() as u32;
    let share = |device, neurons| Share { device, neurons: Neurons::List(neurons) };
    let shares = vec![share(1, (0..n_ff / 2).collect()), share(0, (n_ff / 2..n_ff).collect())];
    let layer = LayerPlacement { home: 1, shares };
    Placement { embed: 1, head: 1, layers: vec![layer; model.hyper.n_layer] }
}

/// Bytes of the experts of a model that the CPU has in `placement`.
fn experts_on_cpu(model: &Model, placement: &Placement) -> u64 {
    let of_layer = |(layer, placed): (usize, &LayerPlacement)| {
        let Some(ffn) = &model.layers[layer].ffn else { return 0 };
        let all: u64 = ffn.matrices().map(|(_, rows)| rows.desc().bytes().unwrap().0).sum();
        let on_cpu = placed.shares.iter().filter(|share| share.device == 0);
        let n: usize = on_cpu.map(|share| share.neurons.len(ffn.n_ff())).sum();
        all * n as u64 / ffn.n_ff() as u64
    };
    placement.layers.iter().enumerate().map(of_layer).sum()
}

/// The CPU guesses the next layer's experts from what the device posts. It never reads experts of the
/// device.
#[test]
fn experts_of_device_layers_are_read_ahead() {
    within(LIMIT, || {
        let (_file, model) = generated("256x4x256x4/2*16/2:Q8_0:silu");
        let n_ff = model.max_n_ff() as u32;
        let all = LayerPlacement {
            home: 1,
            shares: vec![Share { device: 0, neurons: Neurons::List((0..n_ff).collect()) }],
        };
        let all = Placement { embed: 1, head: 1, layers: vec![all; model.hyper.n_layer] };
        let text: Vec<u32> = (0..200).map(|i| (i * i * 7 + 3 * i + 1) % 512).collect();
        for (name, placement) in [("all", all), ("half", half_of_the_experts(&model))] {
            let case = |memory| Case { memory, ..Case::new(Some(placement.clone())) };
            let (least, _) = case(None).smallest(&model);
            let experts = experts_on_cpu(&model, &placement);
            let expected = run(&mut case(None).load(&model).unwrap(), &text).logits;
            let some =
                run(&mut case(Some(least + Bytes(experts / 3))).load(&model).unwrap(), &text);
            assert!(some.logits == expected, "{name}");
            let [first, second] = some.halves.map(|half| half.disk);
            eprintln!("{name}: {first:?} {second:?}");
            // Half of the guesses would be wasted if they included the device's experts.
            let ahead =
                second.needed.0 / (second.hits + second.ahead + second.misses) * second.ahead;
            assert!(second.ahead > 40 && second.wasted.0 < ahead, "{name}: {second:?}");
        }
    });
}

#[test]
fn experts_on_disk_follow_the_text_to_the_device() {
    within(LIMIT, || {
        let (_file, model) = generated("256x3x256x4/2*16/2:Q8_0:silu");
        // One subject, then another.
        let text: Vec<u32> =
            (0..300).map(|i| if i % 9 == 0 { 7 } else { 21 + 40 * (i / 150) }).collect();
        let case =
            |memory, adapt| Case { memory, adapt, ..Case::new(Some(half_of_the_experts(&model))) };
        let (least, _) = case(None, true).smallest(&model);
        let run = |memory, adapt| run(&mut case(memory, adapt).load(&model).unwrap(), &text);
        let expected = run(None, true);
        let exchanged = expected.exchanged.unwrap();
        assert!(exchanged.neurons > 0);
        let (small, large) = (run(Some(least), true), run(Some(least + least), true));
        for moved in [&small, &large] {
            assert!(moved.logits == expected.logits);
            assert_eq!(moved.exchanged, expected.exchanged);
        }
        // The device serves more of both subjects than without exchanges, and less is read.
        let fixed = run(Some(least), false);
        for half in 0..2 {
            let [moved, fixed] = [&small, &fixed].map(|run| run.halves[half]);
            let [served, before] = [moved, fixed].map(|half| half.off_cpu / half.active);
            eprintln!("{before} -> {served} {:?} {:?}", fixed.disk, moved.disk);
            assert!(served > before + 0.05, "{before} became {served}");
            assert!(moved.disk.needed < fixed.disk.needed, "{:?} {:?}", moved.disk, fixed.disk);
        }
    });
}

/// Each subject ends when the experts that it uses come to the device, and none returns. The time
/// by the planner's speeds, as counted, is that of the fixed placement.
#[test]
fn exchanges_cost_little_where_they_gain_nothing() {
    within(LIMIT, || {
        let (_file, model) = generated("256x2x256x4/2*16/2:Q8_0:silu");
        let text: Vec<u32> = (0..960).map(|i| 20 + 16 * (i / 32)).collect();
        let rate = 1e8;
        let cpu = Speed { dense: rate, sparse: rate, refill: 1e-6, ..Speed::default() };
        let card = Speed { dense: 2e9, sparse: 1e9, hand_off: 2e-6, ..cpu };
        let device = Bytes(all_bytes(&model).0 * 5 / 8);
        let load = |memory, adapt| {
            let case = Case { device, memory: Some(memory), adapt, ..Case::new(None) };
            let placing = PlannerInputs { speeds: vec![cpu, card], ..PlannerInputs::default() };
            let options = EngineOptions { placing, n_ctx: 1024, ..case.options(&model) };
            let sim = sim_device(1, device, Duration::ZERO..Duration::ZERO, 1).1;
            let devices = vec![cpu_device(2), sim];
            Engine::load(Arc::clone(&model), devices, options, None, ignore_notices(), &|_, _| {})
        };
        let (least, engine) = Case { device, adapt: true, ..Case::new(None) }.smallest(&model);
        drop(engine);
        let memory = least + Bytes(least.0 / 4);
        let experts = model.experts().unwrap();
        let bytes = |rows: &hal::HostRows| rows.desc().bytes().unwrap().0;
        let (_, ffn) = model.blocks().next().unwrap();
        let all: u64 = ffn.matrices().map(|(_, rows)| bytes(rows)).sum();
        let (n_rows, expert) = (ffn.matrices().count() * experts.n_ff, all / experts.n as u64);
        let seconds = |adapt| {
            let mut engine = load(memory, adapt).unwrap();
            assert!(engine.placement().layers.iter().any(|layer| layer.shares.len() > 1));
            let done = run(&mut engine, &text);
            let sum = |of: fn(&StepStats) -> u64| done.halves.iter().map(of).sum::<u64>() as f64;
            let (needed, read) = (sum(|half| half.disk.needed.0), sum(|half| half.disk.read.0));
            let n = done.exchanged.map_or(0, |done| done.neurons / experts.n_ff as u64);
            eprintln!("{n} experts of {expert} exchanged, {needed} needed, {read} read");
            (n, (needed + read) / rate + (n * n_rows as u64) as f64 * card.refill)
        };
        let ((none, fixed), (n, moved)) = (seconds(false), seconds(true));
        assert!(none == 0 && n > 0);
        assert!(moved * 0.98 <= fixed, "{moved} s instead of {fixed} s");
    });
}

#[test]
fn the_command_says_what_devices_memory_and_disk_hold() {
    if graphics().is_none() {
        return;
    }
    let (found, _) = thermocline::devices::candidates(None);
    let device = found.into_iter().find(|candidate| candidate.backend == "wgpu").unwrap().name;
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), thermocline::embedded::BYTES).unwrap();
    let run = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["run", "--device", &device, "--placement", "layers"]);
        command.args(["-m", file.path().to_str().unwrap(), "-p", "Once", "-n", "8"]);
        command.args(["--temp", "0", "-c", "96", "-ub", "32", "--repack-cache", "off"]);
        command.args(["--no-auto-profile", "--vram-budget", "68MiB"]).args(more);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        let notes = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{notes}");
        (String::from_utf8_lossy(&output.stdout).into_owned(), notes)
    };
    let (expected, notes) = run(&["--ram-budget", "1GiB"]);
    assert!(!notes.contains("disk"), "{notes}");
    let (text, notes) = run(&["--ram-budget", "73MiB"]);
    assert_eq!(text, expected, "{notes}");
    for part in [
        "of weights stay on disk, because only 73.00 MiB of memory may be used: ",
        " are on devices, ",
        "| weights: ",
        " in memory, ",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
}
