//! Times the recurrent ops at the sizes of Qwen3.5 and Nemotron-H: decode of one token, which is
//! limited by reading the states, and prefill of 512 tokens, which is limited by arithmetic.
//!
//! `cargo bench -p thermocline-cpu --bench recurrent -- [threads]`
#![allow(clippy::print_stdout, reason = "this program prints a report")]

use std::time::Instant;

use hal::op::{DecayCurve, GatedDelta, HeadMapping, ShortConv, SsmScan};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, KV_BLOCK, Op,
    Operand, Result, Tensor,
};
use thermocline_cpu::{CpuBackend, CpuOptions};

/// Number of layers in the decode measurement. Each layer has its own state, and together the
/// states are larger than the CPU's caches. The prefill measurement uses one layer.
const N_LAYER: usize = 24;
const N_PREFILL: usize = 512;
const RUNS: usize = 15;

const N_HEAD_K: usize = 16;
const N_HEAD_V: usize = 32;
const D_HEAD: usize = 128;

const N_CHANNEL: usize = 8192;
const KERNEL_SIZE: usize = 4;

const SCAN_HEADS: usize = 128;
const SCAN_D_HEAD: usize = 64;
const SCAN_STATE: usize = 128;
const SCAN_GROUPS: usize = 8;

/// A device and the batch of one step.
struct Step {
    device: Device,
    batch: Batch<Tensor>,
    n_tokens: usize,
}

impl Step {
    fn new(device: &Device, n_tokens: usize) -> Result<Step> {
        let n_blocks = (n_tokens + 1).div_ceil(KV_BLOCK);
        let shape = BatchShape { max_tokens: n_tokens, max_seqs: 1, max_blocks: n_blocks };
        let token = |t: usize| BatchToken { id: 0, seq: 0, pos: t as u32 + 1, output: false };
        let facts = BatchFacts {
            tokens: (0..n_tokens).map(token).collect(),
            seqs: vec![BatchSeq {
                blocks: (0..n_blocks as u32).collect(),
                len: n_tokens as u32 + 1,
            }],
        };
        let words = facts.encode(&shape, n_blocks, 1)?;
        let batch = device.batch(shape)?;
        device.queue("step")?.write(&batch.words, bytemuck::cast_slice(&words))?;
        Ok(Step { device: device.clone(), batch, n_tokens })
    }

    /// A tensor of fixed values between `-scale / 2` and `scale / 2`.
    fn fill(&self, n_rows: usize, n_cols: usize, scale: f32) -> Result<Tensor> {
        let tensor = self.device.alloc_f32("values", n_rows, n_cols)?;
        let value = |i: usize| scale * ((i * 7919 % 1000) as f32 / 1000.0 - 0.5);
        let values: Vec<f32> = (0..n_rows * n_cols).map(value).collect();
        self.device.queue("fill")?.write(&tensor, bytemuck::cast_slice(&values))?;
        Ok(tensor)
    }

    fn values(&self, n_cols: usize) -> Result<Tensor> {
        self.fill(self.n_tokens, n_cols, 0.2)
    }

    fn gated_delta(&self) -> Result<Op> {
        Ok(GatedDelta {
            q: self.values(N_HEAD_K * D_HEAD)?,
            k: self.values(N_HEAD_K * D_HEAD)?,
            v: self.values(N_HEAD_V * D_HEAD)?,
            decay: self.values(N_HEAD_V)?,
            beta: self.values(N_HEAD_V)?,
            dt_bias: self.fill(1, N_HEAD_V, 1.0)?,
            a: self.fill(1, N_HEAD_V, 0.0)?,
            batch: self.batch.clone(),
            state: self.fill(1, N_HEAD_V * D_HEAD * D_HEAD, 1.0)?,
            y: self.values(N_HEAD_V * D_HEAD)?,
            n_head_k: N_HEAD_K,
            n_head_v: N_HEAD_V,
            heads: HeadMapping::Modulo,
            curve: DecayCurve::Softplus,
            scale: 0.1,
        }
        .into())
    }

    fn ssm_scan(&self) -> Result<Op> {
        Ok(SsmScan {
            x: self.values(SCAN_HEADS * SCAN_D_HEAD)?,
            dt: self.values(SCAN_HEADS)?,
            dt_bias: self.fill(1, SCAN_HEADS, 1.0)?,
            a: self.fill(1, SCAN_HEADS, 0.0)?,
            b: self.values(SCAN_GROUPS * SCAN_STATE)?,
            c: self.values(SCAN_GROUPS * SCAN_STATE)?,
            d: self.fill(1, SCAN_HEADS, 1.0)?,
            batch: self.batch.clone(),
            state: self.fill(1, SCAN_HEADS * SCAN_D_HEAD * SCAN_STATE, 1.0)?,
            y: self.values(SCAN_HEADS * SCAN_D_HEAD)?,
            n_group: SCAN_GROUPS,
        }
        .into())
    }

    fn short_conv(&self) -> Result<Op> {
        Ok(ShortConv {
            x: self.values(N_CHANNEL)?,
            weight: self.fill(N_CHANNEL, KERNEL_SIZE, 1.0)?,
            bias: None,
            batch: self.batch.clone(),
            state: self.fill(1, (KERNEL_SIZE - 1) * N_CHANNEL, 1.0)?,
            y: self.values(N_CHANNEL)?,
            silu: true,
        }
        .into())
    }
}

/// Returns the seconds per layer of the fastest of [`RUNS`] runs, and the op of the first layer.
fn seconds(device: &Device, n_layers: usize, layer: impl Fn() -> Result<Op>) -> Result<(f64, Op)> {
    let ops = (0..n_layers).map(|_| layer()).collect::<Result<Vec<Op>>>()?;
    let mut recorder = device.record("recurrent");
    for op in &ops {
        recorder.push(op.clone())?;
    }
    let (program, mut queue) = (recorder.finish()?, device.queue("bench")?);
    let mut best = f64::MAX;
    for _ in 0..RUNS {
        let start = Instant::now();
        queue.replay(&program)?.wait()?;
        best = best.min(start.elapsed().as_secs_f64() / n_layers as f64);
    }
    Ok((best, ops[0].clone()))
}

fn main() -> Result<()> {
    let threads = std::env::args().find_map(|arg| arg.parse().ok());
    let backend = CpuBackend::new(CpuOptions { threads, ..Default::default() });
    let device = Device::new(backend, DeviceId(0), Bytes::MAX);
    println!("{}", device.info().description);
    for n_tokens in [1, N_PREFILL] {
        let step = Step::new(&device, n_tokens)?;
        let layers: [(&str, &dyn Fn() -> Result<Op>); 3] = [
            ("GatedDelta", &|| step.gated_delta()),
            ("SsmScan", &|| step.ssm_scan()),
            ("ShortConv", &|| step.short_conv()),
        ];
        for (name, layer) in layers {
            let n_layers = if n_tokens == 1 { N_LAYER } else { 1 };
            let (seconds, op) = seconds(&device, n_layers, layer)?;
            let mut bytes = 0;
            op.visit(&mut |operand, _, tensor| {
                let values = tensor.desc().n_rows * tensor.desc().n_cols;
                bytes += values * if operand == "state" { 8 } else { 4 };
            });
            println!(
                "{name:10} {n_tokens:4} tokens: {:8.1} us per layer, {:6.2} us per token, {:6.1} GB/s of operands",
                1e6 * seconds,
                1e6 * seconds / n_tokens as f64,
                bytes as f64 / seconds / 1e9,
            );
        }
    }
    Ok(())
}
