//! Sparse attention (DSA): a token attends to the positions that an indexer selects, whose keys are in
//! the KV cache too.

use hal::DeviceId;
use rand::RngExt;
use thermocline::engine::index_format;
use thermocline::gguf::{Array, Writer};
use thermocline::placement::LayerPlacement;

use super::layers::nmse;
use super::on_devices::{on_cuda, on_graphics};
use super::*;

const N_EMBD: usize = 64;
const N_FF: usize = 96;
const N_HEAD: usize = 3;
const N_LAYER: usize = 4;
const N_VOCAB: usize = 80;
const D_NOPE: usize = 32;
const N_ROT: usize = 32;
const D_LATENT: usize = 64;
const D_VALUE: usize = 32;
/// Rank of the queries.
const RANK: usize = 48;
/// Heads of the indexer, and their size.
const N_INDEX: usize = 4;
const D_INDEX: usize = 40;
/// Of the other models of this test.
const TOP_K: u32 = 12;

/// A model with random weights.
#[derive(Clone)]
pub(crate) struct Tiny {
    arch: &'static str,
    /// Keys that replace the usual ones.
    keys: Vec<(&'static str, u32)>,
    /// Whether each layer has an indexer; only in GLM's family.
    indexers: [u32; N_LAYER],
    /// Tensor that the file lacks.
    without: &'static str,
}

pub(crate) fn tiny(arch: &'static str) -> Tiny {
    let indexers = if arch == "glm-dsa" { [1, 0, 1, 0] } else { [1; N_LAYER] };
    Tiny { arch, keys: Vec::new(), indexers, without: "" }
}

/// A model of each family, of a text whose tokens see more positions than they attend to.
pub(crate) fn models() -> impl Iterator<Item = (String, Arc<Model>)> {
    ["deepseek32", "glm-dsa"].into_iter().map(|arch| (arch.to_owned(), tiny(arch).model()))
}

impl Tiny {
    fn with(mut self, key: &'static str, value: u32) -> Tiny {
        self.keys.push((key, value));
        self
    }

    pub(crate) fn model(&self) -> Arc<Model> {
        Arc::new(self.read().unwrap())
    }

    fn read(&self) -> Result<Model, thermocline::model::Error> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", self.arch).unwrap();
        // The last layer predicts further tokens.
        let usual = [
            ("block_count", N_LAYER as u32 + 1),
            ("nextn_predict_layers", 1),
            ("embedding_length", N_EMBD as u32),
            ("feed_forward_length", N_FF as u32),
            ("attention.head_count", N_HEAD as u32),
            ("attention.head_count_kv", N_HEAD as u32),
            ("attention.q_lora_rank", RANK as u32),
            ("attention.kv_lora_rank", D_LATENT as u32),
            ("attention.key_length", (D_NOPE + N_ROT) as u32),
            ("attention.value_length", D_VALUE as u32),
            ("attention.indexer.head_count", N_INDEX as u32),
            ("attention.indexer.key_length", D_INDEX as u32),
            ("attention.indexer.top_k", TOP_K),
            ("rope.dimension_count", N_ROT as u32),
            ("context_length", 512),
        ];
        for (key, value) in usual {
            let other = self.keys.iter().find(|(name, _)| *name == key);
            let value = other.map_or(value, |(_, value)| *value);
            writer.set(&format!("{}.{key}", self.arch), value).unwrap();
        }
        writer.set(&format!("{}.attention.layer_norm_rms_epsilon", self.arch), 1e-5f32).unwrap();
        if self.indexers != [1; N_LAYER] {
            let key = format!("{}.attention.indexer.types", self.arch);
            writer.set(&key, Array::U32(self.indexers.to_vec())).unwrap();
        }
        let mut tensors = self.tensors();
        tensors.retain(|(name, ..)| self.without.is_empty() || !name.ends_with(self.without));
        for (name, shape, _) in &tensors {
            writer.declare(name, shape, Format::F32).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, values) in &tensors {
            data.write(name, bytemuck::cast_slice(values)).unwrap();
        }
        let file = File::from_vec(data.finish().unwrap(), "sparse.gguf").unwrap();
        Model::from_file(file, &ModelOptions::default())
    }

    /// Names, shapes (columns first) and values. All layers have the indexer's tensors, as some files
    /// do.
    fn tensors(&self) -> Vec<(String, Vec<u64>, Vec<f32>)> {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut all = Vec::new();
        let mut add = |name: String, rows: usize, cols: usize| {
            let (mean, size) = match rows {
                1 if name.ends_with("bias") => (0.0, 0.2),
                1 => (1.0, 0.2),
                _ => (0.0, 2.5 / (cols as f32).sqrt()),
            };
            let values: Vec<f32> =
                (0..rows * cols).map(|_| mean + size * rng.random_range(-1.0..1.0)).collect();
            let shape = if rows == 1 { vec![cols as u64] } else { vec![cols as u64, rows as u64] };
            all.push((name, shape, values));
        };
        add("token_embd.weight".to_owned(), N_VOCAB, N_EMBD);
        add("output_norm.weight".to_owned(), 1, N_EMBD);
        add(format!("blk.{N_LAYER}.nextn.enorm.weight"), 1, N_EMBD);
        for i in 0..N_LAYER {
            for (part, rows, cols) in [
                ("attn_norm.weight", 1, N_EMBD),
                ("attn_q_a.weight", RANK, N_EMBD),
                ("attn_q_a_norm.weight", 1, RANK),
                ("attn_q_b.weight", N_HEAD * (D_NOPE + N_ROT), RANK),
                ("attn_kv_a_mqa.weight", D_LATENT + N_ROT, N_EMBD),
                ("attn_kv_a_norm.weight", 1, D_LATENT),
                ("attn_kv_b.weight", N_HEAD * (D_NOPE + D_VALUE), D_LATENT),
                ("attn_output.weight", N_EMBD, N_HEAD * D_VALUE),
                ("indexer.attn_q_b.weight", N_INDEX * D_INDEX, RANK),
                ("indexer.attn_k.weight", D_INDEX, N_EMBD),
                ("indexer.k_norm.weight", 1, D_INDEX),
                ("indexer.k_norm.bias", 1, D_INDEX),
                ("indexer.proj.weight", N_INDEX, N_EMBD),
                ("ffn_norm.weight", 1, N_EMBD),
                ("ffn_gate.weight", N_FF, N_EMBD),
                ("ffn_up.weight", N_FF, N_EMBD),
                ("ffn_down.weight", N_EMBD, N_FF),
            ] {
                add(format!("blk.{i}.{part}"), rows, cols);
            }
        }
        all
    }
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 5 * i) % N_VOCAB) as u32).collect()
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

fn logits_with(arch: &'static str, top_k: u32, n: usize, pieces: &[usize]) -> Logits {
    let model = tiny(arch).with("attention.indexer.top_k", top_k).model();
    let mut engine = engine(&model, vec![cpu_device(2)], (384, Format::F16), None);
    logits_of(&mut engine, &ids(n), pieces)
}

/// Where every token selects all positions, the logits have the bits of attention without a selection.
#[test]
fn a_selection_of_all_positions_changes_nothing() {
    within(LIMIT, || {
        for arch in ["deepseek32", "glm-dsa"] {
            // The context has 384 positions, the text 90.
            let dense = logits_with(arch, 384, 90, &[1, 16, 7]);
            assert_eq!(dense, logits_with(arch, 383, 90, &[1, 16, 7]), "{arch}");
            let sparse = logits_with(arch, TOP_K, 90, &[1, 16, 7]);
            let differs = dense.iter().zip(&sparse).position(|(a, b)| a != b);
            assert_eq!(differs, Some(TOP_K as usize), "{arch}");
            assert!(nmse(&dense, &sparse) > 1e-3, "{arch}");
        }
    });
}

#[test]
fn cuts_and_threads_change_no_bit() {
    within(LIMIT, || {
        for (arch, model) in models() {
            let run = |threads, pieces: &[usize]| {
                let devices = vec![cpu_device(threads)];
                let mut engine = engine(&model, devices, (384, Format::F16), None);
                logits_of(&mut engine, &ids(300), pieces)
            };
            let expected = run(1, &[16]);
            for (threads, pieces) in [(2, &[1][..]), (3, &[7, 16, 2])] {
                assert!(expected == run(threads, pieces), "{arch}, {pieces:?}");
            }
            // Longer steps compute products in another order.
            let error = nmse(&expected, &run(2, &[40]));
            assert!(error < 1e-3, "{arch}: {error}");
        }
    });
}

/// Layers without an indexer use the positions of an earlier layer and have no keys in the cache.
#[test]
fn layers_share_selected_positions() {
    within(LIMIT, || {
        let logits = |indexers| {
            let model = Tiny { indexers, ..tiny("glm-dsa") }.model();
            let mut engine = engine(&model, vec![cpu_device(1)], (384, Format::F32), None);
            let interrupt = std::sync::atomic::AtomicBool::new(false);
            let mut saved = |n: usize| {
                let mut sequence = engine.new_sequence();
                let want = thermocline::engine::LogitsRequest::Last;
                engine.feed(&mut sequence, &ids(n), want, &interrupt, &mut |_, _| {}).unwrap();
                engine.save(&sequence).unwrap().len()
            };
            let n_indexers = indexers.iter().sum::<u32>() as usize;
            let row = 4 * (N_LAYER * (D_LATENT + N_ROT) + n_indexers * D_INDEX);
            assert_eq!(saved(13) - saved(3), 10 * (4 + row), "{indexers:?}");
            logits_of(&mut engine, &ids(60), &[20])
        };
        let all = logits([1, 1, 1, 1]);
        let some = logits([1, 0, 1, 0]);
        let one = logits([1, 0, 0, 0]);
        assert!(nmse(&all, &some) > 1e-4 && nmse(&some, &one) > 1e-4);
    });
}

#[test]
fn keys_of_the_indexer_are_not_quantised() {
    for (kv, expected) in
        [(Format::Q8_0, Format::F16), (Format::IQ4_NL, Format::F16), (Format::BF16, Format::BF16)]
    {
        assert_eq!(index_format(kv), expected);
    }
    within(LIMIT, || {
        let model = tiny("deepseek32").model();
        let run = |kv| {
            let mut engine = engine(&model, vec![cpu_device(2)], (384, kv), None);
            logits_of(&mut engine, &ids(90), &[16])
        };
        assert!(nmse(&run(Format::F32), &run(Format::Q8_0)) < 0.3);
    });
}

/// Layers that share positions may be on several devices.
#[test]
fn selected_positions_move_between_devices() {
    within(LIMIT, || {
        for (arch, model) in models() {
            let kv = (384, Format::F32);
            let expected =
                logits_of(&mut engine(&model, vec![cpu_device(2)], kv, None), &ids(70), &[16]);
            for homes in [[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 0, 1]] {
                let (_, sim) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
                let mut placement = Placement::all_on(0, N_LAYER);
                for (layer, home) in homes.into_iter().enumerate() {
                    placement.layers[layer] = LayerPlacement::whole(home);
                }
                let devices = vec![cpu_device(2), sim];
                let mut engine = engine(&model, devices, kv, Some(placement));
                for pieces in [&[16][..], &[1, 5]] {
                    let error = nmse(&expected, &logits_of(&mut engine, &ids(70), pieces));
                    assert!(error < 1e-6, "{arch}, {homes:?}: {error}");
                }
            }
        }
    });
}

/// A device with all layers computes the logits of the CPU, with and without a selection.
fn check_on(backend: &Arc<dyn hal::Backend>) {
    for (arch, model) in models() {
        for n_ctx in [TOP_K as usize, 384] {
            let ids = &ids(60)[..n_ctx.min(60)];
            let logits = |devices, placement, pieces: &[usize]| {
                let mut engine = engine(&model, devices, (n_ctx, Format::F16), placement);
                logits_of(&mut engine, ids, pieces)
            };
            let expected = logits(vec![cpu_device(2)], None, &[16]);
            for pieces in [&[16][..], &[1, 5]] {
                let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
                let placement = Some(Placement::all_on(1, N_LAYER));
                let got = logits(vec![cpu_device(2), device], placement, pieces);
                let error = nmse(&expected, &got);
                assert!(error < 1e-5, "{arch}, {n_ctx}, {pieces:?}: {error}");
            }
        }
    }
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
fn files_that_do_not_fit_are_refused() {
    let refused = |tiny: Tiny, part: &str| {
        let error = tiny.read().map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    for arch in ["deepseek32", "glm-dsa"] {
        let key = |key, value, part| refused(tiny(arch).with(key, value), part);
        key("attention.indexer.top_k", 0, "attention.indexer.top_k");
        key("attention.indexer.top_k", u32::MAX, "attention.indexer.top_k");
        key("attention.indexer.head_count", 0, "attention.indexer.head_count");
        key("attention.indexer.head_count", 3, "indexer.attn_q_b.weight");
        key("attention.indexer.head_count", 1 << 24, "indexer.attn_q_b.weight");
        key("attention.indexer.head_count", u32::MAX, "attention.indexer.head_count");
        key("attention.indexer.key_length", 0, "attention.indexer.key_length");
        key("attention.indexer.key_length", 31, "at least the 32 values");
        key("attention.indexer.key_length", 48, "indexer.attn_q_b.weight");
        for tensor in
            ["indexer.attn_q_b.weight", "indexer.attn_k.weight", "k_norm.weight", "proj.weight"]
        {
            refused(Tiny { without: tensor, ..tiny(arch) }, tensor);
        }
        refused(Tiny { without: "attn_q_a.weight", ..tiny(arch) }, "attn_q");
    }
    refused(Tiny { indexers: [0, 1, 1, 1], ..tiny("glm-dsa") }, "an indexer in the first layer");
}

/// Files of GLM-5.2 do not say which layers have an indexer; their context is longer than a million.
#[test]
fn long_contexts_of_glm_share_positions_in_a_fixed_pattern() {
    let tiny = Tiny { indexers: [1; N_LAYER], ..tiny("glm-dsa") };
    let n = |tiny: Tiny| {
        let model = tiny.model();
        let of = |layer: &thermocline::model::LayerWeights| {
            layer.attention().is_some_and(|by| by.indexer().is_some())
        };
        model.layers.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(n(tiny.clone()), [true; N_LAYER]);
    assert_eq!(n(tiny.with("context_length", 1 << 20)), [true, true, true, false]);
}
