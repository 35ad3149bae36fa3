//! Results are bit-identical for any number of threads and any other tokens in the batch.

use hal::format::Format;
use hal::op::{
    Activation, Attention, DecayCurve, Down, FfnKind, GatedDelta, GetRows, HeadMapping, MatMul,
    NEVER_DENSE, Norm, NormKind, Pairing, Rope, ShortConv, Skip, SparseFfn, SsmScan, StoreKv,
};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Bytes, Device, DeviceId, HostRows,
    KV_BLOCK, KvCache, Operand, PackDesc, Result, Rows, Source, Tensor, TensorDesc,
};
use std::sync::Arc;
use thermocline_cpu::{CpuBackend, CpuOptions};

const N_EMBD: usize = 256;
const N_FF: usize = 1024;
const N_HEAD: usize = 8;
const N_HEAD_KV: usize = 2;
const D_HEAD: usize = N_EMBD / N_HEAD;
const N_PAST: usize = 600;

fn device(threads: usize) -> Device {
    let backend = CpuBackend::new(CpuOptions { threads: Some(threads), ..Default::default() });
    Device::new(backend, DeviceId(0), Bytes::MAX)
}

/// Pseudo-random numbers in -1..1.
fn random_values(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

fn weight(
    device: &Device,
    seed: u32,
    rows: usize,
    cols: usize,
    format: Format,
    transpose: bool,
) -> Result<Tensor> {
    let mut bytes = vec![0; format.row_bytes(cols).expect("whole blocks") * rows];
    format.quantize(&random_values(seed, rows * cols), &mut bytes);
    let source = HostRows::new(Source::Mapped(Arc::new(bytes)), rows, cols, format)?;
    let pack = PackDesc { transpose, ..PackDesc::whole(TensorDesc::new(rows, cols, format)) };
    device.import("weight", &pack, &source)
}

/// A transformer layer: the weight format, the orientation of down, and which neurons are skipped.
struct Layer {
    format: Format,
    down: Down,
    transposed: bool,
    skip: Skip,
}

impl Layer {
    fn record(
        &self,
        device: &Device,
        batch: &Batch<Tensor>,
        cache: &KvCache<Tensor>,
        n: usize,
    ) -> Result<(hal::Program, Tensor, Tensor)> {
        let f32s = |cols| device.alloc_f32("x", n, cols);
        let weight = |seed, rows, cols| weight(device, seed, rows, cols, self.format, false);
        let (x, q, y) = (f32s(N_EMBD)?, f32s(N_EMBD)?, f32s(N_EMBD)?);
        let (k, v) = (f32s(N_HEAD_KV * D_HEAD)?, f32s(N_HEAD_KV * D_HEAD)?);
        let (att, normed) = (f32s(N_EMBD)?, f32s(N_EMBD)?);
        let active = device.alloc_f32("active", 1, n)?;
        let freqs = device.alloc_f32("freqs", 1, D_HEAD / 2)?;
        let freq = random_values(9, D_HEAD / 2);
        device.queue("setup")?.write(&freqs, bytemuck::cast_slice(&freq))?;
        let mut record = device.record("layer");
        let table = weight(1, 64, N_EMBD)?;
        record.push(GetRows { table, batch: batch.clone(), y: x.clone(), scale: 1.0 })?;
        for (seed, rows, y) in
            [(2, N_EMBD, &q), (3, N_HEAD_KV * D_HEAD, &k), (4, N_HEAD_KV * D_HEAD, &v)]
        {
            let w = weight(seed, rows, N_EMBD)?;
            record.push(MatMul { w, x: x.clone(), bias: None, y: y.clone() })?;
        }
        for x in [&q, &k] {
            record.push(Rope {
                freqs: freqs.clone(),
                batch: batch.clone(),
                x: x.clone(),
                d_head: D_HEAD,
                first: 0,
                n_rot: D_HEAD,
                pairing: Pairing::Adjacent,
                scale: 1.0,
            })?;
        }
        record.push(StoreKv {
            k,
            v: Some(v),
            batch: batch.clone(),
            cache: cache.clone().into(),
        })?;
        record.push(Attention {
            q,
            cache: cache.clone().into(),
            batch: batch.clone(),
            slopes: None,
            sinks: None,
            selected: None,
            y: att.clone(),
            n_head: N_HEAD,
            n_head_kv: N_HEAD_KV,
            scale: 0.2,
            window: None,
            softcap: 0.0,
        })?;
        record.push(Norm {
            x: att,
            weight: None,
            bias: None,
            y: normed.clone(),
            kind: NormKind::Rms,
            eps: 1e-5,
            width: N_EMBD,
        })?;
        record.push(self.ffn(device, normed, y.clone(), active.clone())?)?;
        Ok((record.finish()?, y, active))
    }

    fn ffn(
        &self,
        device: &Device,
        x: Tensor,
        y: Tensor,
        active: Tensor,
    ) -> Result<SparseFfn<Tensor>> {
        let down = match (self.down, self.transposed) {
            (Down::ByNeuron, false) => weight(device, 7, N_FF, N_EMBD, self.format, false)?,
            (Down::ByNeuron, true) => weight(device, 7, N_EMBD, N_FF, self.format, true)?,
            (Down::AcrossNeurons, _) => weight(device, 7, N_EMBD, N_FF, self.format, false)?,
        };
        Ok(SparseFfn {
            gate: Some(weight(device, 5, N_FF, N_EMBD, self.format, false)?),
            up: weight(device, 6, N_FF, N_EMBD, self.format, false)?,
            down,
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            experts: None,
            expert_weights: None,
            rows: Rows::All,
            x,
            y,
            active,
            hits: None,
            union: None,
            kind: FfnKind::Gated,
            activation: Activation::Relu,
            skip: self.skip,
            orientation: self.down,
            dense_from: NEVER_DENSE,
            accumulate: false,
        })
    }

    /// Bits of the output, and of the number of active neurons, of each token in `range`. The KV
    /// cache already has `N_PAST` positions.
    fn run(&self, threads: usize, range: std::ops::Range<usize>) -> Result<Vec<Vec<u32>>> {
        let device = device(threads);
        let n = range.len();
        let n_blocks = (N_PAST + 40).div_ceil(KV_BLOCK);
        let shape = BatchShape { max_tokens: n, max_seqs: 1, max_blocks: n_blocks };
        let (batch, cache) = (
            device.batch(shape)?,
            device.kv_cache(
                n_blocks,
                KvCache::both(N_HEAD_KV * D_HEAD),
                KvCache::both(Format::F16),
            )?,
        );
        let (program, y, active) = self.record(&device, &batch, &cache, n)?;
        let mut queue = device.queue("test")?;
        for (seed, tensor) in [(11, &cache.k), (12, &cache.v)] {
            let mut bytes = vec![0; n_blocks * KV_BLOCK * N_HEAD_KV * D_HEAD * 2];
            Format::F16.quantize(&random_values(seed, bytes.len() / 2), &mut bytes);
            queue.write(tensor, &bytes)?;
        }
        queue.write(&active, &vec![0; 4 * n])?;
        let token = |t: usize| BatchToken {
            id: (t * 7 % 64) as u32,
            seq: 0,
            pos: (N_PAST + t) as u32,
            output: true,
        };
        let len = (N_PAST + range.end) as u32;
        let blocks = (0..n_blocks as u32).rev().collect();
        let facts =
            BatchFacts { tokens: range.map(token).collect(), seqs: vec![BatchSeq { blocks, len }] };
        let words = facts.encode(&shape, n_blocks, 64)?;
        queue.write(&batch.words, bytemuck::cast_slice(&words))?;
        queue.replay(&program)?.wait()?;
        let (mut out, mut counts) = (vec![0.0; n * N_EMBD], vec![0.0; n]);
        queue.read_f32(&y, &mut out)?;
        queue.read_f32(&active, &mut counts)?;
        let row = |(row, count): (&[f32], &f32)| {
            row.iter().chain([count]).map(|v| v.to_bits()).collect::<Vec<u32>>()
        };
        Ok(out.chunks_exact(N_EMBD).zip(&counts).map(row).collect())
    }
}

fn layers() -> impl Iterator<Item = Layer> {
    let plain = [Format::F32, Format::F16];
    let small = [Format::Q4_0, Format::Q5_1, Format::Q8_0, Format::MXFP4];
    let formats = plain.into_iter().chain(small).chain([Format::Q4_K, Format::Q6_K]);
    formats.flat_map(|format| {
        let layer = move |down, transposed, skip| Layer { format, down, transposed, skip };
        [
            layer(Down::ByNeuron, true, Skip::NotPositive),
            layer(Down::ByNeuron, false, Skip::NotPositive),
            layer(Down::AcrossNeurons, false, Skip::Never),
        ]
    })
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for layer in layers() {
        for range in [30..31, 0..3, 0..33] {
            let one = layer.run(1, range.clone()).unwrap();
            assert!(one.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
            for threads in [2, 7] {
                let more = layer.run(threads, range.clone()).unwrap();
                assert!(one == more, "{} {:?} {threads} threads", layer.format, layer.down);
            }
        }
    }
}

#[test]
fn a_token_has_the_same_bits_alone_and_among_others() {
    for layer in layers() {
        // All runs have the same past positions in the cache, so only the other tokens of the batch
        // differ.
        let among = layer.run(2, 0..13).unwrap();
        let first = layer.run(2, 0..1).unwrap();
        assert!(among[0] == first[0], "{} {:?}", layer.format, layer.down);
        for n in [3, 6] {
            let some = layer.run(2, 0..n).unwrap();
            assert!(among[..n] == some[..], "{} {:?} of {n}", layer.format, layer.down);
        }
    }
}

/// Bits of the outputs and states after one step of two sequences through each recurrent op.
fn recurrent(threads: usize) -> Result<Vec<u32>> {
    let (n_head, d_head, d_state, n) = (4, 80, 72, 19);
    let device = device(threads);
    let mut queue = device.queue("recurrent")?;
    let mut filled = |seed, rows, cols| -> Result<Tensor> {
        let tensor = device.alloc_f32("values", rows, cols)?;
        let values: Vec<f32> = random_values(seed, rows * cols).iter().map(|v| 0.3 * v).collect();
        queue.write(&tensor, bytemuck::cast_slice(&values))?;
        Ok(tensor)
    };
    let n_cols = n_head * d_head;
    let [x, q, k] = [1, 2, 3].map(|seed| filled(seed, n, n_cols));
    let (x, q, k) = (x?, q?, k?);
    let (b, c) = (filled(4, n, d_state)?, filled(5, n, d_state)?);
    let (dt, dt_bias, a) = (filled(6, n, n_head)?, filled(7, 1, n_head)?, filled(8, 1, n_head)?);
    let (weight, beta) = (filled(9, n_cols, 4)?, filled(10, n, n_head)?);
    let states = [3 * n_cols, n_head * d_head * d_head, n_cols * d_state];
    let [conv, delta, scan] = states.map(|cols| filled(11, 2, cols));
    let (conv, delta, scan) = (conv?, delta?, scan?);
    let [y_conv, y_delta, y_scan] = [12, 13, 14].map(|seed| filled(seed, n, n_cols));
    let (y_conv, y_delta, y_scan) = (y_conv?, y_delta?, y_scan?);
    let shape = BatchShape { max_tokens: n, max_seqs: 2, max_blocks: 1 };
    let token =
        |t: usize| BatchToken { id: 0, seq: (t % 3 == 1).into(), pos: t as u32, output: false };
    let seq = |block| BatchSeq { blocks: vec![block], len: KV_BLOCK as u32 };
    let facts = BatchFacts { tokens: (0..n).map(token).collect(), seqs: vec![seq(0), seq(1)] };
    let batch = device.batch(shape)?;
    let mut record = device.record("recurrent");
    record.push(ShortConv {
        x: x.clone(),
        weight,
        bias: None,
        batch: batch.clone(),
        state: conv.clone(),
        y: y_conv.clone(),
        silu: true,
    })?;
    record.push(GatedDelta {
        q,
        k,
        v: x.clone(),
        decay: dt.clone(),
        beta,
        dt_bias: dt_bias.clone(),
        a: a.clone(),
        batch: batch.clone(),
        state: delta.clone(),
        y: y_delta.clone(),
        n_head_k: n_head,
        n_head_v: n_head,
        heads: HeadMapping::Modulo,
        curve: DecayCurve::Softplus,
        scale: 1.0,
    })?;
    record.push(SsmScan {
        x,
        dt,
        dt_bias: dt_bias.clone(),
        a,
        b,
        c,
        d: dt_bias,
        batch: batch.clone(),
        state: scan.clone(),
        y: y_scan.clone(),
        n_group: 1,
    })?;
    let program = record.finish()?;
    queue.write(&batch.words, bytemuck::cast_slice(&facts.encode(&shape, 2, 1)?))?;
    queue.replay(&program)?.wait()?;
    let mut bits = Vec::new();
    for tensor in [&y_conv, &y_delta, &y_scan, &conv, &delta, &scan] {
        let desc = tensor.desc();
        let mut values = vec![0.0f32; desc.n_rows * desc.n_cols];
        queue.read_f32(tensor, &mut values)?;
        bits.extend(values.iter().map(|v| v.to_bits()));
    }
    Ok(bits)
}

#[test]
fn recurrent_layers_do_not_depend_on_the_number_of_threads() -> Result<()> {
    let one = recurrent(1)?;
    for threads in [2, 3, 7] {
        assert!(recurrent(threads)? == one, "{threads} threads");
    }
    Ok(())
}
