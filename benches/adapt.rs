//! Times decoding with experts that follow the text to a device, against a fixed placement, with
//! weights on disk: texts that keep to a subject, and texts whose subject changes.
//!
//! `cargo bench --bench adapt`, or `cargo bench --bench adapt -- -m FILE --device Vulkan0 -n 320 -r 2
//! --memory 0.3`. Half of each layer's experts are on the device. Without `-m`, the model is
//! generated; without `--device`, the device is simulated. `--memory` is the host memory for weights
//! as a part of the file's size, beyond what one layer needs.
//!
//! Each text runs twice: with the measured speeds of the device and the disk, with which experts
//! stay where they are if the device is slower than the CPU (as simulated ones are), and with a
//! device that is taken to be four times as fast as the CPU, so that they follow the text.
//! "exchanging" is the part of the time by which steps with a decision are longer than others.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hal::{Backend, Bytes, Device, DeviceId};
use sim::{SimBackend, SimOptions};
use thermocline::bench::{Shape, speed};
use thermocline::devices::{CpuOptions, candidates, cpu_with};
use thermocline::engine::{
    Engine, EngineOptions, Error as EngineError, LogitsRequest, NeuronReads, PagingOptions,
    PlannerInputs, ReadRates,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::exchange::DECISION_INTERVAL;
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share, Speed};
use thermocline::synthetic::Spec;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SPEC: &str = "256x4x256x4/2*32/2:Q8_0:silu";
/// Number of threads that read.
const DEPTH: usize = 8;

struct Options {
    model: Option<PathBuf>,
    device: Option<String>,
    n: usize,
    rounds: usize,
    memory: f64,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options> {
        let mut options = Options { model: None, device: None, n: 320, rounds: 2, memory: 0.3 };
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().ok_or(format!("{flag} needs a value"));
            match flag.as_str() {
                "-m" => options.model = Some(value()?.into()),
                "--device" => options.device = Some(value()?.clone()),
                "-n" => options.n = value()?.parse()?,
                "-r" => options.rounds = value()?.parse()?,
                "--memory" => options.memory = value()?.parse()?,
                _ => return Err(format!("unknown argument {flag}").into()),
            }
        }
        Ok(options)
    }

    fn device(&self) -> Result<Device> {
        let backend: Arc<dyn Backend> = match &self.device {
            None => SimBackend::new(SimOptions::default()),
            Some(name) => {
                let (found, _) = candidates(None);
                let found = found.iter().find(|candidate| candidate.name == *name);
                found.ok_or(format!("there is no device {name}"))?.open()?
            }
        };
        Ok(Device::new(backend, DeviceId(1), Bytes::MAX))
    }
}

/// Half of the experts of each layer on the device.
fn half_of_the_experts(model: &Model) -> Placement {
    let layers = model.layers.iter().map(|layer| {
        let Some(experts) = layer.experts() else { return LayerPlacement::whole(1) };
        let (n_ff, half) = (layer.n_ff() as u32, (experts.n / 2 * experts.n_ff) as u32);
        let share = |device, neurons| Share { device, neurons: Neurons::List(neurons) };
        let shares = vec![share(1, (0..half).collect()), share(0, (half..n_ff).collect())];
        LayerPlacement { home: 1, shares }
    });
    Placement { embed: 1, head: 1, layers: layers.collect() }
}

/// The speeds of the CPU and of the device with the model's feed-forward blocks.
fn measured(model: &Model, options: &Options) -> Result<[Speed; 2]> {
    let (up, experts) = model
        .blocks()
        .next()
        .map(|(_, ffn)| (ffn.up.w.desc(), ffn.n_expert()))
        .ok_or("the model has no feed-forward block")?;
    let shape = Shape {
        format: up.format,
        n_embd: up.n_cols,
        n_ff: up.n_rows / experts.unwrap_or(1),
        size: Bytes(model.file.size_bytes()),
        listed: false,
        skips: false,
    };
    let cpu = cpu_with(CpuOptions::default());
    Ok([speed(&cpu, &shape, None)?, speed(&options.device()?, &shape, None)?])
}

/// What a run took.
struct Run {
    rate: f64,
    exchanged: u64,
    read_per_token: Bytes,
    on_device: f64,
    /// The part of the time by which steps with a decision are longer than the others.
    exchanging: f64,
}

/// A text, and what the engine is given beside it.
struct Case<'a> {
    model: &'a Arc<Model>,
    options: &'a Options,
    memory: Bytes,
    placing: PlannerInputs,
    text: &'a [u32],
}

impl Case<'_> {
    fn settings(&self, budget: Bytes, adapt: bool) -> EngineOptions {
        let paging = PagingOptions { budget, depth: DEPTH, neurons: NeuronReads::Layer };
        EngineOptions {
            n_ctx: self.text.len().next_multiple_of(32),
            n_ubatch: 32,
            paging: Some(paging),
            adapt,
            placing: self.placing.clone(),
            ..EngineOptions::default()
        }
    }
}

fn run(case: &Case<'_>, adapt: bool) -> Result<Run> {
    let Case { model, options, memory, text, .. } = case;
    let settings = case.settings(*memory, adapt);
    let mut engine = load(model, options, settings)?;
    let (mut sequence, never) = (engine.new_sequence(), AtomicBool::new(false));
    let (mut with, mut without) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    for (i, &token) in text.iter().enumerate() {
        let since = Instant::now();
        engine.feed(&mut sequence, &[token], LogitsRequest::Last, &never, &mut |_, _| {})?;
        let decides = (i + 1).is_multiple_of(DECISION_INTERVAL);
        if decides { &mut with } else { &mut without }.push(since.elapsed().as_secs_f64());
    }
    let seconds = begin.elapsed().as_secs_f64();
    let longer: f64 = with.iter().sum::<f64>() - median(without) * with.len() as f64;
    let stats = engine.take_stats()?;
    Ok(Run {
        rate: text.len() as f64 / seconds,
        exchanged: engine.exchange_stats().map_or(0, |done| done.neurons),
        read_per_token: Bytes(stats.disk.read.0 / text.len() as u64),
        on_device: stats.off_cpu / stats.active.max(1.0),
        exchanging: longer.max(0.0) / seconds,
    })
}

fn load(model: &Arc<Model>, options: &Options, settings: EngineOptions) -> Result<Engine> {
    let devices = vec![cpu_with(CpuOptions::default()), options.device()?];
    let placement = Some(half_of_the_experts(model));
    let quiet = Arc::new(|_: &str| {});
    Ok(Engine::load(Arc::clone(model), devices, settings, placement, quiet, &|_, _| {})?)
}

/// The least host memory with which the model runs.
fn least_memory(case: &Case<'_>) -> Result<Bytes> {
    let mut budget = Bytes(1);
    loop {
        let settings = case.settings(budget, true);
        match load(case.model, case.options, settings) {
            Ok(_) => return Ok(budget),
            Err(error) => match error.downcast_ref() {
                Some(EngineError::Store(store::Error::Capacity { needed, capacity })) => {
                    budget += *needed - *capacity;
                }
                Some(_) | None => return Err(error),
            },
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// A text of two subjects in turn, `every` tokens each. The tokens of a subject are few, so that
/// they use few experts.
fn text(n: usize, every: usize, n_vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((i / every % 2 * 977 + i * i % 3 * 13 + 40) % n_vocab) as u32).collect()
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let options = Options::parse(&arguments)?;
    let generated = tempfile::NamedTempFile::new()?;
    let path = match &options.model {
        Some(path) => path.clone(),
        None => {
            let spec = Spec { n_vocab: 2048, ..Spec::parse(SPEC)? };
            spec.write(generated.path(), &mut |_, _| true)?;
            generated.path().to_owned()
        }
    };
    let model = Arc::new(Model::from_file(File::open(&path)?, &ModelOptions::default())?);
    let expert = model.experts().ok_or("the model has no experts")?.n_ff as u64;
    let more = Bytes((model.file.size_bytes() as f64 * options.memory) as u64);
    let [cpu, device] = measured(&model, &options)?;
    let fast = Speed { dense: 4.0 * cpu.dense, sparse: 4.0 * cpu.sparse, ..device };
    let disk = store::measure(&store::DirectFile::open(&path, None)?)
        .map(|disk| ReadRates { bandwidth: disk.bandwidth, small_reads: disk.small_reads });
    println!(
        "| speeds | subject changes every | fixed tok/s | adapting | ratio | exchanging | experts moved | on the device | read per token |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for (name, speeds) in [("measured", [cpu, device]), ("fast device", [cpu, fast])] {
        for every in [usize::MAX, 192, 32] {
            let text = text(options.n, every, model.n_vocab());
            let placing = PlannerInputs { speeds: speeds.into(), disk, ..PlannerInputs::default() };
            let memory = Bytes(0);
            let mut case = Case { model: &model, options: &options, memory, placing, text: &text };
            case.memory = least_memory(&case)? + more;
            let (mut fixed, mut ratios, mut last) = (Vec::new(), Vec::new(), None);
            for _ in 0..options.rounds.max(1) {
                let (still, moved) = (run(&case, false)?, run(&case, true)?);
                fixed.push(still.rate);
                ratios.push(moved.rate / still.rate);
                last = Some((still, moved));
            }
            let Some((still, moved)) = last else { continue };
            let (fixed, ratio) = (median(fixed), median(ratios));
            let every =
                if every > options.n { "never".to_owned() } else { format!("{every} tokens") };
            println!(
                "| {name} | {every} | {fixed:.2} | {:.2} | {ratio:.3} | {:.1} % | {} | {:.0} % -> {:.0} % | {} -> {} |",
                fixed * ratio,
                100.0 * moved.exchanging,
                moved.exchanged / expert,
                100.0 * still.on_device,
                100.0 * moved.on_device,
                still.read_per_token,
                moved.read_per_token,
            );
        }
    }
    Ok(())
}
