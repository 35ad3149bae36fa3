//! DeepSeek-V4: one KV head over a window and compressed keys of blocks, experts from a table in the first
//! layers, and several residual streams.

mod plain;

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;

use rand::RngExt;
use thermocline::engine::{Feed, LogitsRequest, state_bytes};
use thermocline::gguf::{Array, TensorType, Value as GgufValue, Writer};

use super::layers::nmse;
use super::on_devices::{all_on, on_cuda, on_graphics, on_rocm};
use super::*;
use plain::Plain;

const NAME: &str = "deepseek4";
const N_EMBD: usize = 32;
const N_VOCAB: usize = 84;
const N_STREAM: usize = 4;
const ITERATIONS: usize = 3;
/// Positions per block in each layer; 0 without compressed keys.
const RATIOS: [usize; 4] = [0, 4, 128, 4];
/// Layers with a table of experts.
const HASH_LAYERS: usize = 2;
const WINDOW: usize = 9;
const TOP_K: usize = 5;
const N_HEAD: usize = 4;
const D_HEAD: usize = 16;
const N_ROT: usize = 8;
const Q_RANK: usize = 12;
/// Groups of heads, and the width of a group's output.
const N_GROUP: usize = 2;
const O_RANK: usize = 6;
const N_INDEX: usize = 3;
const D_INDEX: usize = 12;
const N_EXPERT: usize = 5;
const N_USED: usize = 2;
const N_FF: usize = 32;
const BASE: f32 = 10_000.0;
const COMPRESS_BASE: f32 = 160_000.0;
/// YaRN.
const FACTOR: f32 = 4.0;
const N_CTX_ORIG: usize = 64;
const CLAMP: f32 = 1.5;
const SCALE: f32 = 1.5;
const EPS: f64 = 1e-5;
const HC_EPS: f64 = 1e-6;

/// A model with random weights.
#[derive(Clone, Default)]
struct Tiny {
    /// Keys that replace the usual ones.
    keys: Vec<(&'static str, GgufValue)>,
    /// Tensor or key that the file lacks.
    without: &'static str,
    /// Replaces the first experts of the tables.
    first: Option<[i32; N_USED]>,
}

pub(crate) fn models() -> impl Iterator<Item = (String, Arc<Model>)> {
    [(NAME.to_owned(), Tiny::default().model())].into_iter()
}

fn counts(list: &[usize]) -> GgufValue {
    Array::U32(list.iter().map(|&n| n as u32).collect()).into()
}

/// The experts of token `id` in the table of a layer.
fn listed(layer: usize, id: u32) -> [i32; N_USED] {
    let first = (id as usize * 3 + layer) % N_EXPERT;
    [first, (first + 1 + id as usize % (N_EXPERT - 1)) % N_EXPERT].map(|expert| expert as i32)
}

impl Tiny {
    fn with(key: &'static str, value: impl Into<GgufValue>) -> Tiny {
        Tiny { keys: vec![(key, value.into())], ..Tiny::default() }
    }

    fn without(name: &'static str) -> Tiny {
        Tiny { without: name, ..Tiny::default() }
    }

    fn model(&self) -> Arc<Model> {
        Arc::new(self.read().unwrap())
    }

    fn keys(&self) -> Vec<(&'static str, GgufValue)> {
        let number = |n: usize| GgufValue::from(n as u32);
        let mut keys = vec![
            ("block_count", number(RATIOS.len())),
            ("embedding_length", number(N_EMBD)),
            ("feed_forward_length", number(N_FF)),
            ("expert_feed_forward_length", number(N_FF)),
            ("expert_count", number(N_EXPERT)),
            ("expert_used_count", number(N_USED)),
            ("expert_shared_count", number(1)),
            ("expert_gating_func", number(4)),
            ("expert_weights_norm", true.into()),
            ("expert_weights_scale", SCALE.into()),
            ("swiglu_clamp_exp", Array::F32(vec![CLAMP; RATIOS.len()]).into()),
            ("hash_layer_count", number(HASH_LAYERS)),
            ("attention.head_count", number(N_HEAD)),
            ("attention.head_count_kv", number(1)),
            ("attention.key_length", number(D_HEAD)),
            ("attention.value_length", number(D_HEAD)),
            ("attention.q_lora_rank", number(Q_RANK)),
            ("attention.output_group_count", number(N_GROUP)),
            ("attention.output_lora_rank", number(O_RANK)),
            ("attention.sliding_window", number(WINDOW)),
            ("attention.layer_norm_rms_epsilon", (EPS as f32).into()),
            ("attention.indexer.head_count", number(N_INDEX)),
            ("attention.indexer.key_length", number(D_INDEX)),
            ("attention.indexer.top_k", number(TOP_K)),
            // As in published files, with a layer that they lack.
            ("attention.compress_ratios", counts(&[&RATIOS[..], &[0]].concat())),
            ("attention.compress_rope_freq_base", COMPRESS_BASE.into()),
            ("rope.dimension_count", number(N_ROT)),
            ("rope.freq_base", BASE.into()),
            ("rope.scaling.type", "yarn".into()),
            ("rope.scaling.factor", FACTOR.into()),
            ("rope.scaling.original_context_length", number(N_CTX_ORIG)),
            ("context_length", number(512)),
            ("hyper_connection.count", number(N_STREAM)),
            ("hyper_connection.sinkhorn_iterations", number(ITERATIONS)),
            ("hyper_connection.epsilon", (HC_EPS as f32).into()),
        ];
        for (key, value) in &mut keys {
            if let Some((_, other)) = self.keys.iter().find(|(name, _)| name == key) {
                *value = other.clone();
            }
        }
        keys.retain(|(key, _)| *key != self.without);
        keys
    }

    fn read(&self) -> Result<Model, thermocline::model::Error> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", NAME).unwrap();
        for (key, value) in self.keys() {
            writer.set(&format!("{NAME}.{key}"), value).unwrap();
        }
        let mut tensors = tensors();
        let is_kept = |name: &str| self.without.is_empty() || !name.ends_with(self.without);
        tensors.retain(|(name, ..)| is_kept(name));
        for (name, shape, _) in &tensors {
            writer.declare(name, shape, Format::F32).unwrap();
        }
        let tables = (0..HASH_LAYERS).map(|layer| format!("blk.{layer}.ffn_gate_tid2eid.weight"));
        let tables: Vec<String> = tables.filter(|name| is_kept(name)).collect();
        for name in &tables {
            writer.declare(name, &[N_USED as u64, N_VOCAB as u64], TensorType::I32).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, values) in &tensors {
            data.write(name, bytemuck::cast_slice(values)).unwrap();
        }
        for (layer, name) in tables.iter().enumerate() {
            let mut ids: Vec<i32> = (0..N_VOCAB).flat_map(|id| listed(layer, id as u32)).collect();
            if let Some(first) = self.first {
                ids[..N_USED].copy_from_slice(&first);
            }
            data.write(name, bytemuck::cast_slice(&ids)).unwrap();
        }
        let file = File::from_vec(data.finish().unwrap(), "deepseek4.gguf").unwrap();
        Model::from_file(file, &ModelOptions::default())
    }

    fn fails(&self, part: &str) {
        let error = self.read().map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}, expected {part}");
    }
}

/// Names and shapes, rows first, of the tensors of layer `index`.
fn parts(index: usize) -> Vec<(&'static str, Vec<usize>)> {
    let (n_mix, all) = (N_STREAM * (N_STREAM + 2), N_STREAM * N_EMBD);
    let mut parts = vec![
        ("hc_attn_fn.weight", vec![n_mix, all]),
        ("hc_attn_base.weight", vec![1, n_mix]),
        ("hc_attn_scale.weight", vec![1, 3]),
        ("hc_ffn_fn.weight", vec![n_mix, all]),
        ("hc_ffn_base.weight", vec![1, n_mix]),
        ("hc_ffn_scale.weight", vec![1, 3]),
        ("attn_norm.weight", vec![1, N_EMBD]),
        ("ffn_norm.weight", vec![1, N_EMBD]),
        ("attn_sinks.weight", vec![1, N_HEAD]),
        ("attn_q_a.weight", vec![Q_RANK, N_EMBD]),
        ("attn_q_a_norm.weight", vec![1, Q_RANK]),
        ("attn_q_b.weight", vec![N_HEAD * D_HEAD, Q_RANK]),
        ("attn_kv.weight", vec![D_HEAD, N_EMBD]),
        ("attn_kv_a_norm.weight", vec![1, D_HEAD]),
        ("attn_output_a.weight", vec![N_GROUP * O_RANK, N_HEAD / N_GROUP * D_HEAD]),
        ("attn_output_b.weight", vec![N_EMBD, N_GROUP * O_RANK]),
        ("ffn_gate_inp.weight", vec![N_EXPERT, N_EMBD]),
        ("ffn_gate_exps.weight", vec![N_EXPERT, N_FF, N_EMBD]),
        ("ffn_up_exps.weight", vec![N_EXPERT, N_FF, N_EMBD]),
        ("ffn_down_exps.weight", vec![N_EXPERT, N_EMBD, N_FF]),
        ("ffn_gate_shexp.weight", vec![N_FF, N_EMBD]),
        ("ffn_up_shexp.weight", vec![N_FF, N_EMBD]),
        ("ffn_down_shexp.weight", vec![N_EMBD, N_FF]),
    ];
    let ratio = RATIOS[index];
    if ratio > 0 {
        let width = if ratio == 4 { 2 * D_HEAD } else { D_HEAD };
        parts.extend([
            ("attn_compressor_kv.weight", vec![width, N_EMBD]),
            ("attn_compressor_gate.weight", vec![width, N_EMBD]),
            ("attn_compressor_ape.weight", vec![ratio, width]),
            ("attn_compressor_norm.weight", vec![1, D_HEAD]),
        ]);
    }
    if ratio == 4 {
        parts.extend([
            ("indexer.attn_q_b.weight", vec![N_INDEX * D_INDEX, Q_RANK]),
            ("indexer.proj.weight", vec![N_INDEX, N_EMBD]),
            ("indexer_compressor_kv.weight", vec![2 * D_INDEX, N_EMBD]),
            ("indexer_compressor_gate.weight", vec![2 * D_INDEX, N_EMBD]),
            ("indexer_compressor_ape.weight", vec![ratio, 2 * D_INDEX]),
            ("indexer_compressor_norm.weight", vec![1, D_INDEX]),
        ]);
    }
    if index >= HASH_LAYERS {
        parts.push(("exp_probs_b.bias", vec![1, N_EXPERT]));
    }
    parts
}

/// Names, shapes (columns first) and values.
fn tensors() -> Vec<(String, Vec<u64>, Vec<f32>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(23);
    let ends = [
        ("token_embd.weight", vec![N_VOCAB, N_EMBD]),
        ("output.weight", vec![N_VOCAB, N_EMBD]),
        ("output_norm.weight", vec![1, N_EMBD]),
        ("output_hc_fn.weight", vec![N_STREAM, N_STREAM * N_EMBD]),
        ("output_hc_base.weight", vec![1, N_STREAM]),
        ("output_hc_scale.weight", vec![1, 1]),
    ];
    let ends = ends.into_iter().map(|(name, shape)| (name.to_owned(), shape));
    let of_layer = |index: usize| {
        parts(index).into_iter().map(move |(part, shape)| (format!("blk.{index}.{part}"), shape))
    };
    let named = ends.chain((0..RATIOS.len()).flat_map(of_layer));
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let cols = shape[shape.len() - 1];
        let (mean, size) = match name.rsplit('.').nth(1).unwrap_or("") {
            part if part.contains("norm") || part.ends_with("_scale") => (1.0, 0.3),
            "attn_sinks" | "exp_probs_b" => (0.0, 0.5),
            part if part.ends_with("_base") => (0.0, 0.5),
            part if part.ends_with("_ape") => (0.0, 1.0),
            "token_embd" => (0.0, 1.0),
            _ => (0.0, 2.5 / (cols as f32).sqrt()),
        };
        let n: usize = shape.iter().product();
        let values = (0..n).map(|_| mean + size * rng.random_range(-1.0..1.0f32)).collect();
        let mut shape: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        if shape.len() == 2 && shape[1] == 1 {
            shape.pop();
        }
        (name, shape, values)
    };
    named.map(tensor).collect()
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 3 * i + i / 29) % N_VOCAB) as u32).collect()
}

fn engine(
    model: &Arc<Model>,
    devices: Vec<Device>,
    (n_ctx, kv): (usize, Format),
    placement: Option<Placement>,
) -> Engine {
    let kv_formats = KvCache::both(kv);
    let options = EngineOptions { n_ctx, n_ubatch: 40, kv_formats, ..EngineOptions::default() };
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

/// The logits of the plain loops.
fn expected(ids: &[u32]) -> Logits {
    let tensors: HashMap<String, Vec<f32>> =
        tensors().into_iter().map(|(name, _, values)| (name, values)).collect();
    Plain { tensors }.logits(ids)
}

/// The text has two blocks of 128 positions, more blocks of 4 than are selected, and a window that is
/// longer than it first and shorter later.
#[test]
fn logits_match_plain_loops() {
    within(LIMIT, || {
        let (model, ids) = (Tiny::default().model(), ids(290));
        let expected = expected(&ids);
        for (n_ctx, pieces) in [(320, &[40][..]), (320, &[1]), (512, &[5, 3, 7, 16])] {
            let mut engine = engine(&model, vec![cpu_device(2)], (n_ctx, Format::F32), None);
            let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
            assert!(error < 1e-9, "{n_ctx}, {pieces:?}: {error}");
        }
        // Blocks are selected: other numbers of blocks give other logits.
        let all = Tiny::with("attention.indexer.top_k", 384u32).model();
        let mut all = engine(&all, vec![cpu_device(2)], (320, Format::F32), None);
        assert!(nmse(&expected, &logits_of(&mut all, &ids, &[40])) > 1e-4);
    });
}

/// A cut may be inside a block of 4 and of 128 positions.
#[test]
fn cuts_and_threads_change_no_bit() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        for kv in [Format::F16, Format::F32] {
            let run = |threads, pieces: &[usize]| {
                let mut engine = engine(&model, vec![cpu_device(threads)], (384, kv), None);
                logits_of(&mut engine, &ids(270), pieces)
            };
            let expected = run(1, &[16]);
            for (threads, pieces) in [(2, &[1][..]), (3, &[7, 16, 2]), (2, &[3]), (1, &[13, 1])] {
                assert!(expected == run(threads, pieces), "{kv}, {pieces:?}");
            }
        }
    });
}

/// Two sequences in the same steps, with different parts of their blocks, have the bits of each alone.
#[test]
fn sequences_do_not_depend_on_each_other() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let texts = [ids(140), ids(171)[31..].to_vec()];
        let mut alone = engine(&model, vec![cpu_device(2)], (384, Format::F16), None);
        let expected = texts.each_ref().map(|text| logits_of(&mut alone, text, &[8]));
        let options = EngineOptions { n_ctx: 384, n_ubatch: 16, n_seq: 2, ..Default::default() };
        let devices = vec![cpu_device(2)];
        let mut engine =
            Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap();
        let (mut a, mut b) = (engine.new_sequence(), engine.new_sequence());
        let mut got = [Vec::new(), Vec::new()];
        while a.tokens().len() < 140 {
            let [n, m] = [&a, &b].map(|sequence| sequence.tokens().len());
            let want = LogitsRequest::All;
            let mut feeds = [
                Feed { sequence: &mut a, tokens: &texts[0][n..140.min(n + 5)], want },
                Feed { sequence: &mut b, tokens: &texts[1][m..140.min(m + 7)], want },
            ];
            let feeds = if m < 140 { &mut feeds[..] } else { &mut feeds[..1] };
            let sink = &mut |index: usize, _: usize, row: &[f32]| got[index].push(row.to_vec());
            engine.step(feeds, &AtomicBool::new(false), sink).unwrap();
        }
        assert!(got == expected);
    });
}

/// A selection of as many blocks as there are is the same as none.
#[test]
fn a_selection_of_all_blocks_changes_nothing() {
    within(LIMIT, || {
        let logits = |top_k: u32, n_ctx| {
            let model = Tiny::with("attention.indexer.top_k", top_k).model();
            let mut engine = engine(&model, vec![cpu_device(2)], (n_ctx, Format::F32), None);
            logits_of(&mut engine, &ids(60), &[1, 16, 7])
        };
        let dense = logits(96, 96);
        // With a selection, because a longer context has more blocks.
        assert_eq!(dense, logits(15, 96));
        let sparse = logits(TOP_K as u32, 96);
        let differs = dense.iter().zip(&sparse).position(|(a, b)| a != b);
        assert_eq!(differs, Some(4 * (TOP_K + 1) - 1));
    });
}

/// The simulated devices compute with the oracle. Streams move between devices.
#[test]
fn layers_may_be_on_several_devices() {
    within(LIMIT, || {
        let (model, ids) = (Tiny::default().model(), ids(150));
        let expected = expected(&ids);
        for seed in 0..4 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let sims = (1..3)
                .map(|index| sim_device(index, Bytes::MAX, Duration::ZERO..Duration::ZERO, seed).1);
            let devices: Vec<Device> = [cpu_device(2)].into_iter().chain(sims).collect();
            let placement = random_placement(&mut rng, &model, 3);
            let mut engine = engine(&model, devices, (160, Format::F32), Some(placement.clone()));
            for pieces in [&[40][..], &[1, 5, 16]] {
                let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
                assert!(error < 1e-8, "{pieces:?}: {error} by {placement:?}");
            }
        }
    });
}

/// A device with all layers computes the logits of the CPU.
fn check_on(backend: &Arc<dyn hal::Backend>) {
    let (model, ids) = (Tiny::default().model(), ids(150));
    let kv = (160, Format::F16);
    let expected = logits_of(&mut engine(&model, vec![cpu_device(2)], kv, None), &ids, &[40]);
    for pieces in [&[40][..], &[1, 5, 16]] {
        let (devices, placement) = all_on(backend, RATIOS.len());
        let mut engine = engine(&model, devices, kv, Some(placement));
        let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
        assert!(error < 1e-5, "{pieces:?}: {error}");
    }
}

#[test]
fn layers_run_on_devices() {
    on_graphics(check_on);
    on_cuda(check_on);
    on_rocm(check_on);
}

#[test]
fn the_states_of_compressors_are_in_the_budget() {
    let model = Tiny::default().model();
    let states: Vec<Bytes> = model.layers.iter().map(state_bytes).collect();
    let overlapping = 8 * 2 * 2 * (D_HEAD + D_INDEX);
    let expected = [0, overlapping, 128 * 2 * D_HEAD, overlapping].map(|n| Bytes(4 * n as u64));
    assert_eq!(states, expected);
}

/// Each part matters, so that an engine that ignored it would fail the comparison with plain loops.
#[test]
fn every_part_changes_the_logits() {
    within(LIMIT, || {
        let logits = |tiny: &Tiny| {
            let mut engine = engine(&tiny.model(), vec![cpu_device(2)], (160, Format::F32), None);
            logits_of(&mut engine, &ids(150), &[40])
        };
        let usual = logits(&Tiny::default());
        let changes = [
            Tiny::with("attention.sliding_window", 8u32),
            Tiny::with("attention.compress_rope_freq_base", 10_000f32),
            Tiny::with("rope.freq_base", 20_000f32),
            Tiny::without("rope.scaling.type"),
            Tiny::with("swiglu_clamp_exp", Array::F32(vec![0.0; RATIOS.len()])),
            Tiny::with("expert_weights_scale", 1.0f32),
            Tiny { first: Some([3, 4]), ..Tiny::default() },
        ];
        for (i, changed) in changes.iter().enumerate() {
            assert!(nmse(&usual, &logits(changed)) > 1e-7, "change {i}");
        }
    });
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let reject = |key, value: GgufValue, part: &str| Tiny::with(key, value).fails(part);
    const RATIO: &str = "attention.compress_ratios";
    for wrong in [1, 3, 5, 127, 256, u32::MAX as usize] {
        reject(RATIO, counts(&[0, wrong, 128, 4]), "0, 4 or 128 for each layer");
    }
    reject(RATIO, counts(&[0, 4, 128]), "each of the 4 layers");
    reject(RATIO, counts(&[0, 128, 128, 4]), "attn_compressor");
    reject(RATIO, counts(&[4, 4, 128, 4]), "blk.0.indexer");
    reject(RATIO, counts(&[0, 4, 0, 4]), "attn_compressor");
    for key in [
        "attention.output_group_count",
        "attention.output_lora_rank",
        "attention.sliding_window",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
    ] {
        reject(key, 0u32.into(), key);
        reject(key, u32::MAX.into(), if key.ends_with("window") { "" } else { key });
        Tiny::without(key).fails(key);
    }
    reject("attention.output_group_count", 3u32.into(), "a divisor of the 4 heads");
    reject("attention.output_lora_rank", 7u32.into(), "attn_output_a");
    reject("attention.indexer.key_length", 6u32.into(), "at least the 8 values");
    reject("attention.indexer.head_count", 4u32.into(), "indexer.attn_q_b");
    reject("attention.head_count_kv", 2u32.into(), "attention.head_count_kv");
    reject("attention.value_length", 8u32.into(), "attention.value_length");
    for base in [0.0f32, -1.0, f32::NAN, f32::INFINITY] {
        reject("attention.compress_rope_freq_base", base.into(), "a positive number");
    }
    reject("expert_gating_func", 2u32.into(), "sqrt(softplus)");
    reject("hash_layer_count", 3u32.into(), "blk.2.ffn_gate_tid2eid");
    reject("hash_layer_count", 1u32.into(), "blk.1.ffn_gate_tid2eid");
    for key in [RATIO, "attention.compress_rope_freq_base", "hash_layer_count"] {
        Tiny::without(key).fails(key);
    }
    for experts in [[0, N_EXPERT as i32], [-1, 0], [i32::MAX, 1], [2, 2]] {
        Tiny { first: Some(experts), ..Tiny::default() }.fails("distinct experts");
    }
    for tensor in [
        "blk.1.attn_compressor_ape.weight",
        "blk.3.indexer_compressor_norm.weight",
        "blk.2.attn_sinks.weight",
        "blk.0.attn_output_b.weight",
        "blk.0.ffn_gate_tid2eid.weight",
        "output_hc_scale.weight",
    ] {
        Tiny::without(tensor).fails(tensor);
    }
}
