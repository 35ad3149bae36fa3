//! Times one decode step of a synthetic 1B model (16 layers, `n_embd` 2048, Q4_0, transposed down
//! projection, ReLU with 10 % of the neurons active) and compares its memory traffic with the read
//! bandwidth of this machine.
//!
//! `cargo bench -p thermocline-cpu --bench decode -- [threads] [tokens] [past]`
#![allow(clippy::print_stdout, reason = "this program prints a report")]

use std::sync::Arc;
use std::time::Instant;

use hal::format::Format;
use hal::op::{
    Activation, Add, Attention, Down, FfnKind, MatMul, NEVER_DENSE, Norm, NormKind, Pairing, Rope,
    Skip, SparseFfn, StoreKv,
};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, HostRows,
    KV_BLOCK, KvCache, Operand, PackDesc, Program, Recorder, Result, Rows, Source, Tensor,
    TensorDesc,
};
use half::f16;
use thermocline_cpu::{CpuBackend, CpuOptions};

const N_LAYER: usize = 16;
const N_EMBD: usize = 2048;
const N_FF: usize = 8192;
const N_HEAD: usize = 32;
const N_HEAD_KV: usize = 8;
const D_HEAD: usize = N_EMBD / N_HEAD;
const N_KV: usize = N_HEAD_KV * D_HEAD;
const FORMAT: Format = Format::Q4_0;

struct Model {
    device: Device,
    n_tokens: usize,
    batch: Batch<Tensor>,
    n_blocks: usize,
    x: Tensor,
    y: Tensor,
    ones: Tensor,
    gate_bias: Tensor,
    freqs: Tensor,
    active: Tensor,
    bytes: usize,
}

/// Q4_0 rows of random 4-bit codes; the scale of every block is 0.01.
fn random_weights(seed: u64, rows: usize, cols: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; FORMAT.row_bytes(cols).expect("whole blocks") * rows];
    let mut state = seed | 1;
    for block in bytes.chunks_exact_mut(FORMAT.block_bytes()) {
        block[..2].copy_from_slice(&f16::from_f32(0.01).to_le_bytes());
        for byte in &mut block[2..] {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 56) as u8;
        }
    }
    bytes
}

impl Model {
    fn new(device: Device, n_tokens: usize, n_past: usize) -> Result<Model> {
        let n_blocks = (n_past + n_tokens).div_ceil(KV_BLOCK);
        let shape = BatchShape { max_tokens: n_tokens, max_seqs: 1, max_blocks: n_blocks };
        let row = |n: usize, value: f32| -> Result<Tensor> {
            let tensor = device.alloc_f32("row", 1, n)?;
            device.queue("fill")?.write(&tensor, bytemuck::cast_slice(&vec![value; n]))?;
            Ok(tensor)
        };
        // Standard deviation of a gate value: codes are uniform in -8..=7 (mean square 21.5), the
        // scale is 0.01, and the normalised input has unit mean square. A bias of -1.28 deviations
        // leaves 10 % of the gate values positive.
        let deviation = (N_EMBD as f32 * 21.5).sqrt() * 0.01;
        Ok(Model {
            n_tokens,
            batch: device.batch(shape)?,
            n_blocks,
            x: device.alloc_f32("x", n_tokens, N_EMBD)?,
            y: device.alloc_f32("y", n_tokens, N_EMBD)?,
            ones: row(N_EMBD, 1.0)?,
            gate_bias: row(N_FF, -1.28 * deviation)?,
            freqs: row(D_HEAD / 2, 0.01)?,
            active: device.alloc_f32("active", 1, n_tokens)?,
            bytes: 0,
            device,
        })
    }

    fn weight(&mut self, seed: usize, rows: usize, cols: usize, transpose: bool) -> Result<Tensor> {
        let bytes = random_weights(seed as u64 * 77 + 5, rows, cols);
        self.bytes += bytes.len();
        let source = HostRows::new(Source::Mapped(Arc::new(bytes)), rows, cols, FORMAT)?;
        let pack = PackDesc { transpose, ..PackDesc::whole(TensorDesc::new(rows, cols, FORMAT)) };
        self.device.import("weight", &pack, &source)
    }

    fn f32s(&self, cols: usize) -> Result<Tensor> {
        self.device.alloc_f32("f32", self.n_tokens, cols)
    }

    fn norm(&self, record: &mut Recorder) -> Result<Tensor> {
        let y = self.f32s(N_EMBD)?;
        record.push(Norm {
            x: self.x.clone(),
            weight: Some(self.ones.clone()),
            bias: None,
            y: y.clone(),
            kind: NormKind::Rms,
            eps: 1e-5,
            width: N_EMBD,
        })?;
        Ok(y)
    }

    fn attention(&mut self, record: &mut Recorder, layer: usize) -> Result<()> {
        let x = self.norm(record)?;
        let mut product = |seed, rows, x: &Tensor, record: &mut Recorder| -> Result<Tensor> {
            let w = self.weight(seed, rows, x.desc().n_cols, false)?;
            let y = self.f32s(rows)?;
            record.push(MatMul { w, x: x.clone(), bias: None, y: y.clone() })?;
            Ok(y)
        };
        let q = product(layer * 10, N_EMBD, &x, record)?;
        let k = product(layer * 10 + 1, N_KV, &x, record)?;
        let v = product(layer * 10 + 2, N_KV, &x, record)?;
        for x in [&q, &k] {
            record.push(Rope {
                freqs: self.freqs.clone(),
                batch: self.batch.clone(),
                x: x.clone(),
                d_head: D_HEAD,
                first: 0,
                n_rot: D_HEAD,
                pairing: Pairing::Adjacent,
                scale: 1.0,
            })?;
        }
        let cache =
            self.device.kv_cache(self.n_blocks, KvCache::both(N_KV), KvCache::both(Format::F16))?;
        record.push(StoreKv {
            k,
            v: Some(v),
            batch: self.batch.clone(),
            cache: cache.clone().into(),
        })?;
        let y = self.f32s(N_EMBD)?;
        record.push(Attention {
            q,
            cache: cache.into(),
            batch: self.batch.clone(),
            slopes: None,
            sinks: None,
            selected: None,
            y: y.clone(),
            n_head: N_HEAD,
            n_head_kv: N_HEAD_KV,
            scale: (D_HEAD as f32).sqrt().recip(),
            window: None,
            softcap: 0.0,
        })?;
        let w = self.weight(layer * 10 + 3, N_EMBD, N_EMBD, false)?;
        let out = self.f32s(N_EMBD)?;
        record.push(MatMul { w, x: y, bias: None, y: out.clone() })?;
        record.push(Add { a: out, x: self.y.clone() })
    }

    fn ffn(&mut self, record: &mut Recorder, layer: usize) -> Result<()> {
        let x = self.norm(record)?;
        record.push(SparseFfn {
            gate: Some(self.weight(layer * 10 + 4, N_FF, N_EMBD, false)?),
            up: self.weight(layer * 10 + 5, N_FF, N_EMBD, false)?,
            down: self.weight(layer * 10 + 6, N_EMBD, N_FF, true)?,
            bias_gate: Some(self.gate_bias.clone()),
            bias_up: None,
            bias_down: None,
            threshold: None,
            experts: None,
            expert_weights: None,
            rows: Rows::All,
            x,
            y: self.y.clone(),
            active: self.active.clone(),
            hits: None,
            union: None,
            kind: FfnKind::Gated,
            activation: Activation::Relu,
            skip: Skip::NotPositive,
            orientation: Down::ByNeuron,
            dense_from: NEVER_DENSE,
            accumulate: true,
        })
    }

    fn record(&mut self, parts: &str) -> Result<Program> {
        self.bytes = 0;
        let mut record = self.device.clone().record("decode");
        for layer in 0..N_LAYER {
            if parts != "ffn" {
                self.attention(&mut record, layer)?;
            }
            if parts != "attention" {
                self.ffn(&mut record, layer)?;
            }
        }
        record.finish()
    }
}

/// Combined read bandwidth of `threads` threads, in bytes per second.
fn bandwidth(threads: usize) -> f64 {
    let data = vec![1u64; 64 << 20];
    let mut best = 0.0f64;
    for _ in 0..5 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            for part in data.chunks(data.len() / threads) {
                scope.spawn(|| {
                    let lanes = part.chunks_exact(64).fold([0u64; 64], |mut sums, lane| {
                        sums.iter_mut().zip(lane).for_each(|(s, v)| *s = s.wrapping_add(*v));
                        sums
                    });
                    std::hint::black_box(lanes);
                });
            }
        });
        best = best.max(8.0 * data.len() as f64 / start.elapsed().as_secs_f64());
    }
    best
}

fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args().filter_map(|arg| arg.parse().ok()).collect();
    let get = |i: usize, default: usize| numbers.get(i).copied().unwrap_or(default);
    let backend =
        CpuBackend::new(CpuOptions { threads: numbers.first().copied(), ..Default::default() });
    let (threads, n_tokens, n_past) = (backend.n_threads(), get(1, 1), get(2, 32));
    let device = Device::new(backend, DeviceId(0), Bytes::MAX);
    println!("{}; batch of {n_tokens}, {n_past} tokens cached", device.info().description);
    let read = bandwidth(threads);
    println!("read bandwidth {:.1} GB/s", read / 1e9);

    let mut model = Model::new(device.clone(), n_tokens, n_past)?;
    let token = |t: usize| BatchToken { id: 0, seq: 0, pos: (n_past + t) as u32, output: true };
    let len = (n_past + n_tokens) as u32;
    let facts = BatchFacts {
        tokens: (0..n_tokens).map(token).collect(),
        seqs: vec![BatchSeq { blocks: (0..model.n_blocks as u32).collect(), len }],
    };
    let words = facts.encode(&model.batch.shape, model.n_blocks, 1)?;
    let mut queue = device.queue("bench")?;
    queue.write(&model.batch.words, bytemuck::cast_slice(&words))?;
    for parts in ["attention", "ffn", "all"] {
        let program = model.record(parts)?;
        // All layers read the same input, so about 10 % of each layer's neurons are active.
        let blocks = random_weights(3, n_tokens, 32 * N_EMBD);
        let blocks = blocks.chunks_exact(FORMAT.block_bytes());
        let x: Vec<f32> = blocks.map(|b| f32::from(b[2]) - f32::from(b[9])).collect();
        queue.write(&model.x, bytemuck::cast_slice(&x))?;
        let (mut best, mut times) = (f64::MAX, Vec::new());
        for _ in 0..30 {
            queue.write(&model.active, &vec![0; 4 * n_tokens])?;
            let start = Instant::now();
            queue.replay(&program)?.wait()?;
            times.push(start.elapsed().as_secs_f64());
            best = best.min(start.elapsed().as_secs_f64());
        }
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let mut active = vec![0.0; n_tokens];
        queue.read_f32(&model.active, &mut active)?;
        let density = f64::from(active.iter().sum::<f32>()) / (n_tokens * N_LAYER * N_FF) as f64;
        let ffn = N_LAYER * FORMAT.row_bytes(N_EMBD).expect("whole blocks") * N_FF;
        let skipped = if parts == "attention" { 0.0 } else { 2.0 * (1.0 - density) * ffn as f64 };
        let read_bytes = model.bytes as f64 - skipped;
        println!(
            "{parts:9} {:7.3} ms median, {:7.3} best, {:6.1} token/s; density {density:.3}, {:6.1} MB read, \
             {:5.1} GB/s best, {:.2} of the read bandwidth",
            1e3 * median,
            1e3 * best,
            n_tokens as f64 / median,
            read_bytes / 1e6,
            read_bytes / best / 1e9,
            read_bytes / best / read,
        );
    }
    Ok(())
}
