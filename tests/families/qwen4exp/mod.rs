//! Qwen3.8-Flash-Next: several residual streams, embeddings of n-grams, and attention to selected blocks
//! of positions, whose keys are means.

mod plain;

use std::collections::HashMap;

use hal::DeviceId;
use rand::RngExt;
use thermocline::engine::state_bytes;
use thermocline::gguf::{Array, Value as GgufValue, Writer};

use super::layers::nmse;
use super::on_devices::{on_cuda, on_graphics};
use super::*;
use plain::Plain;

const N_EMBD: usize = 32;
const N_VOCAB: usize = 84;
const N_STREAM: usize = 3;
/// Rank of the matrices that mix the streams.
const RANK: usize = 6;
/// Positions per block that each layer attends to, 0 for all of them; `None` for gated delta nets.
const LAYERS: [Option<usize>; 5] = [None, Some(4), Some(3), Some(0), Some(1)];
const TOP_K: usize = 13;
const N_HEAD: usize = 2;
const N_KV: usize = 1;
const D_HEAD: usize = 16;
const N_ROT: usize = 8;
const N_INDEX: usize = 3;
const D_INDEX: usize = 12;
/// Of the gated delta nets: 2 key heads, value heads, values of a head, kernel size.
const N_V: usize = 4;
const D_STATE: usize = 8;
const KERNEL: usize = 4;
const N_EXPERT: usize = 3;
const N_USED: usize = 2;
const N_FF: usize = 32;
const N_NGRAM: usize = 3;
const PLE_KERNEL: usize = 4;
/// First row and number of rows of the parts of the table.
const NGRAMS: [(u64, u64); 4] = [(0, 41), (41, 37), (80, 43), (123, 17)];
/// The real ones have 45 bits too.
const MULTIPLIERS: [u64; N_NGRAM] = [28_131_984_212_431, 33_091_843_710_215, 9_101_112_131_415];
const EOS: u32 = 7;

/// A model with random weights.
#[derive(Clone, Default)]
struct Tiny {
    /// Keys that replace the usual ones.
    keys: Vec<(&'static str, GgufValue)>,
    /// Tensor or key that the file lacks.
    without: &'static str,
}

pub(crate) fn models() -> impl Iterator<Item = (String, Arc<Model>)> {
    [("qwen4exp".to_owned(), Tiny::default().model())].into_iter()
}

/// The bytes of the file of [`models`].
#[cfg(unix)]
pub(crate) fn bytes() -> Vec<u8> {
    Tiny::default().bytes()
}

fn counts(list: &[usize]) -> GgufValue {
    Array::U32(list.iter().map(|&n| n as u32).collect()).into()
}

impl Tiny {
    fn with(key: &'static str, value: impl Into<GgufValue>) -> Tiny {
        Tiny { keys: vec![(key, value.into())], without: "" }
    }

    fn without(name: &'static str) -> Tiny {
        Tiny { without: name, ..Tiny::default() }
    }

    fn model(&self) -> Arc<Model> {
        Arc::new(self.read().unwrap())
    }

    fn keys(&self) -> Vec<(&'static str, GgufValue)> {
        let number = |n: usize| GgufValue::from(n as u32);
        let numbers = |list: &[u64]| GgufValue::from(Array::U64(list.to_vec()));
        let is_recurrent = LAYERS.map(|ratio| usize::from(ratio.is_none()));
        let mut keys = vec![
            ("block_count", number(LAYERS.len())),
            ("embedding_length", number(N_EMBD)),
            ("feed_forward_length", number(N_FF)),
            ("expert_feed_forward_length", number(N_FF)),
            ("expert_count", number(N_EXPERT)),
            ("expert_used_count", number(N_USED)),
            ("attention.head_count", number(N_HEAD)),
            ("attention.head_count_kv", number(N_KV)),
            ("attention.key_length", number(D_HEAD)),
            ("attention.value_length", number(D_HEAD)),
            ("attention.layer_norm_rms_epsilon", 1e-5f32.into()),
            ("attention.recurrent_layers", counts(&is_recurrent)),
            ("attention.indexer.head_count", number(N_INDEX)),
            ("attention.indexer.key_length", number(D_INDEX)),
            ("attention.indexer.top_k", number(TOP_K)),
            ("attention.compress_ratios", counts(&LAYERS.map(|ratio| ratio.unwrap_or(0)))),
            ("rope.dimension_count", number(N_ROT)),
            ("rope.dimension_sections", counts(&[2, 1, 1, 0])),
            ("rope.freq_base", 10_000f32.into()),
            ("context_length", number(512)),
            ("ssm.conv_kernel", number(KERNEL)),
            ("ssm.inner_size", number(N_V * D_STATE)),
            ("ssm.state_size", number(D_STATE)),
            ("ssm.time_step_rank", number(N_V)),
            ("ssm.group_count", number(2)),
            ("hyper_connection.count", number(N_STREAM)),
            ("hyper_connection.low_rank", number(RANK)),
            ("ple.layers", counts(&[0])),
            ("ple.ngram_size", number(N_NGRAM)),
            ("ple.heads_per_ngram", number(NGRAMS.len() / (N_NGRAM - 1))),
            ("ple.conv_kernel", number(PLE_KERNEL)),
            ("ple.eos_token_id", EOS.into()),
            ("embedding_length_per_layer_input", number(N_EMBD / NGRAMS.len())),
            ("ple.layer_multipliers", numbers(&MULTIPLIERS)),
            ("ple.head_offsets", numbers(&NGRAMS.map(|(first, _)| first))),
            ("ple.head_vocab_sizes", numbers(&NGRAMS.map(|(_, n)| n))),
        ];
        for (key, value) in &mut keys {
            if let Some((_, other)) = self.keys.iter().find(|(name, _)| name == key) {
                *value = other.clone();
            }
        }
        keys.retain(|(key, _)| *key != self.without);
        keys
    }

    fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", "qwen4exp").unwrap();
        for (key, value) in self.keys() {
            writer.set(&format!("qwen4exp.{key}"), value).unwrap();
        }
        let mut tensors = tensors();
        tensors.retain(|(name, ..)| self.without.is_empty() || !name.ends_with(self.without));
        for (name, shape, _) in &tensors {
            writer.declare(name, shape, Format::F32).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, values) in &tensors {
            data.write(name, bytemuck::cast_slice(values)).unwrap();
        }
        data.finish().unwrap()
    }

    fn read(&self) -> Result<Model, thermocline::model::Error> {
        let file = File::from_vec(self.bytes(), "qwen4exp.gguf").unwrap();
        Model::from_file(file, &ModelOptions::default())
    }

    fn fails(&self, part: &str) {
        let error = self.read().map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

/// Names and shapes, rows first, of the tensors of layer `index`.
fn parts(index: usize) -> Vec<(&'static str, Vec<usize>)> {
    let (all, n_k) = (N_STREAM * N_EMBD, 2 * D_STATE);
    let mut parts = vec![
        ("hc_attn_norm.weight", vec![N_STREAM, N_EMBD]),
        ("hc_attn_down.weight", vec![RANK, all]),
        ("hc_attn_up.weight", vec![all, RANK]),
        ("hc_attn_inject.weight", vec![N_STREAM, all]),
        ("hc_ffn_norm.weight", vec![N_STREAM, N_EMBD]),
        ("hc_ffn_down.weight", vec![RANK, all]),
        ("hc_ffn_up.weight", vec![all, RANK]),
        ("hc_ffn_inject.weight", vec![N_STREAM, all]),
        ("ffn_gate_inp.weight", vec![N_EXPERT, N_EMBD]),
        ("ffn_gate_exps.weight", vec![N_EXPERT, N_FF, N_EMBD]),
        ("ffn_up_exps.weight", vec![N_EXPERT, N_FF, N_EMBD]),
        ("ffn_down_exps.weight", vec![N_EXPERT, N_EMBD, N_FF]),
        ("ffn_gate_inp_shexp.weight", vec![1, N_EMBD]),
        ("ffn_gate_shexp.weight", vec![N_FF, N_EMBD]),
        ("ffn_up_shexp.weight", vec![N_FF, N_EMBD]),
        ("ffn_down_shexp.weight", vec![N_EMBD, N_FF]),
    ];
    match LAYERS[index] {
        None => parts.extend([
            ("attn_qkv.weight", vec![2 * n_k + N_V * D_STATE, N_EMBD]),
            ("attn_gate.weight", vec![N_V * D_STATE, N_EMBD]),
            ("ssm_conv1d.weight", vec![2 * n_k + N_V * D_STATE, KERNEL]),
            ("ssm_dt.bias", vec![1, N_V]),
            ("ssm_a", vec![1, N_V]),
            ("ssm_alpha.weight", vec![N_V, N_EMBD]),
            ("ssm_beta.weight", vec![N_V, N_EMBD]),
            ("ssm_norm.weight", vec![1, D_STATE]),
            ("ssm_out.weight", vec![N_EMBD, N_V * D_STATE]),
        ]),
        Some(_) => parts.extend([
            ("attn_q.weight", vec![2 * N_HEAD * D_HEAD, N_EMBD]),
            ("attn_k.weight", vec![N_KV * D_HEAD, N_EMBD]),
            ("attn_v.weight", vec![N_KV * D_HEAD, N_EMBD]),
            ("attn_output.weight", vec![N_EMBD, N_HEAD * D_HEAD]),
            ("attn_q_norm.weight", vec![1, D_HEAD]),
            ("attn_k_norm.weight", vec![1, D_HEAD]),
            ("indexer.q_proj.weight", vec![N_INDEX * D_INDEX, N_EMBD]),
            ("indexer.k_proj.weight", vec![D_INDEX, N_EMBD]),
            ("indexer.q_norm.weight", vec![1, D_INDEX]),
            ("indexer.k_norm.weight", vec![1, D_INDEX]),
        ]),
    }
    if index == 0 {
        parts.extend([
            ("ple_key.weight", vec![all, N_EMBD]),
            ("ple_value.weight", vec![N_EMBD, N_EMBD]),
            ("ple_norm_key.weight", vec![N_STREAM, N_EMBD]),
            ("ple_norm_query.weight", vec![N_STREAM, N_EMBD]),
            ("ple_norm_conv.weight", vec![N_STREAM, N_EMBD]),
            ("ple_conv1d.weight", vec![all, PLE_KERNEL]),
        ]);
    }
    parts
}

/// Names, shapes (columns first) and values.
fn tensors() -> Vec<(String, Vec<u64>, Vec<f32>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let all = N_STREAM * N_EMBD;
    let ends = [
        ("token_embd.weight", vec![N_VOCAB, N_EMBD]),
        ("output.weight", vec![N_VOCAB, N_EMBD]),
        // The table may be longer than its parts.
        ("per_layer_token_embd.weight", vec![144, N_EMBD / NGRAMS.len()]),
        ("output_hc_norm.weight", vec![N_STREAM, N_EMBD]),
        ("output_hc_down.weight", vec![RANK, all]),
        ("output_hc_up.weight", vec![all, RANK]),
    ];
    let ends = ends.into_iter().map(|(name, shape)| (name.to_owned(), shape));
    let of_layer = |index: usize| {
        parts(index).into_iter().map(move |(part, shape)| (format!("blk.{index}.{part}"), shape))
    };
    let named = ends.chain((0..LAYERS.len()).flat_map(of_layer));
    let tensor = |(name, shape): (String, Vec<usize>)| {
        let cols = shape[shape.len() - 1];
        let (mean, size) = match name.rsplit('.').nth(1).unwrap_or("") {
            _ if name.ends_with("ssm_a") => (-1.0, 0.5),
            _ if name.contains("norm") => (1.0, 0.3),
            _ if name.contains("conv1d") => (0.0, 1.0),
            "token_embd" | "per_layer_token_embd" => (0.0, 1.0),
            _ => (0.0, 2.5 / (cols as f32).sqrt()),
        };
        let n: usize = shape.iter().product();
        let values = (0..n).map(|_| mean + size * rng.random_range(-1.0..1.0f32)).collect();
        let mut shape: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        // llama.cpp drops a last axis of length 1.
        if shape.len() == 2 && shape[1] == 1 {
            shape.pop();
        }
        (name, shape, values)
    };
    named.map(tensor).collect()
}

/// Token ids with ends of texts, and with the same tokens after different ones.
fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| if i % 17 == 11 { EOS } else { ((i * i + 3 * i) % 23) as u32 }).collect()
}

fn engine(
    model: &Arc<Model>,
    devices: Vec<Device>,
    n_ctx: usize,
    placement: Option<Placement>,
) -> Engine {
    let kv_formats = KvCache::both(Format::F32);
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

#[test]
fn logits_match_plain_loops() {
    within(LIMIT, || {
        let (model, ids) = (Tiny::default().model(), ids(90));
        let expected = expected(&ids);
        for (n_ctx, pieces) in [(96, &[40][..]), (96, &[1]), (384, &[5, 3, 7, 16])] {
            let mut engine = engine(&model, vec![cpu_device(2)], n_ctx, None);
            let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
            assert!(error < 1e-9, "{n_ctx}, {pieces:?}: {error}");
        }
        // Blocks are selected: other numbers of positions give other logits.
        let all = Tiny::with("attention.indexer.top_k", 384u32).model();
        let mut all = engine(&all, vec![cpu_device(2)], 96, None);
        assert!(nmse(&expected, &logits_of(&mut all, &ids, &[40])) > 1e-4);
    });
}

/// Every token sees its whole context if that is no longer than the selection.
#[test]
fn a_selection_of_all_positions_changes_nothing() {
    within(LIMIT, || {
        let logits = |top_k: u32, n_ctx| {
            let model = Tiny::with("attention.indexer.top_k", top_k).model();
            let mut engine = engine(&model, vec![cpu_device(2)], n_ctx, None);
            logits_of(&mut engine, &ids(60), &[1, 16, 7])
        };
        let dense = logits(96, 96);
        assert_eq!(dense, logits(60, 96));
        // The first difference is after the positions that any token may select, 15 and the token.
        let sparse = logits(TOP_K as u32, 96);
        let differs = dense.iter().zip(&sparse).position(|(a, b)| a != b);
        assert!(differs.is_some_and(|at| at >= 12), "{differs:?}");
    });
}

#[test]
fn threads_change_no_bit() {
    within(LIMIT, || {
        let model = Tiny::default().model();
        let run = |threads, pieces: &[usize]| {
            let mut engine = engine(&model, vec![cpu_device(threads)], 384, None);
            logits_of(&mut engine, &ids(200), pieces)
        };
        let expected = run(1, &[16]);
        for (threads, pieces) in [(2, &[1][..]), (3, &[7, 16, 2])] {
            assert!(expected == run(threads, pieces), "{pieces:?}");
        }
    });
}

/// Streams, selected positions and n-grams are on the device that needs them, wherever the layers are.
#[test]
fn layers_may_be_on_several_devices() {
    within(LIMIT, || {
        let (model, ids) = (Tiny::default().model(), ids(70));
        let expected = expected(&ids);
        for seed in 0..6 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let sims = (1..3)
                .map(|index| sim_device(index, Bytes::MAX, Duration::ZERO..Duration::ZERO, seed).1);
            let devices: Vec<Device> = [cpu_device(2)].into_iter().chain(sims).collect();
            let placement = random_placement(&mut rng, &model, 3);
            let mut engine = engine(&model, devices, 96, Some(placement.clone()));
            for pieces in [&[40][..], &[1, 5, 16]] {
                let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
                assert!(error < 1e-8, "{pieces:?}: {error} by {placement:?}");
            }
        }
    });
}

/// The device runs all layers, with and without a selection.
fn check_on(backend: &Arc<dyn hal::Backend>) {
    let ids = ids(60);
    let placed = |top_k: u32| {
        let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
        let model = Tiny::with("attention.indexer.top_k", top_k).model();
        let mut on_cpu = engine(&model, vec![cpu_device(2)], 64, None);
        let expected = logits_of(&mut on_cpu, &ids, &[40]);
        let mut engine = engine(&model, vec![cpu_device(2), device], 64, None);
        for pieces in [&[40][..], &[7, 1]] {
            let error = nmse(&expected, &logits_of(&mut engine, &ids, pieces));
            assert!(error < 1e-6, "{pieces:?}: {error}");
        }
        engine.placement().layers.iter().map(|layer| layer.home).collect::<Vec<_>>()
    };
    assert_eq!(placed(64), [1; LAYERS.len()]);
    assert_eq!(placed(TOP_K as u32), [1; LAYERS.len()]);
}

#[test]
fn layers_run_on_a_graphics_device() {
    on_graphics(check_on);
}

#[test]
fn layers_run_on_a_fake_of_cuda() {
    on_cuda(check_on);
}

#[test]
fn the_states_of_ngrams_and_keys_are_in_the_budget() {
    let model = Tiny::default().model();
    let states: Vec<Bytes> = model.layers.iter().map(state_bytes).collect();
    let delta = N_V * D_STATE * D_STATE + 3 * (4 * D_STATE + N_V * D_STATE);
    let ngrams = 3 * N_NGRAM * N_STREAM * N_EMBD;
    let expected = [delta + ngrams, 3 * D_INDEX, 2 * D_INDEX, 0, 0].map(|n| Bytes(4 * n as u64));
    assert_eq!(states, expected);
}

#[test]
fn hostile_keys_of_streams_and_ngrams_are_refused() {
    let reject = |key, value: GgufValue, part: &str| Tiny::with(key, value).fails(part);
    reject("hyper_connection.count", 1u32.into(), "at least 2 residual streams");
    reject("hyper_connection.count", 0u32.into(), "hyper_connection.count");
    reject("hyper_connection.count", 4u32.into(), "blk.0.hc_attn_norm");
    reject("hyper_connection.count", (1u32 << 24).into(), "hc_");
    reject("hyper_connection.low_rank", 0u32.into(), "hyper_connection.low_rank");
    reject("hyper_connection.low_rank", 5u32.into(), "_down.weight");
    reject("ple.layers", counts(&[5]), "a layer below 5");
    reject("ple.layers", counts(&[0, 2]), "expected one layer");
    reject("ple.layers", counts(&[1]), "blk.1.ple_");
    for size in [1u32, 9, u32::MAX] {
        reject("ple.ngram_size", size.into(), "ple.ngram_size");
    }
    reject("ple.ngram_size", 4u32.into(), "embedding_length_per_layer_input");
    reject("ple.heads_per_ngram", 33u32.into(), "at most 32");
    reject("ple.heads_per_ngram", (1u32 << 24).into(), "at most 32");
    reject("ple.conv_kernel", 1u32.into(), "at least 2");
    reject("ple.conv_kernel", 5u32.into(), "ple_conv1d");
    reject("embedding_length_per_layer_input", 16u32.into(), "expected 8, for 4 rows");
    let numbers = |list: &[u64]| GgufValue::from(Array::U64(list.to_vec()));
    reject("ple.layer_multipliers", numbers(&[1, 3]), "3 or more numbers");
    reject("ple.head_offsets", numbers(&[0, 41, 80]), "4 or more numbers");
    reject("ple.head_offsets", numbers(&[0, 41, 80, 128]), "parts of the table's 144 rows");
    reject("ple.head_offsets", numbers(&[0, 41, 80, u64::MAX]), "parts of the table's 144 rows");
    reject("ple.head_vocab_sizes", numbers(&[41, 0, 43, 17]), "at least 1");
    for missing in ["ple.eos_token_id", "ple.head_offsets", "ple.layer_multipliers"] {
        Tiny::without(missing).fails(missing);
    }
    for tensor in [
        "output_hc_up.weight",
        "blk.3.hc_ffn_inject.weight",
        "blk.0.ple_norm_conv.weight",
        "per_layer_token_embd.weight",
    ] {
        Tiny::without(tensor).fails(tensor);
    }
    // Without the keys, the tensors are unknown.
    Tiny::without("ple.layers").fails("per_layer_token_embd");
}

#[test]
fn hostile_keys_of_the_indexer_are_refused() {
    let reject = |key, value: GgufValue, part: &str| Tiny::with(key, value).fails(part);
    reject("attention.compress_ratios", counts(&[0, 65, 3, 0, 1]), "0 to 64 for each layer");
    reject("attention.compress_ratios", counts(&[0, 4, 3, 0]), "each of the 5 layers");
    reject("attention.indexer.top_k", 3u32.into(), "at least a block of 4");
    reject("attention.indexer.top_k", u32::MAX.into(), "attention.indexer.top_k");
    reject("attention.indexer.key_length", 7u32.into(), "at least the 8 values");
    reject("attention.indexer.head_count", 4u32.into(), "indexer.q_proj.weight");
    for tensor in ["blk.1.indexer.q_norm.weight", "blk.2.indexer.k_proj.weight"] {
        Tiny::without(tensor).fails(tensor);
    }
}
