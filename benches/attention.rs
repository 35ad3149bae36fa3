//! Times attention of one token over a long KV cache: bytes of keys and values per second, and
//! their share of the memory bandwidth.
//!
//! `cargo bench --bench attention`, or `cargo bench --bench attention -- F16 32768` for some
//! formats and context sizes. The KV caches of several layers are used in turn, so that no KV cache
//! stays in the CPU's caches.
#![allow(clippy::print_stdout, reason = "this program prints a table")]

use std::error::Error;
use std::time::{Duration, Instant};

use hal::format::Format;
use hal::op::{Attention, KV_FORMATS};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, Device, KV_BLOCK, KvCache, Program, Queue,
};
use thermocline::bench::{probe_size, read_bandwidth, usual_probe_size};
use thermocline::devices::{cpu, cpu_threads};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const D_HEAD: usize = 128;
const N_HEAD: usize = 32;
/// Minimum number of bytes of all layers' KV caches.
const MIN_CACHE_BYTES: usize = 512 << 20;
/// Minimum time and minimum number of runs of each measurement.
const TIME: Duration = Duration::from_millis(300);
const RUNS: usize = 7;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // `cargo test --all-targets` runs this program without `--bench`; it must then exit at once.
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let named: Vec<_> = arguments.iter().filter(|a| !a.starts_with('-')).collect();
    let wanted = |kind: &dyn Fn(&str) -> bool, name: &str| {
        let mut of_kind = named.iter().filter(|n| kind(n)).peekable();
        of_kind.peek().is_none() || of_kind.any(|n| n.as_str() == name)
    };
    let is_number = |name: &str| name.parse::<usize>().is_ok();
    let device = cpu(None);
    let n_threads = cpu_threads(None);
    let free = device.memory()?.free;
    let probe = || {
        read_bandwidth(n_threads, probe_size(usual_probe_size(None), free))
            .ok_or("not enough memory to measure the read bandwidth")
    };
    let bandwidth = probe()?;
    println!("{}: {bandwidth:.1} GB/s read", device.info().description);
    println!("| heads | cache | context | us | GB/s | share |\n|---|---|---:|---:|---:|---:|");
    for n_head_kv in [8, 32] {
        for &format in KV_FORMATS.iter().filter(|f| wanted(&|n| !is_number(n), f.name())) {
            for n_ctx in [512, 4096, 16384, 32768] {
                if wanted(&is_number, &n_ctx.to_string()) {
                    let (time, bytes) = measure(&device, n_head_kv, format, n_ctx)?;
                    let rate = bytes / time / 1e9;
                    let (us, share) = (1e6 * time, 100.0 * rate / bandwidth);
                    println!(
                        "| {N_HEAD}/{n_head_kv} | {format} | {n_ctx} | {us:.0} | {rate:.1} | {share:.0}% |"
                    );
                }
            }
        }
    }
    println!("{:.1} GB/s read at the end", probe()?);
    Ok(())
}

/// Seconds of one layer's attention, and the bytes of the layer's keys and values.
fn measure(device: &Device, n_head_kv: usize, format: Format, n_ctx: usize) -> Result<(f64, f64)> {
    let n_cols = n_head_kv * D_HEAD;
    let bytes = 2 * n_ctx * format.row_bytes(n_cols).ok_or("rows must be whole blocks")?;
    let n_layer = MIN_CACHE_BYTES.div_ceil(bytes);
    let n_blocks = n_ctx.div_ceil(KV_BLOCK);
    let mut queue = device.queue("bench")?;
    let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: n_blocks };
    let batch = device.batch(shape)?;
    let token = BatchToken { id: 0, seq: 0, pos: n_ctx as u32 - 1, output: true };
    let blocks = (0..n_blocks as u32).collect();
    let seqs = vec![BatchSeq { blocks, len: n_ctx as u32 }];
    let words = BatchFacts { tokens: vec![token], seqs }.encode(&shape, n_blocks, 1)?;
    queue.write(&batch.words, bytemuck::cast_slice(&words))?;
    let q = device.alloc_f32("q", 1, N_HEAD * D_HEAD)?;
    let y = device.alloc_f32("y", 1, N_HEAD * D_HEAD)?;
    queue.write(&q, bytemuck::cast_slice(&vec![0.1f32; N_HEAD * D_HEAD]))?;
    let mut recorder = device.record("attention");
    let mut tensor_bytes = vec![0; bytes / 2];
    let values: Vec<f32> = (0..n_cols).map(|i| (i % 13) as f32 / 13.0 - 0.5).collect();
    for row in tensor_bytes.chunks_exact_mut(bytes / 2 / n_ctx) {
        format.quantize_cache(&values, row);
    }
    for _ in 0..n_layer {
        let cache = device.kv_cache(n_blocks, KvCache::both(n_cols), KvCache::both(format))?;
        queue.write(&cache.k, &tensor_bytes)?;
        queue.write(&cache.v, &tensor_bytes)?;
        recorder.push(Attention {
            q: q.clone(),
            cache: cache.into(),
            batch: batch.clone(),
            slopes: None,
            sinks: None,
            selected: None,
            y: y.clone(),
            n_head: N_HEAD,
            n_head_kv,
            scale: 0.1,
            window: None,
            softcap: 0.0,
        })?;
    }
    let time = time(&mut queue, &recorder.finish()?)?;
    Ok((time / n_layer as f64, bytes as f64))
}

/// Median time of a replay in seconds.
fn time(queue: &mut Queue, program: &Program) -> Result<f64> {
    queue.replay(program)?.wait()?;
    let (mut times, begin) = (Vec::new(), Instant::now());
    while times.len() < RUNS || begin.elapsed() < TIME {
        let begin = Instant::now();
        queue.replay(program)?.wait()?;
        times.push(begin.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
