//! Measures the driver's overhead per dispatch, per submission with a wait, per hand-off, and per
//! copy to the host.
//!
//! `cargo bench -p thermocline-wgpu -- [device number]`
#![allow(clippy::print_stdout, reason = "a bench prints")]

use std::time::{Duration, Instant};

use hal::op::{Add, Merge, Post};
use hal::{
    BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, MailboxShape, Program,
    Queue, Result, Tensor,
};
use thermocline_wgpu::{Options, adapters};

/// `n_embd` of a 7B model.
const N: usize = 4096;

const ROUNDS: usize = 40;

/// Median time of [`ROUNDS`] runs, after a warm-up run.
fn median(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    run()?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2])
}

fn micros(time: Duration) -> f64 {
    1e6 * time.as_secs_f64()
}

fn add_repeatedly(device: &Device, a: &Tensor, x: &Tensor, times: usize) -> Result<Program> {
    let mut recorder = device.record("add");
    for _ in 0..times {
        recorder.push(Add { a: a.clone(), x: x.clone() })?;
    }
    recorder.finish()
}

/// A program of `n` consecutive hand-offs without work between them.
fn hand_offs(device: &Device, queue: &mut Queue, x: &Tensor, n: usize) -> Result<Program> {
    let shape = BatchShape { max_tokens: 1, max_seqs: 1, max_blocks: 1 };
    let batch = device.batch(shape)?;
    let facts = BatchFacts {
        tokens: vec![BatchToken { id: 0, seq: 0, pos: 0, output: false }],
        seqs: vec![BatchSeq { blocks: vec![0], len: 1 }],
    };
    queue.write(&batch.words, bytemuck::cast_slice(&facts.encode(&shape, 1, 1)?))?;
    let mut recorder = device.record("hand-offs");
    for _ in 0..n {
        let shape = MailboxShape { max_tokens: 1, n_in: N, n_weights: 0, n_out: N, max_rows: 0 };
        let mailbox = recorder.mailbox(&device.mailbox(shape)?)?;
        let (batch, x) = (batch.clone(), x.clone());
        recorder.push(Post {
            x: x.clone(),
            batch: batch.clone(),
            rows: None,
            weights: None,
            mailbox,
        })?;
        recorder.push(Merge { batch, y: x, mailbox, accumulate: true })?;
    }
    recorder.finish()
}

fn main() -> Result<()> {
    let chosen = std::env::args().skip(1).find_map(|word| word.parse::<usize>().ok()).unwrap_or(0);
    let found = adapters();
    let Some(adapter) = found.get(chosen) else {
        println!("no device {chosen}: this machine has {} device(s)", found.len());
        return Ok(());
    };
    println!("{}: {}", adapter.name(), adapter.description());
    let device = Device::new(adapter.open(&Options::default())?, DeviceId(0), Bytes(1 << 30));
    let mut queue = device.queue("bench")?;
    let (a, x) = (device.alloc_f32("a", 1, N)?, device.alloc_f32("x", 1, N)?);
    queue.write(&a, &[0; 4 * N])?;
    queue.write(&x, &[0; 4 * N])?;
    let timed = |queue: &mut Queue, program: &Program| median(|| queue.replay(program)?.wait());
    let (few, many) = (add_repeatedly(&device, &a, &x, 1)?, add_repeatedly(&device, &a, &x, 257)?);
    let (few, many) = (timed(&mut queue, &few)?, timed(&mut queue, &many)?);
    println!("a submission of one dispatch, including the wait: {:.1} us", micros(few));
    println!("each additional dispatch of {N} additions: {:.2} us", micros(many - few) / 256.0);
    let answer = vec![0.0; N];
    let mut time_hand_offs = |n: usize| -> Result<Duration> {
        let program = hand_offs(&device, &mut queue, &x, n)?;
        median(|| {
            let mut run = queue.replay(&program)?;
            while run.next_post()?.is_some() {
                run.answer(&answer)?;
            }
            run.wait()
        })
    };
    let (few, many) = (time_hand_offs(1)?, time_hand_offs(33)?);
    println!("a hand-off of {N} floats and an answer: {:.1} us", micros(many - few) / 32.0);
    let mut out = vec![0.0; N];
    let read = median(|| queue.read_f32(&x, &mut out))?;
    println!("a copy of {N} floats to the host: {:.1} us", micros(read));
    Ok(())
}
