//! The two ops that decoding one token consists of, per format: bytes a second, and the share of what memory gives.
//! Then the same with a prompt's tokens: products (multiplications with an addition) a second. Skipping counts none
//! of what it skips, so its products are those of the dense block.
//!
//! `cargo bench --bench ops`, or `cargo bench --bench ops -- Q4_0 F16` for some formats, `--device CUDA0` for another
//! device than the CPU: what its memory gives is then measured by adding long rows, on it. Weights of several layers are
//! used in turn, so that none of them stays in a cache. Which neurons fire is chosen by the input: row r of gate is
//! `u[r]` in its first half and 1 in its second, so `x = (1, .., -c, ..)` fires those with `u[r] > c`. The predictor
//! wants the same: the halves of its hidden values read the halves of `p = (1, .., c, ..)`, and row r of its second
//! matrix is `u[r]` and -1. Formats that nothing rounds to have random weights and no lines of skipping.
#![allow(clippy::print_stdout, reason = "a table is what this program makes")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hal::format::Format;
use hal::op::{Activation, Add, Down, FfnKind, Hidden, MatMul, Predict, Skip, SparseFfn};
use hal::{
    Bytes, Device, DeviceId, HostRows, PackDesc, Program, Queue, RowSet, Rows, Select, Source,
    Tensor, TensorDesc,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thermocline::bench::{SkippingFfn, probe_size, read_bandwidth};
use thermocline::devices::{candidates, cpu, cpu_threads};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const N_EMBD: usize = 4096;
const N_FF: usize = 11008;
/// Rank of the predictor, as in PowerInfer's files of this shape.
const RANK: usize = 1024;
/// Weights of all layers of a format, at least.
const WEIGHTS: usize = 1 << 30;
/// Rows made by quantising; the rest are copies of them.
const N_DISTINCT: usize = 16;
const DENSITIES: [f32; 5] = [0.05, 0.1, 0.2, 0.5, 1.0];
/// Rows that are added to see what memory gives: more than any cache holds.
const N_ADDED: usize = 32 << 10;
/// Tokens of a prompt.
const N_PROMPT: usize = 512;
/// Each program is timed at least so long and so often.
const TIME: Duration = Duration::from_millis(300);
const RUNS: usize = 7;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this too, and does not want to wait for it.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let at = arguments.iter().position(|argument| argument == "--device");
    let named = at.and_then(|at| arguments.get(at + 1));
    let device = named.map_or_else(|| Ok(cpu(None)), |name| open(name))?;
    let n_threads = cpu_threads(None);
    let free = device.memory()?.free;
    let probe = || -> Result<f64> {
        match named {
            None => {
                Ok(read_bandwidth(n_threads, probe_size(free)).ok_or("no memory for the probe")?)
            }
            Some(_) => adding(&device),
        }
    };
    println!("{}", device.info().description);
    println!(
        "| op | format | density | ms | GB/s | read | share |\n|---|---|---:|---:|---:|---:|---:|"
    );
    let wanted = |format: &Format| {
        let formats = arguments.iter().filter(|a| !a.starts_with('-') && Some(*a) != named);
        let formats: Vec<_> = formats.collect();
        format.is_weight()
            && (formats.is_empty() || formats.iter().any(|name| *name == format.name()))
    };
    let mut prompts = Vec::new();
    for format in Format::ALL.iter().copied().filter(wanted) {
        let weights = Weights::new(&device, format)?;
        weights.measure(&device, &probe)?;
        prompts.extend(weights.measure_prompt(&device)?);
    }
    println!("\n| {N_PROMPT} tokens | format | ms | G products/s |\n|---|---|---:|---:|");
    prompts.iter().for_each(|line| println!("{line}"));
    Ok(())
}

/// The device of this name.
fn open(name: &str) -> Result<Device> {
    let (found, missing) = candidates(None);
    let candidate = found.iter().find(|candidate| candidate.name == name);
    let candidate = candidate.ok_or_else(|| format!("no device {name}: {missing:?}"))?;
    Ok(Device::new(candidate.open()?, DeviceId(1), Bytes::MAX))
}

/// GB/s of a sum of long rows: two are read and one is written.
fn adding(device: &Device) -> Result<f64> {
    let [a, x] = ["a", "x"].map(|label| device.alloc_f32(label, N_ADDED, N_EMBD));
    let mut recorder = device.record("adding");
    recorder.push(Add { a: a?, x: x? })?;
    let (program, mut queue) = (recorder.finish()?, device.queue("adding")?);
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let begin = Instant::now();
        queue.replay(&program)?.wait()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok((3 * 4 * N_ADDED * N_EMBD) as f64 / best / 1e9)
}

/// The feed-forward weights of several layers.
struct Weights {
    format: Format,
    layers: Vec<Layer>,
}

struct Layer {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    down_by_neuron: Tensor,
    /// Gate, up and down side by side, as neurons on a list are read; down as PowerInfer's files have it.
    bundle: [Tensor; 3],
    fc1: Tensor,
    fc2: Tensor,
}

impl Weights {
    fn new(device: &Device, format: Format) -> Result<Weights> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let matrix = format.row_bytes(N_EMBD).ok_or("whole blocks")? * N_FF;
        let layers = (0..WEIGHTS.div_ceil(3 * matrix)).map(|_| {
            let firing: Vec<f32> = (0..N_FF).map(|_| rng.random_range(0.0..1.0)).collect();
            let gate = halves(format, N_EMBD, firing.iter().map(|&u| (u, 1.0)))?;
            let fc2 = halves(format, RANK, firing.iter().map(|&u| (u, -1.0)))?;
            let hidden = |i| if i < RANK / 2 { (1.0, 0.0) } else { (0.0, 1.0) };
            let fc1 = halves(format, N_EMBD, (0..RANK).map(hidden))?;
            let down_rows = rows(random(format, N_FF, N_EMBD, &mut rng)?, N_FF, N_EMBD, format)?;
            let up = rows(random(format, N_FF, N_EMBD, &mut rng)?, N_FF, N_EMBD, format)?;
            let down = rows(random(format, N_EMBD, N_FF, &mut rng)?, N_EMBD, N_FF, format)?;
            let whole =
                |label, rows: &HostRows| device.import(label, &PackDesc::whole(rows.desc()), rows);
            let transposed =
                PackDesc { source: down.desc(), select: Select::All, transpose: true, spare: 0 };
            Ok(Layer {
                gate: whole("gate", &gate)?,
                up: whole("up", &up)?,
                down: whole("down", &down)?,
                down_by_neuron: device.import("down by neuron", &transposed, &down)?,
                bundle: bundle(device, [&gate, &up, &down_rows])?,
                fc1: whole("fc1", &fc1)?,
                fc2: whole("fc2", &fc2)?,
            })
        });
        Ok(Weights { format, layers: layers.collect::<Result<_>>()? })
    }

    /// Lines of the table of single tokens. Memory is probed before and after each, since neighbours may change what
    /// it gives from second to second.
    fn measure(&self, device: &Device, probe: &dyn Fn() -> Result<f64>) -> Result<()> {
        let format = self.format;
        let bytes = |tensor: &Tensor| {
            let desc = hal::Operand::desc(tensor);
            desc.bytes().map_or(0.0, |bytes: Bytes| bytes.0 as f64)
        };
        let layer = &self.layers[0];
        let (gate, up, down) = (bytes(&layer.gate), bytes(&layer.up), bytes(&layer.down));
        let desc = hal::Operand::desc;
        let skipping = SkippingFfn::new(Some(desc(&layer.up)), desc(&layer.down), false);
        let mut before = probe()?;
        let mut line = |op: &str, density: Option<f64>, time: f64, bytes: f64| -> Result<()> {
            let density = density.map_or_else(String::new, |d| format!("{:.1}%", 100.0 * d));
            let after = probe()?;
            let (ms, rate, read) = (1e3 * time, bytes / time / 1e9, (before + after) / 2.0);
            let share = 100.0 * rate / read;
            println!(
                "| {op} | {format} | {density} | {ms:.3} | {rate:.1} | {read:.1} | {share:.0}% |"
            );
            before = after;
            Ok(())
        };
        let mut bench = Bench::new(device, 1)?;
        let program = bench.program(device, &self.layers, Kind::MatMul)?;
        line("MatMul", None, bench.time(&program, 1.0)? / self.n_layer(), gate)?;
        let program = bench.program(device, &self.layers, Kind::Dense)?;
        line(
            "SparseFfn, dense",
            None,
            bench.time(&program, 1.0)? / self.n_layer(),
            gate + up + down,
        )?;
        if !format.quantizes() {
            return Ok(());
        }
        let program = bench.program(device, &self.layers, Kind::Sparse)?;
        for wanted in DENSITIES {
            let time = bench.time(&program, wanted)? / self.n_layer();
            let density = bench.density(&program, self.layers.len())?;
            line("SparseFfn", Some(density), time, gate + skipping.bytes(density))?;
        }
        let predictor = bytes(&layer.fc1) + bytes(&layer.fc2) + (4 * N_FF) as f64;
        let skipping = SkippingFfn::new(Some(desc(&layer.up)), desc(&layer.bundle[2]), true);
        let alone = bench.program(device, &self.layers, Kind::Predict)?;
        let both = bench.program(device, &self.layers, Kind::Predicted)?;
        for wanted in DENSITIES {
            let first = bench.time(&alone, wanted)? / self.n_layer();
            let all = bench.time(&both, wanted)? / self.n_layer();
            let density = bench.density(&both, self.layers.len())?;
            let listed = density * gate + skipping.bytes(density);
            line("Predict", Some(density), first, predictor)?;
            line("Predict, SparseFfn", Some(density), all, predictor + listed)?;
            line("the second of them", Some(density), all - first, listed)?;
        }
        Ok(())
    }

    /// Lines of the table of prompts: one layer, whose weights are used again by every token.
    fn measure_prompt(&self, device: &Device) -> Result<Vec<String>> {
        let mut bench = Bench::new(device, N_PROMPT)?;
        let matrix = (N_EMBD * N_FF * N_PROMPT) as f64;
        let ops = [
            ("MatMul", Kind::MatMul, 1.0, matrix),
            ("SparseFfn, dense", Kind::Dense, 1.0, 3.0 * matrix),
            ("SparseFfn at 10 %", Kind::Sparse, 0.1, 3.0 * matrix),
        ];
        let ops = ops
            .into_iter()
            .filter(|(_, kind, _, _)| self.format.quantizes() || !matches!(kind, Kind::Sparse));
        let lines = ops.map(|(op, kind, density, products)| {
            let program = bench.program(device, &self.layers[..1], kind)?;
            let time = bench.time(&program, density)?;
            let (ms, rate) = (1e3 * time, products / time / 1e9);
            Ok(format!("| {op} | {} | {ms:.1} | {rate:.0} |", self.format))
        });
        lines.collect()
    }

    fn n_layer(&self) -> f64 {
        self.layers.len() as f64
    }
}

#[derive(Clone, Copy)]
enum Kind {
    MatMul,
    Dense,
    Sparse,
    Predict,
    Predicted,
}

/// What the programs read and write besides weights.
struct Bench {
    n_tokens: usize,
    queue: Queue,
    x: Tensor,
    /// What the predictor reads.
    p: Tensor,
    slots: Tensor,
    list: RowSet<Tensor>,
    y: Tensor,
    h: Tensor,
    active: Tensor,
}

impl Bench {
    fn new(device: &Device, n_tokens: usize) -> Result<Bench> {
        let mut queue = device.queue("bench")?;
        let slots = device.alloc("slots", TensorDesc::new(1, N_FF, Format::U32))?;
        queue.write(&slots, bytemuck::cast_slice(&(0..N_FF as u32).collect::<Vec<_>>()))?;
        Ok(Bench {
            n_tokens,
            queue,
            x: device.alloc_f32("x", n_tokens, N_EMBD)?,
            p: device.alloc_f32("p", n_tokens, N_EMBD)?,
            slots,
            list: device.row_set(N_FF, n_tokens)?,
            y: device.alloc_f32("y", n_tokens, N_EMBD)?,
            h: device.alloc_f32("h", n_tokens, N_FF)?,
            active: device.alloc_f32("active", 1, n_tokens)?,
        })
    }

    fn program(&self, device: &Device, layers: &[Layer], kind: Kind) -> Result<Program> {
        let mut recorder = device.record("ops");
        for layer in layers {
            if let Kind::Predict | Kind::Predicted = kind {
                recorder.push(Predict {
                    x: self.p.clone(),
                    fc1: Some(layer.fc1.clone()),
                    fc2: layer.fc2.clone(),
                    bias: None,
                    slots: self.slots.clone(),
                    resident: self.list.clone(),
                    absent: None,
                    threshold: 0.0,
                    hidden: Hidden::Relu,
                })?;
            }
            let (mut gate, mut up) = (&layer.gate, &layer.up);
            let (down, skip, orientation) = match kind {
                Kind::Predict => continue,
                Kind::Predicted => {
                    let down;
                    [gate, up, down] = layer.bundle.each_ref();
                    (down, Skip::NotPositive, Down::ByNeuron)
                }
                Kind::MatMul => {
                    let (w, x, y) = (layer.gate.clone(), self.x.clone(), self.h.clone());
                    recorder.push(MatMul { w, x, bias: None, y })?;
                    continue;
                }
                Kind::Dense => (&layer.down, Skip::Never, Down::AcrossNeurons),
                Kind::Sparse => (&layer.down_by_neuron, Skip::NotPositive, Down::ByNeuron),
            };
            recorder.push(SparseFfn {
                gate: Some(gate.clone()),
                up: up.clone(),
                down: down.clone(),
                bias_gate: None,
                bias_up: None,
                bias_down: None,
                threshold: None,
                groups: None,
                group_weight: None,
                rows: match kind {
                    Kind::Predicted => Rows::Active(self.list.clone()),
                    Kind::MatMul | Kind::Dense | Kind::Sparse | Kind::Predict => Rows::All,
                },
                x: self.x.clone(),
                y: self.y.clone(),
                active: self.active.clone(),
                hits: None,
                kind: FfnKind::Gated,
                activation: Activation::Relu,
                skip,
                orientation,
                accumulate: false,
            })?;
        }
        Ok(recorder.finish()?)
    }

    /// Median seconds of a replay in which the share `density` of the neurons fires.
    fn time(&mut self, program: &Program, density: f32) -> Result<f64> {
        let (first, second) = (N_EMBD / 2, N_EMBD - N_EMBD / 2);
        let cut = density - 1.0;
        let x = [vec![1.0; first], vec![cut; second]].concat().repeat(self.n_tokens);
        self.queue.write(&self.x, bytemuck::cast_slice(&x))?;
        let p = [vec![1.0; first], vec![-cut; second]].concat().repeat(self.n_tokens);
        self.queue.write(&self.p, bytemuck::cast_slice(&p))?;
        self.queue.replay(program)?.wait()?;
        let (mut times, begin) = (Vec::new(), Instant::now());
        while times.len() < RUNS || begin.elapsed() < TIME {
            let begin = Instant::now();
            self.queue.replay(program)?.wait()?;
            times.push(begin.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    /// The share that fired with the last input.
    fn density(&mut self, program: &Program, n_layer: usize) -> Result<f64> {
        let mut active = [0.0];
        self.queue.write(&self.active, bytemuck::cast_slice(&active))?;
        self.queue.replay(program)?.wait()?;
        self.queue.read_f32(&self.active, &mut active)?;
        Ok(f64::from(active[0]) / (n_layer * N_FF) as f64)
    }
}

/// The three side by side on the device.
fn bundle(device: &Device, parts: [&HostRows; 3]) -> Result<[Tensor; 3]> {
    let mut bytes = Vec::new();
    for row in 0..N_FF {
        for part in parts {
            bytes.extend_from_slice(&part.rows(row..row + 1)?);
        }
    }
    let wide = rows(bytes, N_FF, 3 * N_EMBD, parts[0].desc().format)?;
    let wide = device.import("bundle", &PackDesc::whole(wide.desc()), &wide)?;
    Ok([0, 1, 2].map(|i| wide.columns(i * N_EMBD..(i + 1) * N_EMBD)))
}

fn rows(bytes: Vec<u8>, n_rows: usize, n_cols: usize, format: Format) -> Result<HostRows> {
    Ok(HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, format)?)
}

/// Rows of `n_cols` that are one value in their first half and another in their second.
fn halves(
    format: Format,
    n_cols: usize,
    values: impl Iterator<Item = (f32, f32)>,
) -> Result<HostRows> {
    if !format.quantizes() {
        let n_rows = values.count();
        let some = conformance::random_weights(format, N_DISTINCT * n_cols, 1);
        return rows(some.repeat(n_rows / N_DISTINCT), n_rows, n_cols, format);
    }
    let block = |value: f32| {
        let mut bytes = vec![0; format.block_bytes()];
        format.quantize(&vec![value; format.block_values()], &mut bytes);
        bytes
    };
    let (n_blocks, mut n_rows) = (n_cols / format.block_values(), 0);
    let mut bytes = Vec::new();
    for (first, second) in values {
        bytes.extend(block(first).repeat(n_blocks / 2));
        bytes.extend(block(second).repeat(n_blocks - n_blocks / 2));
        n_rows += 1;
    }
    rows(bytes, n_rows, n_cols, format)
}

/// A few random rows, again and again.
fn random(format: Format, n_rows: usize, n_cols: usize, rng: &mut ChaCha8Rng) -> Result<Vec<u8>> {
    if !format.quantizes() {
        let some = conformance::random_weights(format, N_DISTINCT * n_cols, rng.random());
        return Ok(some.repeat(n_rows / N_DISTINCT));
    }
    let values: Vec<f32> =
        (0..N_DISTINCT * n_cols).map(|_| rng.random_range(-0.02..0.02)).collect();
    let mut bytes = vec![0; N_DISTINCT * format.row_bytes(n_cols).ok_or("whole blocks")?];
    format.quantize(&values, &mut bytes);
    Ok(bytes.repeat(n_rows / N_DISTINCT))
}
