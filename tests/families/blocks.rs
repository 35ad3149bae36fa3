//! GLM-5.3-Flash: attention to whole blocks of positions, whose keys are means of their positions' keys,
//! beside recurrent layers; all blocks read and write several residual streams.

use hal::DeviceId;
use rand::RngExt;
use thermocline::gguf::{Array, Value as GgufValue, Writer};
use thermocline::model::Mixer;
use thermocline::placement::LayerPlacement;

use super::layers::nmse;
use super::on_devices::{on_cuda, on_graphics};
use super::*;

const NAME: &str = "glm5-next";
const N_EMBD: usize = 64;
const N_FF: usize = 64;
const N_EXPERT: usize = 4;
const N_EXPERT_FF: usize = 32;
const N_HEAD: usize = 2;
const N_LAYER: usize = 4;
const N_VOCAB: usize = 80;
/// Head size and kernel size of Kimi Delta Attention.
const D_DELTA: usize = 8;
const KERNEL: usize = 4;
const D_HEAD: usize = 24;
const D_VALUE: usize = 16;
const D_LATENT: usize = 32;
/// Rank of the queries.
const RANK: usize = 24;
/// Heads of the indexer, their size, and positions of a block.
const N_INDEX: usize = 4;
const D_INDEX: usize = 40;
const POOL: u32 = 4;
const TOP_K: u32 = 12;
const N_STREAMS: usize = 4;
/// Which layers have attention; the last one predicts further tokens.
const ATTENTION: [u32; N_LAYER + 1] = [0, 1, 0, 1, 1];

/// A model with random weights.
#[derive(Clone, Default)]
struct Glm {
    /// Keys that replace the usual ones, without the family's name.
    keys: Vec<(&'static str, Option<GgufValue>)>,
    /// Tensor that the file lacks.
    without: &'static str,
}

/// A model of a text whose tokens see more positions than they attend to.
pub(crate) fn models() -> impl Iterator<Item = (String, Arc<Model>)> {
    [(NAME.to_owned(), Glm::default().model())].into_iter()
}

impl Glm {
    fn with(mut self, key: &'static str, value: impl Into<GgufValue>) -> Glm {
        self.keys.push((key, Some(value.into())));
        self
    }

    fn lacking(mut self, key: &'static str) -> Glm {
        self.keys.push((key, None));
        self
    }

    fn model(&self) -> Arc<Model> {
        Arc::new(self.read().unwrap())
    }

    fn usual_keys() -> Vec<(&'static str, GgufValue)> {
        let numbers = [
            ("block_count", N_LAYER + 1),
            ("nextn_predict_layers", 1),
            ("embedding_length", N_EMBD),
            ("feed_forward_length", N_FF),
            ("expert_count", N_EXPERT),
            ("expert_used_count", 2),
            ("expert_feed_forward_length", N_EXPERT_FF),
            ("expert_shared_count", 1),
            ("leading_dense_block_count", 1),
            ("attention.head_count", N_HEAD),
            ("attention.q_lora_rank", RANK),
            ("attention.kv_lora_rank", D_LATENT),
            ("attention.key_length", D_LATENT),
            ("attention.value_length", D_LATENT),
            ("attention.key_length_mla", D_HEAD),
            ("attention.value_length_mla", D_VALUE),
            ("attention.indexer.head_count", N_INDEX),
            ("attention.indexer.key_length", D_INDEX),
            ("attention.indexer.top_k", TOP_K as usize),
            ("attention.indexer.kpool", POOL as usize),
            ("rope.dimension_count", 0),
            ("ssm.conv_kernel", KERNEL),
            ("kda.head_dim", D_DELTA),
            ("hyper_connection.count", N_STREAMS),
            ("hyper_connection.sinkhorn_iterations", 3),
            ("context_length", 512),
        ];
        let mut all: Vec<(&str, GgufValue)> =
            numbers.into_iter().map(|(key, value)| (key, (value as u32).into())).collect();
        all.extend([
            ("attention.layer_norm_rms_epsilon", 1e-5f32.into()),
            ("attention.layer_norm_epsilon", 1e-6f32.into()),
            ("hyper_connection.epsilon", 1e-6f32.into()),
            ("kda.gate_lower_bound", (-5.0f32).into()),
            ("expert_weights_scale", 1.5f32.into()),
            ("expert_weights_norm", true.into()),
            ("attention.indexer.kpool_select_tail", true.into()),
            ("attention.head_count_kv", Array::U32(ATTENTION.to_vec()).into()),
            ("attention.indexer.types", Array::Bool(vec![false, true, false, false]).into()),
            ("swiglu_clamp_exp", Array::F32(vec![1.0; N_LAYER + 1]).into()),
        ]);
        all
    }

    fn read(&self) -> Result<Model, thermocline::model::Error> {
        let mut writer = Writer::new(Container::Gguf);
        writer.set("general.architecture", NAME).unwrap();
        for (key, value) in Self::usual_keys() {
            let other = self.keys.iter().find(|(name, _)| *name == key);
            let value = other.map_or(Some(value), |(_, value)| value.clone());
            if let Some(value) = value {
                writer.set(&format!("{NAME}.{key}"), value).unwrap();
            }
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
        let file = File::from_vec(data.finish().unwrap(), "blocks.gguf").unwrap();
        Model::from_file(file, &ModelOptions::default())
    }
}

/// Names and shapes of a layer's tensors: stacked matrices, rows, columns.
fn parts(layer: usize) -> Vec<(&'static str, [usize; 3])> {
    let (n, n_mix) = (N_HEAD * D_DELTA, N_STREAMS * (N_STREAMS + 2));
    let mut all = vec![
        ("attn_norm.weight", [1, 1, N_EMBD]),
        ("ffn_norm.weight", [1, 1, N_EMBD]),
        ("hc_attn_fn.weight", [1, n_mix, N_STREAMS * N_EMBD]),
        ("hc_attn_base.weight", [1, 1, n_mix]),
        ("hc_attn_scale.weight", [1, 1, 3]),
        ("hc_ffn_fn.weight", [1, n_mix, N_STREAMS * N_EMBD]),
        ("hc_ffn_base.weight", [1, 1, n_mix]),
        ("hc_ffn_scale.weight", [1, 1, 3]),
    ];
    if ATTENTION[layer] == 0 {
        all.extend([
            ("attn_q.weight", [1, n, N_EMBD]),
            ("attn_k.weight", [1, n, N_EMBD]),
            ("attn_v.weight", [1, n, N_EMBD]),
            ("ssm_conv1d_q.weight", [n, 1, KERNEL]),
            ("ssm_conv1d_k.weight", [n, 1, KERNEL]),
            ("ssm_conv1d_v.weight", [n, 1, KERNEL]),
            ("ssm_f_a.weight", [1, D_DELTA, N_EMBD]),
            ("ssm_f_b.weight", [1, n, D_DELTA]),
            ("ssm_g_a.weight", [1, D_DELTA, N_EMBD]),
            ("ssm_g_b.weight", [1, n, D_DELTA]),
            ("ssm_beta.weight", [1, N_HEAD, N_EMBD]),
            ("ssm_a", [1, 1, N_HEAD]),
            ("ssm_dt.bias", [1, 1, n]),
            ("ssm_norm.weight", [1, 1, D_DELTA]),
            ("attn_output.weight", [1, N_EMBD, n]),
        ]);
    } else {
        all.extend([
            ("attn_q_a.weight", [1, RANK, N_EMBD]),
            ("attn_q_a_norm.weight", [1, 1, RANK]),
            ("attn_q_b.weight", [1, N_HEAD * D_HEAD, RANK]),
            ("attn_kv_a_mqa.weight", [1, D_LATENT, N_EMBD]),
            ("attn_kv_a_norm.weight", [1, 1, D_LATENT]),
            ("attn_k_b.weight", [N_HEAD, D_LATENT, D_HEAD]),
            ("attn_v_b.weight", [N_HEAD, D_VALUE, D_LATENT]),
            ("attn_output.weight", [1, N_EMBD, N_HEAD * D_VALUE]),
            ("indexer.attn_q_b.weight", [1, N_INDEX * D_INDEX, RANK]),
            ("indexer.attn_k.weight", [1, D_INDEX, N_EMBD]),
            ("indexer.k_norm.weight", [1, 1, D_INDEX]),
            ("indexer.k_norm.bias", [1, 1, D_INDEX]),
            ("indexer.proj.weight", [1, N_INDEX, N_EMBD]),
            ("indexer_compressor_gate.weight", [1, D_INDEX, N_EMBD]),
            ("indexer_compressor_ape.weight", [1, POOL as usize, D_INDEX]),
        ]);
    }
    if layer == 0 {
        all.extend([
            ("ffn_gate.weight", [1, N_FF, N_EMBD]),
            ("ffn_up.weight", [1, N_FF, N_EMBD]),
            ("ffn_down.weight", [1, N_EMBD, N_FF]),
        ]);
    } else {
        all.extend([
            ("ffn_gate_inp.weight", [1, N_EXPERT, N_EMBD]),
            ("exp_probs_b.bias", [1, 1, N_EXPERT]),
            ("ffn_gate_exps.weight", [N_EXPERT, N_EXPERT_FF, N_EMBD]),
            ("ffn_up_exps.weight", [N_EXPERT, N_EXPERT_FF, N_EMBD]),
            ("ffn_down_exps.weight", [N_EXPERT, N_EMBD, N_EXPERT_FF]),
            ("ffn_gate_shexp.weight", [1, N_EXPERT_FF, N_EMBD]),
            ("ffn_up_shexp.weight", [1, N_EXPERT_FF, N_EMBD]),
            ("ffn_down_shexp.weight", [1, N_EMBD, N_EXPERT_FF]),
        ]);
    }
    all
}

/// Names, shapes (columns first) and values.
fn tensors() -> Vec<(String, Vec<u64>, Vec<f32>)> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut all = Vec::new();
    let mut add = |name: String, [n, rows, cols]: [usize; 3]| {
        let (mean, size) = match rows * n {
            1 if name.ends_with("ssm_a") => (-0.6, 0.3),
            1 if name.ends_with("bias") || name.contains("base") => (0.0, 0.5),
            1 => (1.0, 0.2),
            _ => (0.0, 2.5 / (cols as f32).sqrt()),
        };
        let values: Vec<f32> =
            (0..n * rows * cols).map(|_| mean + size * rng.random_range(-1.0..1.0)).collect();
        let shape = match [n, rows] {
            [1, 1] => vec![cols as u64],
            [1, rows] => vec![cols as u64, rows as u64],
            [n, rows] => vec![cols as u64, rows as u64, n as u64],
        };
        all.push((name, shape, values));
    };
    add("token_embd.weight".to_owned(), [1, N_VOCAB, N_EMBD]);
    add("output.weight".to_owned(), [1, N_VOCAB, N_EMBD]);
    add("output_norm.weight".to_owned(), [1, 1, N_EMBD]);
    add(format!("blk.{N_LAYER}.nextn.enorm.weight"), [1, 1, N_EMBD]);
    for layer in 0..N_LAYER {
        for (part, shape) in parts(layer) {
            add(format!("blk.{layer}.{part}"), shape);
        }
    }
    all
}

fn ids(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * i + 5 * i) % N_VOCAB) as u32).collect()
}

fn engine(
    model: &Arc<Model>,
    devices: Vec<Device>,
    kv: Format,
    placement: Option<Placement>,
) -> Engine {
    let kv_formats = KvCache::both(kv);
    let options =
        EngineOptions { n_ctx: 384, n_ubatch: 40, kv_formats, ..EngineOptions::default() };
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

fn logits_with(glm: &Glm, n: usize, pieces: &[usize]) -> Logits {
    let mut engine = engine(&glm.model(), vec![cpu_device(2)], Format::F16, None);
    logits_of(&mut engine, &ids(n), pieces)
}

/// A token attends to all positions until it sees one block more than it selects.
#[test]
fn tokens_attend_to_the_selected_blocks_and_the_incomplete_one() {
    within(LIMIT, || {
        let sparse = |top_k: u32| {
            logits_with(&Glm::default().with("attention.indexer.top_k", top_k), 90, &[1, 16, 7])
        };
        let dense = sparse(384);
        assert_eq!(dense, sparse(380));
        for top_k in [4, 12, 40] {
            let logits = sparse(top_k);
            let differs = dense.iter().zip(&logits).position(|(a, b)| a != b);
            assert_eq!(differs, Some((top_k + POOL - 1) as usize), "{top_k}");
            assert!(nmse(&dense, &logits) > 1e-3, "{top_k}");
        }
    });
}

#[test]
fn cuts_and_threads_change_no_bit() {
    within(LIMIT, || {
        let model = Glm::default().model();
        for kv in [Format::F16, Format::Q8_0] {
            let run = |threads, pieces: &[usize]| {
                let mut engine = engine(&model, vec![cpu_device(threads)], kv, None);
                logits_of(&mut engine, &ids(200), pieces)
            };
            let expected = run(1, &[16]);
            for (threads, pieces) in [(2, &[1][..]), (3, &[7, 16, 2])] {
                assert!(expected == run(threads, pieces), "{kv}, {pieces:?}");
            }
        }
    });
}

/// The simulated device computes with the oracle. The streams and the selected positions move between
/// devices.
#[test]
fn layers_may_be_on_several_devices() {
    within(LIMIT, || {
        let model = Glm::default().model();
        let run = |devices, placement, pieces: &[usize]| {
            logits_of(&mut engine(&model, devices, Format::F32, placement), &ids(70), pieces)
        };
        let expected = run(vec![cpu_device(2)], None, &[16]);
        for homes in [[1, 1, 1, 1], [0, 1, 0, 1], [1, 0, 1, 0], [0, 0, 1, 1]] {
            let mut placement = Placement::all_on(0, N_LAYER);
            for (layer, home) in homes.into_iter().enumerate() {
                placement.layers[layer] = LayerPlacement::whole(home);
            }
            for pieces in [&[16][..], &[1, 5]] {
                let (_, sim) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1);
                let got = run(vec![cpu_device(2), sim], Some(placement.clone()), pieces);
                let error = nmse(&expected, &got);
                assert!(error < 1e-6, "{homes:?}: {error}");
            }
        }
    });
}

/// A device with all layers computes the logits of the CPU.
fn check_on(backend: &Arc<dyn hal::Backend>) {
    let model = Glm::default().model();
    let run = |devices, placement, pieces: &[usize]| {
        logits_of(&mut engine(&model, devices, Format::F16, placement), &ids(60), pieces)
    };
    let expected = run(vec![cpu_device(2)], None, &[16]);
    for pieces in [&[16][..], &[1, 5]] {
        let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
        let placement = Some(Placement::all_on(1, N_LAYER));
        let error = nmse(&expected, &run(vec![cpu_device(2), device], placement, pieces));
        assert!(error < 1e-5, "{pieces:?}: {error}");
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

/// A block's key is a mean, so that gates matter; a stream's share is not that of another.
#[test]
fn every_part_changes_the_logits() {
    within(LIMIT, || {
        let usual = logits_with(&Glm::default(), 60, &[16]);
        let changes = [
            Glm::default().with("hyper_connection.sinkhorn_iterations", 1u32),
            Glm::default().with("hyper_connection.epsilon", 0.05f32),
            Glm::default().lacking("kda.gate_lower_bound"),
            Glm::default().lacking("swiglu_clamp_exp"),
            Glm::default().with("attention.layer_norm_epsilon", 0.5f32),
            Glm::default().lacking("attention.indexer.types"),
        ];
        for (i, changed) in changes.iter().enumerate() {
            assert!(nmse(&usual, &logits_with(changed, 60, &[16])) > 1e-6, "change {i}");
        }
    });
}

#[test]
fn files_that_do_not_fit_are_refused() {
    let refused = |glm: Glm, part: &str| {
        let error = glm.read().map(drop).unwrap_err().to_string();
        assert!(error.contains(part), "{error}, expected {part}");
    };
    let key = |key, value: u32, part| refused(Glm::default().with(key, value), part);
    for count in ["attention.indexer.kpool", "hyper_connection.count", "kda.head_dim"] {
        for value in [0, u32::MAX] {
            key(count, value, count);
        }
        refused(Glm::default().lacking(count), count);
    }
    key("attention.indexer.kpool", 1, "2 to 1024");
    key("attention.indexer.kpool", 3, "indexer_compressor_ape");
    key("attention.indexer.kpool", 1 << 20, "2 to 1024");
    key("attention.indexer.top_k", 10, "a multiple of the 4 positions of a block");
    key("hyper_connection.count", 3, "hc_attn_fn");
    key("hyper_connection.count", 9, "1 to 8");
    key("hyper_connection.sinkhorn_iterations", 0, "sinkhorn_iterations");
    key("hyper_connection.sinkhorn_iterations", u32::MAX, "sinkhorn_iterations");
    refused(Glm::default().lacking("hyper_connection.sinkhorn_iterations"), "sinkhorn_iterations");
    for eps in [-1.0, 1.0, f32::NAN, f32::INFINITY] {
        refused(Glm::default().with("hyper_connection.epsilon", eps), "at least 0 and below 1");
        refused(Glm::default().with("attention.layer_norm_epsilon", eps), "at least 0 and below 1");
        let bound = Glm::default().with("kda.gate_lower_bound", eps.abs());
        refused(bound, "a negative number");
    }
    refused(Glm::default().lacking("hyper_connection.epsilon"), "hyper_connection.epsilon");
    key("rope.dimension_count", 8, "has no RoPE");
    let tail = Glm::default().with("attention.indexer.kpool_select_tail", false);
    refused(tail, "the first tokens attend to no position");
    let types = |list: [bool; N_LAYER]| {
        Glm::default().with("attention.indexer.types", Array::Bool(list.to_vec()))
    };
    refused(types([true, false, true, true]), "an indexer in the first layer with attention");
    let short = Array::Bool(vec![true; 2]);
    refused(Glm::default().with("attention.indexer.types", short), "attention.indexer.types");
    for tensor in [
        "hc_attn_fn.weight",
        "hc_attn_base.weight",
        "hc_ffn_scale.weight",
        "indexer_compressor_gate.weight",
        "indexer_compressor_ape.weight",
        "indexer.k_norm.weight",
        "ssm_f_b.weight",
    ] {
        refused(Glm { without: tensor, ..Glm::default() }, tensor);
    }
}

#[test]
fn layers_are_those_that_the_file_states() {
    let model = Glm::default().model();
    for (layer, attention) in model.layers.iter().zip(ATTENTION) {
        let is_recurrent = matches!(layer.frame.mixer, Mixer::GatedDelta(_));
        assert_eq!(is_recurrent, attention == 0);
    }
    let indexers = model
        .layers
        .iter()
        .map(|layer| layer.attention().is_some_and(|attention| attention.indexer().is_some()));
    assert_eq!(indexers.collect::<Vec<_>>(), [false, true, false, false]);
    let all = Glm::default().lacking("attention.indexer.types").model();
    assert!(all.layers[3].attention().unwrap().indexer().is_some());
}
