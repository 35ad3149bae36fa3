//! Times decoding with experts that follow the text to a device, against a fixed placement, with
//! weights on disk: texts that keep to a subject, and texts whose subject changes so often that
//! every exchange is too late.
//!
//! `cargo bench --bench adapt`, or `cargo bench --bench adapt -- -m FILE --device Vulkan0 -n 256 -r 3
//! --memory 0.3`. Half of each layer's experts are on the device. Without `-m`, the model is
//! generated; without `--device`, the device is simulated, and only the ratios have a meaning.
//! `--memory` is the host memory for weights as a part of the file's size.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use hal::{Backend, Bytes, Device, DeviceId};
use sim::{SimBackend, SimOptions};
use thermocline::devices::{CpuOptions, candidates, cpu_with};
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, NeuronReads, PagingOptions};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::{LayerPlacement, Neurons, Placement, Share};
use thermocline::synthetic::Spec;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const SPEC: &str = "512x6x512x8/4*32/4:Q8_0:silu";
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
        let mut options = Options { model: None, device: None, n: 256, rounds: 3, memory: 0.3 };
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

/// What a run took.
struct Run {
    rate: f64,
    exchanged: u64,
    read_per_token: Bytes,
    on_device: f64,
}

fn run(
    model: &Arc<Model>,
    options: &Options,
    memory: Bytes,
    adapt: bool,
    text: &[u32],
) -> Result<Run> {
    let paging = Some(PagingOptions { budget: memory, depth: DEPTH, neurons: NeuronReads::Layer });
    let settings = EngineOptions {
        n_ctx: text.len().next_multiple_of(32),
        n_ubatch: 32,
        paging,
        adapt,
        ..EngineOptions::default()
    };
    let devices = vec![cpu_with(CpuOptions::default()), options.device()?];
    let placement = Some(half_of_the_experts(model));
    let quiet = Arc::new(|_: &str| {});
    let mut engine =
        Engine::load(Arc::clone(model), devices, settings, placement, quiet, &|_, _| {})?;
    let (mut sequence, never) = (engine.new_sequence(), AtomicBool::new(false));
    let since = Instant::now();
    for &token in text {
        engine.feed(&mut sequence, &[token], LogitsRequest::Last, &never, &mut |_, _| {})?;
    }
    let seconds = since.elapsed().as_secs_f64();
    let stats = engine.take_stats()?;
    Ok(Run {
        rate: text.len() as f64 / seconds,
        exchanged: engine.exchange_stats().map_or(0, |done| done.neurons),
        read_per_token: Bytes(stats.disk.read.0 / text.len() as u64),
        on_device: stats.off_cpu / stats.active.max(1.0),
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
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
    let memory = Bytes((model.file.size_bytes() as f64 * options.memory) as u64 + (64 << 20));
    println!(
        "| subject changes every | fixed tok/s | adapting | ratio | experts moved | on the device | read per token |"
    );
    println!("|---|---|---|---|---|---|---|");
    let n_vocab = model.n_vocab();
    for every in [usize::MAX, 128, 32] {
        let text: Vec<u32> = (0..options.n)
            .map(|i| ((i / every * 977 + i * i % 3 * 13 + 40) % n_vocab) as u32)
            .collect();
        let (mut fixed, mut ratios, mut last) = (Vec::new(), Vec::new(), None);
        for _ in 0..options.rounds.max(1) {
            let [still, moved] =
                [false, true].map(|adapt| run(&model, &options, memory, adapt, &text));
            let (still, moved) = (still?, moved?);
            fixed.push(still.rate);
            ratios.push(moved.rate / still.rate);
            last = Some((still, moved));
        }
        let Some((still, moved)) = last else { continue };
        let (fixed, ratio) = (median(fixed), median(ratios));
        let every =
            if every == usize::MAX { "never".to_owned() } else { format!("{every} tokens") };
        println!(
            "| {every} | {fixed:.2} | {:.2} | {ratio:.3} | {} | {:.0} % -> {:.0} % | {} -> {} |",
            fixed * ratio,
            moved.exchanged / expert,
            100.0 * still.on_device,
            100.0 * moved.on_device,
            still.read_per_token,
            moved.read_per_token,
        );
    }
    Ok(())
}
