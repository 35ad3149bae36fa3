//! Times the two ops that dominate decode, for each format: bytes per second, and their share of
//! the memory bandwidth. Then times the same ops in prefill: products (multiply-adds) per second.
//! Skipped products count too, so that the figures can be compared with the dense block.
//!
//! `cargo bench --bench ops` measures all formats on the CPU, `cargo bench --bench ops -- Q4_0 F16`
//! some formats; a table of prefetch distances comes first. `--device CUDA0` selects another
//! device, whose memory bandwidth is measured by adding long rows. `--shape 2048x5632` replaces the
//! shape of a 7B model, with proportionally less data. `--json FILE` also writes the results to a
//! file.
//!
//! The weights of several layers are used in turn, so that no layer stays in a cache. The input
//! determines the active neurons: row r of gate is `u[r]` in its first half and 1 in its second
//! half, so `x = (1, .., -c, ..)` activates the rows with `u[r] > c`. The predictor selects the
//! same neurons: the two halves of its hidden values read the two halves of `p = (1, .., c, ..)`,
//! and row r of its second matrix is `u[r]` in the first half and -1 in the second half. Formats
//! without a quantiser have random weights and no lines with skipping.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

mod made;
mod table;

use std::error::Error;
use std::time::{Duration, Instant};

use hal::format::Format;
use hal::op::{
    Activation, Add, Down, FfnKind, HiddenActivation, MatMul, NEVER_DENSE, Predict, Skip, SparseFfn,
};
use hal::{
    Bytes, Device, DeviceId, HostRows, PackDesc, Program, Queue, RowSet, Rows, Tensor, TensorDesc,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use thermocline::bench::{SkippingFfn, probe_size, read_bandwidth, usual_probe_size};
use thermocline::devices::{PrefetchDistance, candidates, cpu, cpu_threads};

use made::{bundle, halves, random, rows};
use table::{DecodeLine, PrefillLine};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Default shape of the feed-forward block.
const SHAPE: Shape = Shape { n_embd: 4096, n_ff: 11008 };
/// Minimum bytes of the weights of all layers of a format, for the default shape; other shapes
/// scale the number by the size of their matrices.
const WEIGHTS: usize = 1 << 30;
const DENSITIES: [f32; 5] = [0.05, 0.1, 0.2, 0.5, 1.0];
/// Number of floats that are added to measure the memory bandwidth, for the default shape: more
/// than fit in any cache.
const N_ADDED: usize = 128 << 20;
/// Tokens per batch in prefill.
const N_PREFILL: usize = 512;
/// Minimum time and minimum number of runs of each measurement.
const TIME: Duration = Duration::from_millis(300);
const RUNS: usize = 7;

#[derive(Clone, Copy)]
struct Shape {
    n_embd: usize,
    n_ff: usize,
}

impl Shape {
    fn parse(text: &str) -> Option<Shape> {
        let (n_embd, n_ff) = text.split_once('x')?;
        let shape = Shape { n_embd: n_embd.parse().ok()?, n_ff: n_ff.parse().ok()? };
        // Rows, and half rows of `n_embd` values, must be whole blocks in every format.
        let whole = |n: usize, block: usize| n > 0 && n.is_multiple_of(block);
        (whole(shape.n_embd, 512) && whole(shape.n_ff, 256)).then_some(shape)
    }

    /// Rank of the predictor, as in PowerInfer's files of the 7B shape.
    fn rank(self) -> usize {
        (self.n_embd / 4).next_multiple_of(512)
    }

    /// Scales `n` by the size of a matrix relative to [`SHAPE`].
    fn scale(self, n: usize) -> usize {
        (n as f64 * (self.n_embd * self.n_ff) as f64 / (SHAPE.n_embd * SHAPE.n_ff) as f64) as usize
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this program without `--bench`; it must then exit at once.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let value = |flag: &str| {
        let at = arguments.iter().position(|argument| argument == flag)?;
        arguments.get(at + 1)
    };
    let (named, json, shape_arg) = (value("--device"), value("--json"), value("--shape"));
    let device = named.map_or_else(|| Ok(cpu(None)), |name| open(name))?;
    let wrong = || "--shape needs N_EMBDxN_FF, multiples of 512 and of 256, such as 4096x11008";
    let shape = shape_arg.map_or(Ok(SHAPE), |text| Shape::parse(text).ok_or_else(wrong))?;
    let n_threads = cpu_threads(None);
    let free = device.memory()?.free;
    let probe = || -> Result<f64> {
        match named {
            None => Ok(read_bandwidth(n_threads, probe_size(usual_probe_size(None), free))
                .ok_or("not enough memory to measure the read bandwidth")?),
            Some(_) => add_bandwidth(&device, shape),
        }
    };
    let is_value = |a: &&String| [named, json, shape_arg].contains(&Some(*a));
    let formats = arguments.iter().filter(|a| !a.starts_with('-') && !is_value(a));
    let formats = weights(&formats.collect::<Vec<_>>())?;
    println!("{}", device.info().description);
    if named.is_none() {
        let quarter = free.map_or(Bytes::MAX, |free| Bytes(free.0 / 4));
        let rates = PrefetchDistance::rates(n_threads, quarter);
        let rates = rates.ok_or("not enough memory to measure prefetch distances")?;
        table::print_prefetch(&PrefetchDistance::CANDIDATES, &rates, probe()?);
    }
    println!(
        "| op | format | density | ms | GB/s | read | share |\n|---|---|---:|---:|---:|---:|---:|"
    );
    let (mut decode_lines, mut prefill_lines) = (Vec::new(), Vec::new());
    for format in formats {
        let weights = Weights::new(&device, shape, format)?;
        decode_lines.extend(weights.measure(&device, &probe)?);
        prefill_lines.extend(weights.measure_prefill(&device)?);
    }
    println!("\n| {N_PREFILL} tokens | format | ms | G products/s |\n|---|---|---:|---:|");
    prefill_lines.iter().for_each(PrefillLine::print);
    if let Some(path) = json {
        let shape = json!({ "n_embd": shape.n_embd, "n_ff": shape.n_ff, "n_prompt": N_PREFILL });
        std::fs::write(path, table::json(device.info(), shape, &decode_lines, &prefill_lines))?;
    }
    Ok(())
}

/// The formats with these names; without names, all weight formats.
fn weights(names: &[&String]) -> Result<Vec<Format>> {
    let all = || Format::ALL.iter().copied().filter(|format| format.is_weight());
    let known = |name: &&&String| all().any(|format| format.name() == **name);
    if let Some(other) = names.iter().find(|name| !known(name)) {
        return Err(
            format!("{other} is not a weight format; name formats such as Q4_0 or F16").into()
        );
    }
    let wanted = |format: &Format| names.iter().any(|name| *name == format.name());
    Ok(all().filter(|format| names.is_empty() || wanted(format)).collect())
}

fn open(name: &str) -> Result<Device> {
    let (found, missing) = candidates(None);
    let candidate = found.iter().find(|candidate| candidate.name == name);
    let candidate = candidate.ok_or_else(|| {
        format!("device {name} not found; backends that are not available: {missing:?}")
    })?;
    Ok(Device::new(candidate.open()?, DeviceId(1), Bytes::MAX))
}

/// Memory bandwidth in GB/s of an addition of long rows, which reads two rows and writes one.
fn add_bandwidth(device: &Device, shape: Shape) -> Result<f64> {
    let n_rows = (shape.scale(N_ADDED) / shape.n_embd).max(1);
    let [a, x] = ["a", "x"].map(|label| device.alloc_f32(label, n_rows, shape.n_embd));
    let mut recorder = device.record("adding");
    recorder.push(Add { a: a?, x: x? })?;
    let (program, mut queue) = (recorder.finish()?, device.queue("adding")?);
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let begin = Instant::now();
        queue.replay(&program)?.wait()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok((3 * 4 * n_rows * shape.n_embd) as f64 / best / 1e9)
}

/// The feed-forward weights of several layers.
struct Weights {
    shape: Shape,
    format: Format,
    layers: Vec<Layer>,
}

struct Layer {
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    down_by_neuron: Tensor,
    /// Gate, up and down as columns of one matrix, for row lists; down is transposed, as in
    /// PowerInfer's files.
    bundle: [Tensor; 3],
    fc1: Tensor,
    fc2: Tensor,
}

impl Weights {
    fn new(device: &Device, shape: Shape, format: Format) -> Result<Weights> {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let Shape { n_embd, n_ff } = shape;
        let matrix = format.row_bytes(n_embd).ok_or("rows must be whole blocks")? * n_ff;
        let layers = (0..shape.scale(WEIGHTS).div_ceil(3 * matrix)).map(|_| {
            let firing: Vec<f32> = (0..n_ff).map(|_| rng.random_range(0.0..1.0)).collect();
            let gate = halves(format, n_embd, firing.iter().map(|&u| (u, 1.0)))?;
            let fc2 = halves(format, shape.rank(), firing.iter().map(|&u| (u, -1.0)))?;
            let hidden = |i| if i < shape.rank() / 2 { (1.0, 0.0) } else { (0.0, 1.0) };
            let fc1 = halves(format, n_embd, (0..shape.rank()).map(hidden))?;
            let down_rows = rows(random(format, n_ff, n_embd, &mut rng)?, n_ff, n_embd, format)?;
            let up = rows(random(format, n_ff, n_embd, &mut rng)?, n_ff, n_embd, format)?;
            let down = rows(random(format, n_embd, n_ff, &mut rng)?, n_embd, n_ff, format)?;
            let whole =
                |label, rows: &HostRows| device.import(label, &PackDesc::whole(rows.desc()), rows);
            let transposed = PackDesc { transpose: true, ..PackDesc::whole(down.desc()) };
            Ok(Layer {
                gate: whole("gate", &gate)?,
                up: whole("up", &up)?,
                down: whole("down", &down)?,
                down_by_neuron: device.import("down by neuron", &transposed, &down)?,
                bundle: bundle(device, shape, [&gate, &up, &down_rows])?,
                fc1: whole("fc1", &fc1)?,
                fc2: whole("fc2", &fc2)?,
            })
        });
        Ok(Weights { shape, format, layers: layers.collect::<Result<_>>()? })
    }

    /// Lines of the decode table. The memory bandwidth is measured before and after each line,
    /// because other processes may change it from second to second.
    fn measure(&self, device: &Device, probe: &dyn Fn() -> Result<f64>) -> Result<Vec<DecodeLine>> {
        let format = self.format;
        let bytes = |tensor: &Tensor| {
            let desc = hal::Operand::desc(tensor);
            desc.bytes().map_or(0.0, |bytes: Bytes| bytes.0 as f64)
        };
        let layer = &self.layers[0];
        let (gate, up, down) = (bytes(&layer.gate), bytes(&layer.up), bytes(&layer.down));
        let desc = hal::Operand::desc;
        let skipping = SkippingFfn::new(Some(desc(&layer.up)), desc(&layer.down), false);
        let (mut before, mut lines) = (probe()?, Vec::new());
        let mut line =
            |op: &'static str, density: Option<f64>, time: f64, bytes: f64| -> Result<()> {
                let after = probe()?;
                let (ms, rate, read) = (1e3 * time, bytes / time / 1e9, (before + after) / 2.0);
                let line = DecodeLine { op, format, density, ms, rate, read };
                line.print();
                lines.push(line);
                before = after;
                Ok(())
            };
        let mut bench = Bench::new(device, self.shape, 1)?;
        let program = bench.program(device, &self.layers, BenchedOp::MatMul)?;
        line("MatMul", None, bench.time(&program, 1.0)? / self.n_layer(), gate)?;
        let program = bench.program(device, &self.layers, BenchedOp::Dense)?;
        line(
            "SparseFfn, dense",
            None,
            bench.time(&program, 1.0)? / self.n_layer(),
            gate + up + down,
        )?;
        if !format.quantizes() {
            return Ok(lines);
        }
        let program = bench.program(device, &self.layers, BenchedOp::Sparse)?;
        for wanted in DENSITIES {
            let time = bench.time(&program, wanted)? / self.n_layer();
            let density = bench.density(&program, self.layers.len())?;
            line("SparseFfn", Some(density), time, gate + skipping.bytes(density))?;
        }
        let predictor = bytes(&layer.fc1) + bytes(&layer.fc2) + (4 * self.shape.n_ff) as f64;
        let skipping = SkippingFfn::new(Some(desc(&layer.up)), desc(&layer.bundle[2]), true);
        let alone = bench.program(device, &self.layers, BenchedOp::Predict)?;
        let both = bench.program(device, &self.layers, BenchedOp::PredictFfn)?;
        for wanted in DENSITIES {
            let first = bench.time(&alone, wanted)? / self.n_layer();
            let all = bench.time(&both, wanted)? / self.n_layer();
            let density = bench.density(&both, self.layers.len())?;
            let listed = density * gate + skipping.bytes(density);
            line("Predict", Some(density), first, predictor)?;
            line("Predict, SparseFfn", Some(density), all, predictor + listed)?;
            line("SparseFfn (difference)", Some(density), all - first, listed)?;
        }
        Ok(lines)
    }

    /// Lines of the prefill table: one layer, whose weights are reused by every token.
    fn measure_prefill(&self, device: &Device) -> Result<Vec<PrefillLine>> {
        let mut bench = Bench::new(device, self.shape, N_PREFILL)?;
        let matrix = (self.shape.n_embd * self.shape.n_ff * N_PREFILL) as f64;
        let ops = [
            ("MatMul", BenchedOp::MatMul, 1.0, matrix),
            ("SparseFfn, dense", BenchedOp::Dense, 1.0, 3.0 * matrix),
            ("SparseFfn at 10 %", BenchedOp::Sparse, 0.1, 3.0 * matrix),
        ];
        let ops = ops.into_iter().filter(|(_, kind, _, _)| {
            self.format.quantizes() || !matches!(kind, BenchedOp::Sparse)
        });
        let lines = ops.map(|(op, kind, density, products)| {
            let program = bench.program(device, &self.layers[..1], kind)?;
            let time = bench.time(&program, density)?;
            let (ms, rate) = (1e3 * time, products / time / 1e9);
            Ok(PrefillLine { op, format: self.format, ms, rate })
        });
        lines.collect()
    }

    fn n_layer(&self) -> f64 {
        self.layers.len() as f64
    }
}

#[derive(Clone, Copy)]
enum BenchedOp {
    MatMul,
    Dense,
    Sparse,
    Predict,
    PredictFfn,
}

/// Tensors of the programs, except weights.
struct Bench {
    shape: Shape,
    n_tokens: usize,
    queue: Queue,
    x: Tensor,
    /// Input of the predictor.
    p: Tensor,
    slots: Tensor,
    list: RowSet<Tensor>,
    y: Tensor,
    h: Tensor,
    active: Tensor,
}

impl Bench {
    fn new(device: &Device, shape: Shape, n_tokens: usize) -> Result<Bench> {
        let Shape { n_embd, n_ff } = shape;
        let mut queue = device.queue("bench")?;
        let slots = device.alloc("slots", TensorDesc::new(1, n_ff, Format::U32))?;
        queue.write(&slots, bytemuck::cast_slice(&(0..n_ff as u32).collect::<Vec<_>>()))?;
        Ok(Bench {
            shape,
            n_tokens,
            queue,
            x: device.alloc_f32("x", n_tokens, n_embd)?,
            p: device.alloc_f32("p", n_tokens, n_embd)?,
            slots,
            list: device.row_set(n_ff, n_tokens)?,
            y: device.alloc_f32("y", n_tokens, n_embd)?,
            h: device.alloc_f32("h", n_tokens, n_ff)?,
            active: device.alloc_f32("active", 1, n_tokens)?,
        })
    }

    fn program(&self, device: &Device, layers: &[Layer], kind: BenchedOp) -> Result<Program> {
        let mut recorder = device.record("ops");
        for layer in layers {
            if let BenchedOp::Predict | BenchedOp::PredictFfn = kind {
                recorder.push(Predict {
                    x: self.p.clone(),
                    fc1: Some(layer.fc1.clone()),
                    fc2: layer.fc2.clone(),
                    bias: None,
                    slots: self.slots.clone(),
                    resident: self.list.clone(),
                    absent: None,
                    threshold: 0.0,
                    hidden: HiddenActivation::Relu,
                })?;
            }
            let (mut gate, mut up) = (&layer.gate, &layer.up);
            let (down, skip, orientation) = match kind {
                BenchedOp::Predict => continue,
                BenchedOp::PredictFfn => {
                    let down;
                    [gate, up, down] = layer.bundle.each_ref();
                    (down, Skip::NotPositive, Down::ByNeuron)
                }
                BenchedOp::MatMul => {
                    let (w, x, y) = (layer.gate.clone(), self.x.clone(), self.h.clone());
                    recorder.push(MatMul { w, x, bias: None, y })?;
                    continue;
                }
                BenchedOp::Dense => (&layer.down, Skip::Never, Down::AcrossNeurons),
                BenchedOp::Sparse => (&layer.down_by_neuron, Skip::NotPositive, Down::ByNeuron),
            };
            recorder.push(SparseFfn {
                gate: Some(gate.clone()),
                up: up.clone(),
                down: down.clone(),
                bias_gate: None,
                bias_up: None,
                bias_down: None,
                threshold: None,
                experts: None,
                expert_weights: None,
                rows: match kind {
                    BenchedOp::PredictFfn => Rows::Active(self.list.clone()),
                    BenchedOp::MatMul
                    | BenchedOp::Dense
                    | BenchedOp::Sparse
                    | BenchedOp::Predict => Rows::All,
                },
                x: self.x.clone(),
                y: self.y.clone(),
                active: self.active.clone(),
                hits: None,
                union: None,
                kind: FfnKind::Gated,
                activation: Activation::Relu,
                skip,
                orientation,
                dense_from: NEVER_DENSE,
                accumulate: false,
            })?;
        }
        Ok(recorder.finish()?)
    }

    /// Median seconds of a replay in which the share `density` of the neurons is active.
    fn time(&mut self, program: &Program, density: f32) -> Result<f64> {
        let (first, second) = (self.shape.n_embd / 2, self.shape.n_embd - self.shape.n_embd / 2);
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

    /// Share of active neurons with the last input.
    fn density(&mut self, program: &Program, n_layer: usize) -> Result<f64> {
        let mut active = [0.0];
        self.queue.write(&self.active, bytemuck::cast_slice(&active))?;
        self.queue.replay(program)?.wait()?;
        self.queue.read_f32(&self.active, &mut active)?;
        Ok(f64::from(active[0]) / (n_layer * self.shape.n_ff) as f64)
    }
}
