//! Compares plans with runs for several memory budgets: the peak of the reserved memory, the share
//! of active neurons on the device (with a profile and without), and the speed.
//!
//! `cargo bench --bench placement`, or `cargo bench --bench placement -- -m FILE --device Vulkan0
//! --steps 8 -n 32 -t 1`. Without `--device`, the device is simulated and its speed is meaningless.
//! The profile is collected on one text, and the share is counted on another text. Everything that
//! fits is placed on the device, however slow the device is, so that a software driver is useful
//! too. The estimate uses the planner's formula with the measured speeds. `--planned` uses the
//! placement that the planner chooses for these speeds. `--foreign` collects the profile on the
//! calibration text that is included in the program, instead of the first half of the text whose
//! second half is used for counting.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

use std::error::Error;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId};
use sim::{SimBackend, SimOptions};
use thermocline::bench::{Settings, Shape, Test, measure, speed};
use thermocline::devices::{CpuOptions, candidates, cpu_with};
use thermocline::engine::{Engine, EngineOptions, PlannerInputs, forecast, task};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::{Forecast, Neurons, Placement, Speed};
use thermocline::profile::{Gatherer, Profile, Text, calibrate};
use thermocline::tokenizer::{Tokenizer, Vocab};
use thermocline::{bench, embedded};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Tokens per window of the profiled text.
const WINDOW: usize = 512;

struct Options {
    model: Option<PathBuf>,
    device: Option<String>,
    steps: u64,
    n_gen: usize,
    n_known: usize,
    /// Context size; half of it is the average context of a measured run.
    n_ctx: usize,
    repetitions: usize,
    foreign: bool,
    threads: Option<usize>,
    planned: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options {
            model: None,
            device: None,
            steps: 12,
            n_gen: 32,
            n_known: 5120,
            n_ctx: 128,
            repetitions: 3,
            foreign: false,
            threads: None,
            planned: false,
        };
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().ok_or(format!("{flag} needs a value"));
            match flag.as_str() {
                "-m" => options.model = Some(value()?.into()),
                "--device" => options.device = Some(value()?.clone()),
                "--steps" => options.steps = value()?.parse()?,
                "-n" => options.n_gen = value()?.parse()?,
                "-c" => options.n_ctx = value()?.parse()?,
                "-r" => options.repetitions = value()?.parse()?,
                "--foreign" => options.foreign = true,
                "--known" => options.n_known = value()?.parse()?,
                "-t" => options.threads = Some(value()?.parse()?),
                "--planned" => options.planned = true,
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        if options.n_gen > 0 && options.n_gen <= options.n_ctx && options.repetitions > 0 {
            Ok(options)
        } else {
            Err("-n must be from 1 to the context size (-c), and -r at least 1".into())
        }
    }

    fn cpu(&self) -> Device {
        cpu_with(CpuOptions { threads: self.threads, ..CpuOptions::default() })
    }

    fn backend(&self) -> Result<Arc<dyn Backend>> {
        let Some(name) = &self.device else { return Ok(SimBackend::new(SimOptions::default())) };
        let (found, _) = candidates(None);
        let candidate = found.iter().find(|candidate| candidate.name == *name);
        Ok(candidate.ok_or(format!("device {name} not found"))?.open()?)
    }
}

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this program without `--bench`; it must then exit at once.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    arguments.retain(|argument| argument != "--bench");
    let options = Options::parse(&arguments)?;
    let file = match &options.model {
        Some(path) => File::open(path)?,
        None => embedded::file()?,
    };
    let model = Arc::new(Model::from_file(file, &ModelOptions::default())?);
    let sweep = Sweep::new(options, model)?;
    println!(
        "| budget | peak reserved | layers split, whole | share planned | counted | in the run | without a profile: planned | counted | tok/s estimated | measured | ratio |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    let everything = sweep.plan(Bytes(1 << 40), &sweep.with_profile).devices[1].total();
    for step in 0..=sweep.options.steps {
        sweep.row(Bytes(everything.0 * step / sweep.options.steps))?;
    }
    Ok(())
}

struct Sweep {
    options: Options,
    model: Arc<Model>,
    backend: Arc<dyn Backend>,
    with_profile: EngineOptions,
    without_profile: EngineOptions,
    /// Measured speeds of the CPU and of the device.
    speeds: Vec<Speed>,
    text: Vec<u32>,
    /// Activity on a text other than that of the profile.
    fired: Profile,
}

impl Sweep {
    fn new(options: Options, model: Arc<Model>) -> Result<Sweep> {
        let backend = options.backend()?;
        let assets = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets");
        let [known, other] = ["calibration.txt", "reference/eval.txt"].map(|name| {
            let words = std::fs::read_to_string(assets.join(name))?;
            tokens(&model, &words)
        });
        let (foreign, text) = (known?, other?);
        let (half, other) = text.split_at(text.len() / 2);
        let known = if options.foreign { &foreign[..] } else { half };
        let profile = |tokens: &[u32]| profile(&model, options.cpu(), tokens, options.n_known);
        let (known, fired, text) = (profile(known)?, profile(other)?, other.to_vec());
        let speeds = [options.cpu(), device_with_budget(&backend, Bytes::MAX)]
            .iter()
            .map(|device| {
                let free = device.memory().ok().and_then(|memory| memory.free);
                speed(device, &shape(&model), free)
            })
            .collect::<hal::Result<Vec<_>>>()?;
        for (name, speed) in ["CPU", &backend.info().name].iter().zip(&speeds) {
            println!("{name}: {speed:?}");
        }
        let placing = PlannerInputs {
            speeds: if options.planned { speeds.clone() } else { Vec::new() },
            ..PlannerInputs::default()
        };
        let uses = Some(Arc::new(known.probabilities()));
        let without_profile = EngineOptions {
            n_ctx: options.n_ctx,
            n_ubatch: 32,
            placing,
            ..EngineOptions::default()
        };
        let placing = PlannerInputs { uses, ..without_profile.placing.clone() };
        let with_profile = EngineOptions { placing, ..without_profile.clone() };
        Ok(Sweep { options, model, backend, with_profile, without_profile, speeds, text, fired })
    }

    fn devices(&self, budget: Bytes) -> Vec<Device> {
        vec![self.options.cpu(), device_with_budget(&self.backend, budget)]
    }

    fn plan(&self, budget: Bytes, options: &EngineOptions) -> Forecast {
        forecast(&self.model, &self.devices(budget), options)
    }

    /// Estimates the speed of `placement` with the measured speeds.
    fn estimate(&self, budget: Bytes, placement: &Placement) -> Result<Forecast> {
        let placing =
            PlannerInputs { speeds: self.speeds.clone(), ..self.with_profile.placing.clone() };
        let options = EngineOptions { placing, ..self.with_profile.clone() };
        let task = task(&self.model, &self.devices(budget), &options);
        Ok(Forecast::for_placement(&task, placement)
            .ok_or("the placement splits a group of neurons")?)
    }

    fn row(&self, budget: Bytes) -> Result<()> {
        let without_profile = self.plan(budget, &self.without_profile);
        let devices = self.devices(budget);
        let ledger = Arc::clone(devices[1].ledger());
        let (model, options) = (Arc::clone(&self.model), self.with_profile.clone());
        let notice = Arc::new(|text: &str| println!("{text}"));
        let mut engine = Engine::load(model, devices, options, None, notice, &|_, _| {})?;
        let placement = engine.placement().clone();
        let planned = engine.forecast().map_or(0.0, |forecast| forecast.off_cpu);
        let n_gen = self.options.n_gen;
        let test = Test { n_prompt: 0, n_gen, n_depth: (self.options.n_ctx - n_gen) / 2, n_seq: 1 };
        let repetitions = self.options.repetitions;
        let settings = Settings { n_batch: 32, repetitions, warmup: repetitions > 1 };
        let interrupt = AtomicBool::new(false);
        let measured = measure(&mut engine, &self.text, test, settings, &interrupt)?;
        let fastest = measured.runs.iter().min().ok_or("no run")?;
        let rate = n_gen as f64 / fastest.as_secs_f64();
        let estimate = self.estimate(budget, &placement)?.rate();
        let whole = placement.layers.iter().filter(|l| l.home != 0 && !l.is_split()).count();
        assert!(ledger.peak() <= budget, "{} of {budget}", ledger.peak());
        println!(
            "| {budget} | {} | {}, {whole} | {:.3} | {:.3} | {:.3} | {:.3} | {:.3} | {estimate:.1} | {rate:.1} | {:.2} |",
            ledger.peak(),
            placement.n_split(),
            planned,
            share_off_cpu(&placement, &self.fired),
            measured.neurons.off_cpu / measured.neurons.active,
            without_profile.off_cpu,
            share_off_cpu(&without_profile.placement, &self.fired),
            estimate / rate,
        );
        Ok(())
    }
}

fn device_with_budget(backend: &Arc<dyn Backend>, budget: Bytes) -> Device {
    Device::new(Arc::clone(backend), DeviceId(1), budget)
}

/// Shape of the matrices with which the devices are measured.
fn shape(model: &Model) -> Shape {
    let format = model.blocks().next().map_or(Format::F16, |(_, ffn)| ffn.up.w.desc().format);
    let size = Bytes(model.file.size_bytes());
    let (n_embd, n_ff) = (model.hyper.n_embd, model.max_n_ff());
    Shape { format, n_embd, n_ff, size, listed: false, skips: true }
}

/// The token ids of a text; the bytes of the text if the model has no vocabulary.
fn tokens(model: &Model, words: &str) -> Result<Vec<u32>> {
    let vocab = Vocab::from_metadata(model.file.metadata());
    let Some(tokenizer) = vocab.ok().and_then(|vocab| Tokenizer::new(vocab).ok()) else {
        let text = bench::Text::bytes(words, model.n_vocab());
        return Ok(text.first(words.len(), model.n_vocab()).unwrap_or_default());
    };
    let text = tokenizer.encode(words, false, false)?;
    Ok(tokenizer.bos().into_iter().chain(text).collect())
}

/// Counts how often each neuron fires in the first `n` tokens of a text.
fn profile(model: &Arc<Model>, cpu: Device, tokens: &[u32], n: usize) -> Result<Profile> {
    let options = EngineOptions { n_ctx: WINDOW, n_ubatch: 64, ..EngineOptions::default() };
    let text = Text::new(tokens, None, WINDOW, Some(n));
    let quiet = Arc::new(|_: &str| {});
    let mut engine = Engine::load(Arc::clone(model), vec![cpu], options, None, quiet, &|_, _| {})?;
    let mut profile = text.start(model);
    let (mut gatherer, interrupt) = (Gatherer::new(model)?, AtomicBool::new(false));
    calibrate(&mut engine, &text, &mut profile, &mut gatherer, &interrupt, &mut |_, _| {})?;
    Ok(profile)
}

/// The share of a text's active neurons that `placement` has on devices other than the CPU.
fn share_off_cpu(placement: &Placement, text: &Profile) -> f64 {
    let (mut off_cpu, mut total) = (0, 0);
    for (placed, layer) in placement.layers.iter().zip(text.layers()) {
        let fires = layer.active_counts();
        total += fires.iter().sum::<u64>();
        let sum = |range: Range<usize>| fires[range].iter().sum::<u64>();
        for share in placed.shares.iter().filter(|share| share.device != 0) {
            off_cpu += match &share.neurons {
                Neurons::All => sum(0..fires.len()),
                Neurons::List(list) => list.iter().map(|&n| fires[n as usize]).sum(),
            };
        }
    }
    off_cpu as f64 / total.max(1) as f64
}
