//! Compares the oracle with values computed by hand. The suite itself only compares devices with
//! the oracle.
#![allow(clippy::unwrap_used, reason = "a test may fail this way")]

mod compress;
mod hyper;
mod recurrent;

use hal::format::Format;
use hal::op::{
    Activation, Attention, Down, ExpertRanges, FfnKind, GateActivation, HiddenActivation,
    LightningIndexer, MatMul, Mul, NEVER_DENSE, NO_POSITION, Norm, NormKind, Pairing, Predict,
    Rope, Route, Scoring, Skip, SparseFfn, Window,
};
use hal::{
    Batch, BatchFacts, BatchSeq, BatchShape, BatchToken, Device, HostRowSet, HostRows, KV_BLOCK,
    KvCache, Op, Operand, PackDesc, Queue, RowSet, Rows, Slot, Source, Tensor, TensorDesc,
};

struct OracleDevice {
    device: Device,
    queue: Queue,
}

fn bytes<const N: usize>(words: impl IntoIterator<Item = [u8; N]>) -> Vec<u8> {
    words.into_iter().flatten().collect()
}

impl OracleDevice {
    fn new() -> OracleDevice {
        let device = thermocline_conformance::oracle();
        let queue = device.queue("by hand").unwrap();
        OracleDevice { device, queue }
    }

    fn f32s(&mut self, rows: usize, cols: usize, values: &[f32]) -> Tensor {
        let tensor = self.device.alloc_f32("values", rows, cols).unwrap();
        self.queue.write(&tensor, &bytes(values.iter().map(|v| v.to_le_bytes()))).unwrap();
        tensor
    }

    fn u32s(&mut self, rows: usize, cols: usize, values: &[u32]) -> Tensor {
        let desc = TensorDesc::new(rows, cols, Format::U32);
        let tensor = self.device.alloc("words", desc).unwrap();
        self.queue.write(&tensor, &bytes(values.iter().map(|v| v.to_le_bytes()))).unwrap();
        tensor
    }

    /// Tokens of one sequence at these positions.
    fn batch(&mut self, positions: &[u32]) -> Batch<Tensor> {
        let shape = BatchShape { max_tokens: positions.len(), max_seqs: 1, max_blocks: 1 };
        let token = |&pos| BatchToken { id: 0, seq: 0, pos, output: true };
        let len = positions.last().unwrap() + 1;
        let facts = BatchFacts {
            tokens: positions.iter().map(token).collect(),
            seqs: vec![BatchSeq { blocks: vec![0], len }],
        };
        let words = facts.encode(&shape, 1, 1).unwrap();
        Batch { words: self.u32s(1, words.len(), &words), shape }
    }

    fn set(&mut self, host: &HostRowSet) -> RowSet<Tensor> {
        let n = host.ids.len();
        RowSet {
            ids: self.u32s(1, n, &host.ids),
            count: self.u32s(1, 1, &[n as u32]),
            members: self.u32s(n, host.words, &host.members),
        }
    }

    fn run(&mut self, op: impl Into<Op>) {
        let mut recorder = self.device.record("by hand");
        recorder.push(op).unwrap();
        let program = recorder.finish().unwrap();
        self.queue.replay(&program).unwrap().wait().unwrap();
    }

    fn read(&mut self, tensor: &Tensor) -> Vec<f32> {
        let mut out = vec![0.0; tensor.desc().n_rows * tensor.desc().n_cols];
        self.queue.read_f32(tensor, &mut out).unwrap();
        out
    }

    fn read_words(&mut self, tensor: &Tensor) -> Vec<u32> {
        self.read(tensor).into_iter().map(f32::to_bits).collect()
    }

    /// As [`OracleDevice::expect`], for values that powers of e round.
    #[track_caller]
    fn expect_near(&mut self, tensor: &Tensor, expected: &[f32]) {
        let got = self.read(tensor);
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * b.abs();
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(near), "{got:?}");
    }

    #[track_caller]
    fn expect(&mut self, tensor: &Tensor, expected: &[f32]) {
        let got = self.read(tensor);
        let near = got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(near && got.len() == expected.len(), "{got:?} instead of {expected:?}");
    }
}

#[test]
fn a_quantised_weight_is_multiplied_with_rounded_activations() {
    let mut b = OracleDevice::new();
    // A Q8_0 block with scale 1 and the codes 1, 2, 0, ...
    let mut block = vec![0u8; 34];
    block[..4].copy_from_slice(&[0x00, 0x3c, 1, 2]);
    let source = HostRows::new(Source::Owned(std::sync::Arc::new(block)), 1, 32, Format::Q8_0);
    let source = source.unwrap();
    let w = b.device.import("w", &PackDesc::whole(source.desc()), &source).unwrap();
    // The activations have d = 127 / 127 = 1, so 0.6 is rounded to 1 and 2.5 to 2 (even).
    let mut x = [0.0; 32];
    x[..3].copy_from_slice(&[0.6, 2.5, 127.0]);
    let x = b.f32s(1, 32, &x);
    let y = b.f32s(1, 1, &[0.0]);
    b.run(MatMul { w, x, bias: None, y: y.clone() });
    b.expect(&y, &[5.0]);
}

#[test]
fn norms_divide_by_the_root_of_the_mean_square() {
    let mut b = OracleDevice::new();
    let x = b.f32s(1, 4, &[3.0, 4.0, 1.0, 5.0]);
    let y = b.f32s(1, 4, &[0.0; 4]);
    let weight = b.f32s(1, 2, &[1.0, 2.0]);
    let norm = |kind, weight, y: &Tensor| Norm {
        x: x.clone(),
        weight,
        bias: None,
        y: y.clone(),
        kind,
        eps: 0.0,
        width: 2,
    };
    b.run(norm(NormKind::Rms, Some(weight), &y));
    let (r, s) = (12.5f32.sqrt(), 13f32.sqrt());
    b.expect(&y, &[3.0 / r, 8.0 / r, 1.0 / s, 10.0 / s]);
    b.run(norm(NormKind::Layer, None, &y));
    b.expect(&y, &[-1.0, 1.0, -1.0, 1.0]);
    b.run(norm(NormKind::L2, None, &y));
    let t = 26f32.sqrt();
    b.expect(&y, &[0.6, 0.8, 1.0 / t, 5.0 / t]);
    // A run of columns whose L2 norm is below eps is divided by eps.
    b.run(Norm { eps: 10.0, ..norm(NormKind::L2, None, &y) });
    b.expect(&y, &[0.3, 0.4, 0.1, 0.5]);
}

#[test]
fn a_gate_scales_the_values_it_covers() {
    let mut b = OracleDevice::new();
    let mut gated = |g: &[f32], rows, activation| {
        let x = b.f32s(2, 4, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]);
        let g = b.f32s(rows, g.len() / rows, g);
        b.run(Mul { g, x: x.clone(), activation });
        b.read(&x)
    };
    let per_head = gated(&[2.0, 10.0, 0.5, -1.0], 2, GateActivation::None);
    assert_eq!(per_head, [2.0, 4.0, 30.0, 40.0, 2.5, 3.0, -7.0, -8.0]);
    let shared = gated(&[1.0, 0.0, 2.0, 0.0], 1, GateActivation::None);
    assert_eq!(shared, [1.0, 0.0, 6.0, 0.0, 5.0, 0.0, 14.0, 0.0]);
    // At 0 the sigmoid is 1/2, SiLU and GELU are 0, softplus is ln 2; at 1 they are 0.731, 0.731,
    // 0.841 and 1.313. The root of 1 is 1.
    for (activation, zero, one) in [
        (GateActivation::Sigmoid, 0.5, 0.731_058_6),
        (GateActivation::Silu, 0.0, 0.731_058_6),
        (GateActivation::Softplus, std::f32::consts::LN_2, 1.313_261_7),
        (GateActivation::Gelu, 0.0, 0.841_192),
        (GateActivation::SigmoidOfRoot, 0.5, 0.731_058_6),
    ] {
        let got = gated(&[0.0, 1.0], 2, activation);
        let near = |got: f32, expected: f32| (got - expected).abs() < 1e-5;
        assert!(near(got[0], zero) && near(got[3], 4.0 * zero), "{activation:?}: {got:?}");
        assert!(near(got[4], 5.0 * one) && near(got[7], 8.0 * one), "{activation:?}: {got:?}");
    }
}

#[test]
fn rope_rotates_pairs_by_position_times_frequency() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[0, 2]);
    let quarter = std::f32::consts::FRAC_PI_4;
    let freqs = b.f32s(1, 2, &[quarter, 0.0]);
    let start = [1.0, 2.0, 3.0, 4.0, 9.0];
    for (pairing, rotated) in [
        (Pairing::Adjacent, [-4.0, 2.0, 6.0, 8.0, 9.0]),
        (Pairing::Halves, [-6.0, 4.0, 2.0, 8.0, 9.0]),
    ] {
        let x = b.f32s(2, 5, &[start, start].concat());
        let (freqs, batch) = (freqs.clone(), batch.clone());
        let (d_head, first, n_rot) = (5, 0, 4);
        b.run(Rope { freqs, batch, x: x.clone(), d_head, first, n_rot, pairing, scale: 2.0 });
        b.expect(&x.rows(1..2), &rotated);
        b.expect(&x.rows(0..1), &[2.0, 4.0, 6.0, 8.0, 9.0]);
    }
}

#[test]
fn attention_applies_softmax_within_its_window() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[2]);
    let cache = b.device.kv_cache(1, KvCache::both(1), KvCache::both(Format::F32)).unwrap();
    let mut rows = [f32::NAN; KV_BLOCK];
    rows[..3].copy_from_slice(&[0.0, 2f32.ln(), 4f32.ln()]);
    b.queue.write(&cache.k, &bytes(rows.map(f32::to_le_bytes))).unwrap();
    rows[..3].copy_from_slice(&[7.0, 14.0, 28.0]);
    b.queue.write(&cache.v, &bytes(rows.map(f32::to_le_bytes))).unwrap();
    let q = b.f32s(1, 2, &[1.0, -1.0]);
    let y = b.f32s(1, 2, &[0.0; 2]);
    let sinks = b.f32s(1, 2, &[0.0, 0.0]);
    let op = |window, sinks| Attention {
        q: q.clone(),
        cache: cache.clone().into(),
        batch: batch.clone(),
        slopes: None,
        sinks,
        selected: None,
        y: y.clone(),
        n_head: 2,
        n_head_kv: 1,
        scale: 1.0,
        window,
        softcap: 0.0,
    };
    b.run(op(None, None));
    // The softmax weights are 1/7, 2/7, 4/7 in head 0 and 4/7, 2/7, 1/7 in head 1.
    b.expect(&y, &[1.0 + 4.0 + 16.0, 4.0 + 4.0 + 4.0]);
    b.run(op(Some(Window::Sliding(2)), None));
    b.expect(&y, &[(28.0 + 112.0) / 6.0, (28.0 + 28.0) / 3.0]);
    b.run(op(Some(Window::Sliding(1)), Some(sinks)));
    b.expect(&y, &[28.0 * 4.0 / 5.0, 28.0 * 0.25 / 1.25]);
    // Position 2 begins a chunk of 2 positions.
    b.run(op(Some(Window::Chunk(2)), None));
    b.expect(&y, &[28.0, 28.0]);
}

#[test]
fn sparse_attention_reads_the_positions_of_the_highest_scores() {
    let mut b = OracleDevice::new();
    let batch = b.batch(&[1, 4]);
    let cache = b.device.kv_cache(1, KvCache::both(1), KvCache::both(Format::F32)).unwrap();
    let mut rows = [f32::NAN; KV_BLOCK];
    rows[..5].copy_from_slice(&[-1.0, 3.0, 2.0, -2.0, 2.0]);
    b.queue.write(&cache.k, &bytes(rows.map(f32::to_le_bytes))).unwrap();
    // The first head's products are the keys, the second one's their negatives.
    let q = b.f32s(2, 2, &[1.0, -1.0, 1.0, -1.0]);
    let weights = b.f32s(2, 2, &[1.0, 1.0, 1.0, 2.0]);
    let selected = b.u32s(2, 3, &[9; 6]);
    let k = hal::KvRows { k: cache.k.clone(), v: None };
    let op = LightningIndexer {
        q: q.clone(),
        weights: Some(weights),
        cache: k,
        batch: batch.clone(),
        selected: selected.clone(),
        n_head: 2,
        pool: 1,
        list: None,
    };
    b.run(op.clone());
    // The scores of the second token are 2, 3, 2, 4, 2.
    let mut words = [0; 24];
    b.queue.read(&selected, &mut words).unwrap();
    assert_eq!(words.to_vec(), bytes([0, 1, NO_POSITION, 0, 1, 3].map(u32::to_le_bytes)));
    rows[..5].copy_from_slice(&[10.0, 20.0, 30.0, 40.0, 50.0]);
    b.queue.write(&cache.v, &bytes(rows.map(f32::to_le_bytes))).unwrap();
    let y = b.f32s(2, 2, &[0.0; 4]);
    b.run(Attention {
        q,
        cache: cache.into(),
        batch,
        slopes: None,
        sinks: None,
        selected: Some(selected.clone()),
        y: y.clone(),
        n_head: 2,
        n_head_kv: 1,
        scale: 0.0,
        window: None,
        softcap: 0.0,
    });
    let mean = 70.0 / 3.0;
    b.expect(&y, &[15.0, 15.0, mean, mean]);
    // The keys of blocks of two positions are those of positions 1 and 3; the token at 4 also selects
    // itself, and the token at 1 the only complete block.
    b.run(LightningIndexer { pool: 2, ..op });
    b.queue.read(&selected, &mut words).unwrap();
    assert_eq!(words.to_vec(), bytes([0, 1, NO_POSITION, 2, 3, 4].map(u32::to_le_bytes)));
}

fn ffn(b: &mut OracleDevice, gate: &[f32], up: &[f32], down: &[f32]) -> SparseFfn<Tensor> {
    let n = gate.len();
    SparseFfn {
        gate: Some(b.f32s(n, 1, gate)),
        up: b.f32s(n, 1, up),
        down: b.f32s(n, 1, down),
        bias_gate: None,
        bias_up: None,
        bias_down: None,
        threshold: None,
        experts: None,
        expert_weights: None,
        rows: Rows::All,
        x: b.f32s(2, 1, &[1.0, -1.0]),
        y: b.f32s(2, 1, &[100.0, 200.0]),
        active: b.f32s(1, 2, &[0.0, 0.0]),
        hits: None,
        union: None,
        kind: FfnKind::Gated,
        activation: Activation::Relu,
        skip: Skip::NotPositive,
        orientation: Down::ByNeuron,
        dense_from: NEVER_DENSE,
        accumulate: false,
    }
}

#[test]
fn a_sparse_block_skips_neurons_by_their_gate() {
    let mut b = OracleDevice::new();
    let op = ffn(&mut b, &[1.0, -2.0, 3.0], &[1.0, 1.0, 2.0], &[1.0, 10.0, 100.0]);
    b.run(op.clone());
    // Token 0 has the gate products 1, -2, 3 and the up products 1, 1, 2; token 1 their negatives.
    b.expect(&op.y, &[1.0 + 600.0, -20.0]);
    b.expect(&op.active, &[2.0, 1.0]);
    let set = HostRowSet { ids: vec![1, 2], members: vec![0b11, 0b10], words: 1 };
    let rows = Rows::Active(b.set(&set));
    b.run(SparseFfn { rows, accumulate: true, ..op.clone() });
    b.expect(&op.y, &[601.0, -40.0]);
    b.expect(&op.active, &[2.0, 2.0]);
}

#[test]
fn experts_are_weighted_and_gaussian_cut_offs_applied() {
    let mut b = OracleDevice::new();
    let op = ffn(&mut b, &[1.0, 2.0, 6.0], &[1.0, 1.0, 2.0], &[1.0, 10.0, 100.0]);
    let weight = b.f32s(2, 2, &[0.0, 0.5, 2.0, 1.0]);
    let bias = b.f32s(2, 1, &[1000.0, 4000.0]);
    let weighted = SparseFfn {
        experts: Some(ExpertRanges { starts: [0, 1, 3].into(), n_used: 2 }),
        expert_weights: Some(weight),
        bias_down: Some(bias),
        skip: Skip::Never,
        ..op.clone()
    };
    b.run(weighted);
    b.expect(&op.y, &[2000.0 + 0.5 * (20.0 + 1200.0), 6000.0]);
    b.expect(&op.active, &[2.0, 3.0]);
    // The gate products of token 0 are 1, 2 and 6. With factor 0 the cut-off is their mean, 3. Only
    // 6 exceeds the cut-off, which is then subtracted.
    b.run(SparseFfn { skip: Skip::GaussianCut(0.0), ..op.clone() });
    b.expect(&op.y.rows(0..1), &[3.0 * 2.0 * 100.0]);
    // gpt-oss with alpha 0: the sigmoid is 1/2, the gate is capped at 1.5 and up is clamped to 1.5.
    let activation = Activation::SwigluOai { alpha: 0.0, limit: 1.5 };
    b.run(SparseFfn { skip: Skip::Never, activation, ..op.clone() });
    let first = 0.5 * 2.0 + 0.75 * 2.0 * 10.0 + 0.75 * 2.5 * 100.0;
    b.expect(&op.y.rows(0..1), &[first]);
}

#[test]
fn the_predictor_splits_active_neurons_by_slot() {
    let mut b = OracleDevice::new();
    let empty = HostRowSet { ids: vec![0; 4], members: vec![0; 4], words: 1 };
    let (resident, absent) = (b.set(&empty), b.set(&empty));
    let slots = [Slot::Resident(0), Slot::Absent(0), Slot::Resident(1), Slot::Absent(1)];
    let op = Predict {
        x: b.f32s(2, 1, &[1.0, -1.0]),
        fc1: Some(b.f32s(2, 1, &[1.0, -1.0])),
        // Neuron 0 is active for token 0, neuron 1 for token 1, neuron 2 (NaN) for both, neuron 3
        // for neither.
        fc2: b.f32s(4, 2, &[1.0, 0.0, 0.0, 1.0, f32::NAN, 0.0, 0.5, 0.5]),
        bias: None,
        slots: b.u32s(1, 4, &slots.map(Slot::encode)),
        resident: resident.clone(),
        absent: Some(absent.clone()),
        threshold: 1.0,
        hidden: HiddenActivation::Relu,
    };
    b.run(op.clone());
    assert_eq!(b.read_words(&resident.count), [2]);
    assert_eq!(b.read_words(&resident.ids)[..2], [0, 1]);
    assert_eq!(b.read_words(&resident.members)[..2], [0b01, 0b11]);
    assert_eq!(b.read_words(&absent.count), [1]);
    assert_eq!(b.read_words(&absent.ids)[..1], [0]);
    assert_eq!(b.read_words(&absent.members)[..1], [0b10]);
    // Without ReLU neuron 3 scores 0 for both tokens, and its bias of 1 makes it active. The bias
    // of neuron 1 makes it inactive for token 1.
    let bias = b.f32s(1, 4, &[0.0, -0.25, 0.0, 1.0]);
    b.run(Predict { bias: Some(bias), hidden: HiddenActivation::Linear, ..op.clone() });
    assert_eq!(b.read_words(&resident.count), [2]);
    assert_eq!(b.read_words(&absent.count), [1]);
    assert_eq!(b.read_words(&absent.ids)[..1], [1]);
    assert_eq!(b.read_words(&absent.members)[..1], [0b11]);
    // With a single matrix, its rows are multiplied with x, and ReLU does not apply.
    let fc2 = b.f32s(4, 1, &[1.0, -1.0, 0.5, -0.5]);
    b.run(Predict { fc1: None, fc2, ..op });
    assert_eq!(b.read_words(&resident.count), [1]);
    assert_eq!(b.read_words(&resident.members)[..1], [0b01]);
    assert_eq!(b.read_words(&absent.count), [1]);
    assert_eq!(b.read_words(&absent.members)[..1], [0b10]);
}

#[test]
fn routing_selects_the_highest_scores() {
    let mut b = OracleDevice::new();
    let (w, x) = (b.f32s(3, 1, &[0.0, 3f32.ln(), 4f32.ln()]), b.f32s(1, 1, &[1.0]));
    let weights = b.f32s(1, 3, &[9.0; 3]);
    let op = |scoring, renormalise, scale| Route {
        w: w.clone(),
        bias: None,
        selection: None,
        groups: None,
        chosen: None,
        x: x.clone(),
        weights: weights.clone(),
        n_used: 2,
        n_per_chunk: 1,
        n_groups: [1, 1],
        scoring,
        renormalise,
        scale,
    };
    b.run(op(Scoring::Softmax, false, 8.0));
    b.expect(&weights, &[0.0, 3.0, 4.0]);
    b.run(op(Scoring::SoftmaxChosen, false, 7.0));
    b.expect(&weights, &[0.0, 3.0, 4.0]);
    b.run(op(Scoring::Sigmoid, false, 1.0));
    b.expect(&weights, &[0.0, 0.75, 0.8]);
    b.run(op(Scoring::Sigmoid, true, 1.0));
    b.expect(&weights, &[0.0, 0.75 / 1.55, 0.8 / 1.55]);
    // The bias selects expert 0 without entering its weight.
    let selection = Some(b.f32s(1, 3, &[0.6, 0.0, 0.1]));
    b.run(Route { selection, ..op(Scoring::Sigmoid, false, 1.0) });
    b.expect(&weights, &[0.5, 0.0, 0.8]);
    // Group 0 with experts 0 and 1 has the larger sum, although expert 2 alone is the best.
    let groups = Some(b.f32s(1, 3, &[0.0, 0.0, 1.0]));
    b.run(Route { groups, n_groups: [2, 1], ..op(Scoring::Sigmoid, false, 1.0) });
    b.expect(&weights, &[0.5, 0.75, 0.0]);
    // Scores of 0.1, 0.3, 0.4, 0.2: experts 2, 1 and 3 are selected, of chunks 1, 0 and 1. Chunk 0 has the
    // score of expert 0, chunk 1 twice that of expert 1.
    let w = b.f32s(4, 1, &[0.0, 3f32.ln(), 4f32.ln(), 2f32.ln()]);
    let chunks = b.f32s(1, 2, &[9.0; 2]);
    let route = op(Scoring::Softmax, true, 7.0);
    b.run(Route { w, weights: chunks.clone(), n_used: 3, n_per_chunk: 2, ..route });
    b.expect(&chunks, &[1.0, 6.0]);
}
