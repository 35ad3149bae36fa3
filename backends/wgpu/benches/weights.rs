//! Measures ops that read weights: bytes of weights per second in decode, and tokens per second in
//! prefill.
//!
//! `cargo bench -p thermocline-wgpu --bench weights -- [device number] [format ...]`
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::sync::Arc;
use std::time::Instant;

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, MatMul, NEVER_DENSE, Skip, SparseFfn};
use hal::{
    Bytes, Device, DeviceId, HostRows, PackDesc, Program, Queue, Result, Rows, Source, Tensor,
};
use thermocline_wgpu::{Options, adapters};

/// Sizes of the FFN block of a 7B model.
const N_EMBD: usize = 4096;
const N_FF: usize = 14336;
/// The row list has every `ONE_IN`-th neuron.
const ONE_IN: usize = 10;
const ROUNDS: usize = 15;

/// Median time of [`ROUNDS`] runs in seconds, after a warm-up run.
fn median(queue: &mut Queue, program: &Program) -> Result<f64> {
    queue.replay(program)?.wait()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        queue.replay(program)?.wait()?;
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn matrix(device: &Device, n_rows: usize, n_cols: usize, format: Format) -> Result<Tensor> {
    let bytes = conformance::random_weights(format, n_rows * n_cols, 3);
    let rows = HostRows::new(Source::Owned(Arc::new(bytes)), n_rows, n_cols, format)?;
    device.import("weight", &PackDesc::whole(rows.desc()), &rows)
}

fn values(device: &Device, queue: &mut Queue, n_rows: usize, n_cols: usize) -> Result<Tensor> {
    let tensor = device.alloc_f32("values", n_rows, n_cols)?;
    let value = |i: usize| ((i * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
    let values: Vec<f32> = (0..n_rows * n_cols).map(value).collect();
    queue.write(&tensor, bytemuck::cast_slice(&values))?;
    Ok(tensor)
}

fn row_list(device: &Device, queue: &mut Queue) -> Result<Rows<Tensor>> {
    let ids: Vec<u32> = (0..N_FF as u32).step_by(ONE_IN).collect();
    let set = device.row_set(N_FF, 1)?;
    queue.write(&set.ids, bytemuck::cast_slice(&ids))?;
    queue.write(&set.members, bytemuck::cast_slice(&vec![1u32; ids.len()]))?;
    queue.write(&set.count, bytemuck::bytes_of(&(ids.len() as u32)))?;
    Ok(Rows::Active(set))
}

fn program(device: &Device, op: impl Into<hal::Op>) -> Result<Program> {
    let mut recorder = device.record("weights");
    recorder.push(op)?;
    recorder.finish()
}

fn bench_format(device: &Device, queue: &mut Queue, format: Format) -> Result<()> {
    let gate = matrix(device, N_FF, N_EMBD, format)?;
    let up = matrix(device, N_FF, N_EMBD, format)?;
    let down = matrix(device, N_FF, N_EMBD, format)?;
    let bytes = format.row_bytes(N_EMBD).unwrap_or_default() * N_FF;
    for n_tokens in [1, 256] {
        let x = values(device, queue, n_tokens, N_EMBD)?;
        let y = device.alloc_f32("y", n_tokens, N_FF)?;
        let op = MatMul { w: up.clone(), x: x.clone(), bias: None, y };
        let matmul = program(device, op)?;
        let time = median(queue, &matmul)?;
        print!("{format:8} MatMul t{n_tokens}: {:.2} ms", 1e3 * time);
        match n_tokens {
            1 => println!(", {:.2} GB/s", bytes as f64 / time / 1e9),
            n => println!(", {:.0} tokens/s", n as f64 / time),
        }
        let mut variants = vec![("dense", Rows::All, 3.0)];
        if n_tokens == 1 {
            variants.push(("listed", row_list(device, queue)?, 3.0 / ONE_IN as f64));
        }
        for (name, rows, n_matrices) in variants {
            let op = SparseFfn {
                gate: Some(gate.clone()),
                up: up.clone(),
                down: down.clone(),
                bias_gate: None,
                bias_up: None,
                bias_down: None,
                threshold: None,
                expert_weights: None,
                rows,
                x: x.clone(),
                y: device.alloc_f32("y", n_tokens, N_EMBD)?,
                active: device.alloc_f32("active", 1, n_tokens)?,
                hits: None,
                union: None,
                kind: FfnKind::Gated,
                activation: Activation::Silu,
                skip: Skip::Never,
                orientation: Down::ByNeuron,
                experts: None,
                dense_from: NEVER_DENSE,
                accumulate: false,
            };
            let ffn = program(device, op)?;
            let time = median(queue, &ffn)?;
            print!("{format:8} SparseFfn {name} t{n_tokens}: {:.2} ms", 1e3 * time);
            match n_tokens {
                1 => println!(", {:.2} GB/s", n_matrices * bytes as f64 / time / 1e9),
                n => println!(", {:.0} tokens/s", n as f64 / time),
            }
        }
    }
    Ok(())
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let chosen = words.iter().find_map(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let mut formats: Vec<Format> = words.iter().filter_map(|word| word.parse().ok()).collect();
    if formats.is_empty() {
        formats = vec![Format::F16, Format::Q8_0, Format::Q4_0, Format::Q4_K, Format::IQ2_XS];
    }
    let found = adapters();
    let Some(adapter) = found.get(chosen) else {
        println!("no device {chosen}: this machine has {} device(s)", found.len());
        return Ok(());
    };
    println!("{}: {}", adapter.name(), adapter.description());
    println!("{N_FF} neurons, each with {N_EMBD} inputs and {N_EMBD} outputs");
    let device = Device::new(adapter.open(&Options::default())?, DeviceId(0), Bytes(4 << 30));
    let mut queue = device.queue("bench")?;
    for format in formats {
        bench_format(&device, &mut queue, format)?;
    }
    Ok(())
}
