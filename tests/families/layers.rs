//! Layers of all types: recurrent families on every type of device, and layers of different sizes.

use hal::{Backend, DeviceId};
use thermocline::engine::state_bytes;
use thermocline::gguf::{Array, TensorType, Value as GgufValue, Writer};
use thermocline::model::Mixer;

use super::on_devices::{on_cuda, on_graphics, on_rocm};
use super::*;
use crate::support::Tiny;
use crate::synthetic::forward;

/// Largest allowed normalised squared error over all tokens.
const NMSE: f64 = 1e-4;

pub(super) fn nmse(expected: &Logits, got: &Logits) -> f64 {
    assert_eq!(expected.len(), got.len());
    let square = |v: f64| v * v;
    let (mut error, mut all) = (0.0, 0.0);
    for (a, b) in expected.iter().flatten().zip(got.iter().flatten()) {
        error += square(f64::from(a - b));
        all += square(f64::from(*a));
    }
    error / all
}

fn recurrent() -> Vec<Fixture> {
    let is_recurrent =
        |fixture: &Fixture| fixture.model.layers.iter().any(|layer| state_bytes(layer) > Bytes(0));
    fixtures().into_iter().filter(is_recurrent).collect()
}

/// The fixtures with recurrent layers, those of the families that share KV caches, and one with latent
/// attention.
fn mixed() -> Vec<Fixture> {
    let shares =
        |fixture: &Fixture| ["gemma3n", "gemma4", "deepseek2"].contains(&fixture.model.spec.name);
    recurrent().into_iter().chain(fixtures().into_iter().filter(shares)).collect()
}

fn engine_of(model: &Arc<Model>, devices: Vec<Device>, placement: Option<Placement>) -> Engine {
    let kv_formats = KvCache::both(Format::F32);
    let options = EngineOptions { n_ctx: 64, n_ubatch: 21, kv_formats, ..EngineOptions::default() };
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

/// Placements of `model`: everything on device 1, then `n` random ones.
fn placements(model: &Model, n: u64) -> Vec<Placement> {
    let mut all = vec![Placement::all_on(1, model.hyper.n_layer)];
    for seed in 0..n {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        all.push(random_placement(&mut rng, model, 2));
    }
    all
}

fn check_mixers_on(backend: &Arc<dyn Backend>) {
    let fixtures = mixed();
    assert_eq!(fixtures.len(), 24);
    for fixture in fixtures {
        for placement in placements(&fixture.model, 3) {
            let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
            let devices = vec![cpu_device(2), device];
            let mut engine = engine_of(&fixture.model, devices, Some(placement.clone()));
            for run in &fixture.runs {
                for pieces in [&[run.ids.len()][..], &[5, 1, 7]] {
                    let error = nmse(&run.logits, &logits_of(&mut engine, &run.ids, pieces));
                    let name = &fixture.name;
                    assert!(error <= NMSE, "{name}, {pieces:?}: {error} by {placement:?}");
                }
            }
        }
    }
}

#[test]
fn mixers_run_on_a_graphics_device() {
    on_graphics(check_mixers_on);
}

#[test]
fn mixers_run_on_a_fake_of_cuda() {
    on_cuda(check_mixers_on);
}

#[test]
fn mixers_run_on_a_fake_of_rocm() {
    on_rocm(check_mixers_on);
}

#[test]
fn the_state_of_recurrent_layers_is_in_the_budget() {
    let fixture = recurrent().into_iter().find(|fixture| fixture.name == "qwen35").unwrap();
    let states: Bytes = fixture.model.layers.iter().map(state_bytes).sum();
    // Each of the two layers has a state of 4 heads of 8 x 8 values, and 3 inputs of 2 * 16 + 32
    // channels.
    let mixers = fixture.model.layers.iter().map(|layer| &layer.frame.mixer);
    let recurrent = mixers.filter(|mixer| matches!(mixer, Mixer::GatedDelta(_))).count();
    assert_eq!((recurrent, states), (2, Bytes(2 * 4 * (4 * 8 * 8 + 3 * 64))));
    let used = |n_checkpoint: usize| {
        let options = EngineOptions { n_ctx: 64, n_checkpoint, ..EngineOptions::default() };
        let (model, devices) = (Arc::clone(&fixture.model), vec![cpu_device(2)]);
        let engine =
            Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {}).unwrap();
        engine.devices()[0].ledger().used()
    };
    assert!(used(9) - used(0) >= Bytes(9 * states.0));
}

/// Models whose layers differ in the number of neurons or heads, or lack neurons or attention.
fn uneven() -> [Tiny; 3] {
    let tiny = Tiny { n_layer: 5, format: Format::F16, ..Tiny::default() };
    [
        Tiny { n_ffs: vec![96, 32, 160, 64, 96], ..tiny.clone() },
        Tiny { n_ffs: vec![64, 0, 96, 0, 32], activation: "silu", ..tiny.clone() },
        Tiny {
            n_ffs: vec![96, 96, 0, 32, 0],
            heads: vec![(4, 2), (0, 0), (2, 1), (4, 4), (1, 1)],
            ..tiny
        },
    ]
}

const IDS: [u32; 23] =
    [3, 17, 60, 2, 9, 41, 41, 7, 30, 55, 12, 1, 0, 79, 23, 24, 25, 66, 5, 5, 18, 33, 71];

#[test]
fn layers_may_differ_in_size() {
    within(LIMIT, || {
        for (seed, tiny) in uneven().into_iter().enumerate() {
            let model = tiny.model();
            let expected = forward::run(&model, &IDS, None).logits;
            for round in 0..4 {
                let mut rng = ChaCha8Rng::seed_from_u64(10 * seed as u64 + round);
                let sim =
                    |index| sim_device(index, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
                let devices = vec![cpu_device(2), sim(1), sim(2)];
                let placement = random_placement(&mut rng, &model, 3);
                let mut engine = engine_of(&model, devices, Some(placement.clone()));
                for pieces in [&[IDS.len()][..], &[1, 4]] {
                    let difference = difference(&expected, &logits_of(&mut engine, &IDS, pieces));
                    assert!(difference <= 1e-3, "{tiny:?}: {difference} by {placement:?}");
                }
            }
        }
    });
}

#[test]
fn layers_of_different_sizes_are_placed_within_budgets() {
    within(LIMIT, || {
        let models = uneven().map(|tiny| tiny.model());
        let fixtures = mixed().into_iter().map(|fixture| fixture.model);
        for model in models.into_iter().chain(fixtures) {
            let mut cpu = engine_of(&model, vec![cpu_device(2)], None);
            let expected = logits_of(&mut cpu, &IDS, &[7]);
            let all = {
                let sim = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
                let engine = engine_of(&model, vec![cpu_device(2), sim.clone()], None);
                assert!(engine.placement().layers.iter().all(|layer| layer.home == 1));
                sim.ledger().peak().0
            };
            for part in 1..=8 {
                let budget = Bytes(all * part / 8);
                let sim = sim_device(1, budget, Duration::ZERO..Duration::ZERO, 1).1;
                let mut engine = engine_of(&model, vec![cpu_device(2), sim.clone()], None);
                assert!(sim.ledger().peak() <= budget, "{} of {budget}", sim.ledger().peak());
                let difference = difference(&expected, &logits_of(&mut engine, &IDS, &[7]));
                assert!(difference <= 1e-3, "{difference} within {budget}");
            }
        }
    });
}

/// A model of `tests/families`, of which tests change keys or remove tensors.
pub(super) struct ChangedModel {
    keys: Vec<(String, GgufValue)>,
    /// Name, shape, type, bytes.
    pub(super) tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl ChangedModel {
    pub(super) fn new(name: &str) -> ChangedModel {
        let file = File::open(&folder().join(format!("{name}.gguf"))).unwrap();
        let keys = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
        let tensor = |info: &thermocline::gguf::TensorInfo| {
            let bytes = file.bytes(info).unwrap().to_vec();
            (info.name.clone(), info.shape.clone(), info.ty, bytes)
        };
        ChangedModel { keys: keys.collect(), tensors: file.tensors().iter().map(tensor).collect() }
    }

    pub(super) fn key(mut self, key: &str, value: impl Into<GgufValue>) -> ChangedModel {
        self.keys.retain(|(name, _)| name != key);
        self.keys.push((key.to_owned(), value.into()));
        self
    }

    pub(super) fn without(mut self, name: &str) -> ChangedModel {
        let n = self.keys.len() + self.tensors.len();
        self.keys.retain(|(key, _)| key != name);
        self.tensors.retain(|(tensor, ..)| tensor != name);
        assert_eq!(self.keys.len() + self.tensors.len() + 1, n, "{name} existed");
        self
    }

    pub(super) fn model(&self) -> Result<Model, thermocline::model::Error> {
        let mut writer = Writer::new(Container::Gguf);
        for (key, value) in &self.keys {
            writer.set(key, value.clone()).unwrap();
        }
        for (name, shape, ty, _) in &self.tensors {
            writer.declare(name, shape, *ty).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, _, bytes) in &self.tensors {
            data.write(name, bytes).unwrap();
        }
        let file = File::from_vec(data.finish().unwrap(), "changed.gguf").unwrap();
        Model::from_file(file, &ModelOptions::default())
    }

    pub(super) fn fails(&self, says: &str) {
        let error = self.model().map(drop).expect_err(says).to_string();
        assert!(error.contains(says), "`{error}` lacks `{says}`");
    }
}

#[test]
fn hostile_keys_of_apertus_are_refused() {
    let reject = |key: &str, value: GgufValue, says: &str| {
        ChangedModel::new("apertus").key(&format!("xielu.{key}"), value).fails(says);
    };
    reject("eps", (-1.0f32).into(), "expected at least -0.0001");
    reject("alpha_n", Array::F32(vec![1.0]).into(), "1 numbers");
    reject("beta", f32::NAN.into(), "finite numbers");
    ChangedModel::new("apertus").without("xielu.alpha_p").fails("xielu.alpha_p");
}

#[test]
fn hostile_keys_of_recurrent_families_are_refused() {
    assert!(
        ChangedModel::new("qwen35").model().is_ok() && ChangedModel::new("lfm2").model().is_ok()
    );
    let qwen = |key: &str, value: GgufValue, says: &str| {
        ChangedModel::new("qwen35").key(&format!("qwen35.{key}"), value).fails(says);
    };
    for key in ["state_size", "group_count", "time_step_rank", "conv_kernel", "inner_size"] {
        qwen(&format!("ssm.{key}"), 0u32.into(), "is 0");
        qwen(&format!("ssm.{key}"), u32::MAX.into(), "expected 1 to 16777216");
        let missing = ChangedModel::new("qwen35").without(&format!("qwen35.ssm.{key}"));
        missing.fails(&format!("key `qwen35.ssm.{key}` is missing"));
    }
    qwen("ssm.group_count", 3u32.into(), "a multiple of the 3 key heads");
    qwen("ssm.inner_size", 63u32.into(), "4 heads of 8");
    qwen("ssm.conv_kernel", 5u32.into(), "ssm_conv1d");
    qwen("attention.recurrent_layers", Array::Bool(vec![true]).into(), "3 entries");
    qwen("full_attention_interval", 0u32.into(), "is 0");
    qwen("full_attention_interval", 3u32.into(), "blk.1.attn_qkv");
    qwen("rope.dimension_sections", Array::U32(vec![1, 1]).into(), "four section sizes");
    qwen("rope.dimension_sections", Array::U32(vec![0; 4]).into(), "four section sizes");
    qwen("rope.dimension_sections", Array::U32(vec![u32::MAX; 4]).into(), "four section sizes");
    qwen("attention.value_length", 8u32.into(), "expected 16");
    qwen("nextn_predict_layers", 3u32.into(), "fewer than the 3 layers");
    // The attention layer would share the KV cache of a recurrent layer, which has none.
    qwen("attention.shared_kv_layers", 2u32.into(), "an earlier layer whose KV cache");
    qwen("attention.shared_kv_layers", 3u32.into(), "fewer than the 3 layers");
    ChangedModel::new("qwen35").without("blk.0.ssm_a").fails("blk.0.ssm_a");
    ChangedModel::new("qwen35").without("blk.0.attn_gate.weight").fails("blk.0.attn_gate.weight");
    let lfm = |key: &str, value: GgufValue, says: &str| {
        ChangedModel::new("lfm2").key(&format!("lfm2.{key}"), value).fails(says);
    };
    lfm("shortconv.l_cache", 0u32.into(), "is 0");
    lfm("shortconv.l_cache", 7u32.into(), "shortconv.conv");
    lfm("attention.head_count_kv", Array::U32(vec![0, 2]).into(), "each of the 3 layers");
    lfm("attention.head_count_kv", Array::U32(vec![u32::MAX; 3]).into(), "0 to 16777216");
    lfm("attention.head_count_kv", Array::U32(vec![0, 5, 0]).into(), "a divisor of the");
    lfm("attention.head_count_kv", Array::U32(vec![2; 3]).into(), "blk.0.attn_");
    ChangedModel::new("lfm2").without("token_embd_norm.weight").fails("token_embd_norm.weight");
    ChangedModel::new("lfm2").without("blk.0.shortconv.in_proj.weight").fails("shortconv.in_proj");
}

#[test]
fn hostile_keys_of_mamba2_are_refused() {
    assert!(ChangedModel::new("mamba2").model().is_ok());
    let mamba = |key: &str, value: u32, says: &str| {
        ChangedModel::new("mamba2").key(&format!("mamba2.ssm.{key}"), value).fails(says);
    };
    for key in ["state_size", "group_count", "time_step_rank", "conv_kernel", "inner_size"] {
        mamba(key, 0, "is 0");
        mamba(key, u32::MAX, "expected 1 to 16777216");
        let missing = ChangedModel::new("mamba2").without(&format!("mamba2.ssm.{key}"));
        missing.fails(&format!("key `mamba2.ssm.{key}` is missing"));
    }
    mamba("time_step_rank", 5, "a divisor of the inner size 64");
    mamba("group_count", 5, "a divisor of the inner size 64");
    mamba("group_count", 8, "a divisor of the 4 heads");
    mamba("inner_size", 48, "blk.0.ssm_in.weight");
    mamba("state_size", 1 << 24, "blk.0.ssm_in.weight");
    mamba("conv_kernel", 3, "blk.0.ssm_conv1d.weight");
    for tensor in ["ssm_a", "ssm_d", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight"] {
        ChangedModel::new("mamba2").without(&format!("blk.1.{tensor}")).fails(tensor);
    }
    // The bias of the convolution is optional.
    assert!(ChangedModel::new("mamba2").without("blk.0.ssm_conv1d.bias").model().is_ok());
}

#[test]
fn hostile_keys_of_mamba1_are_refused() {
    for name in ["mamba", "jamba", "plamo2"] {
        assert!(ChangedModel::new(name).model().is_ok(), "{name}");
        let mamba = |key: &str, value: u32, says: &str| {
            ChangedModel::new(name).key(&format!("{name}.ssm.{key}"), value).fails(says);
        };
        for key in ["state_size", "time_step_rank", "conv_kernel", "inner_size"] {
            mamba(key, 0, "is 0");
            mamba(key, u32::MAX, "expected 1 to 16777216");
            let missing = ChangedModel::new(name).without(&format!("{name}.ssm.{key}"));
            missing.fails(&format!("key `{name}.ssm.{key}` is missing"));
        }
        mamba("inner_size", 48, "blk.0.ssm_");
        mamba("inner_size", 1 << 24, "blk.0.ssm_");
        mamba("state_size", 1 << 24, "blk.0.ssm_");
        mamba("conv_kernel", 3, "blk.0.ssm_conv1d.weight");
        for tensor in ["ssm_a", "ssm_d", "ssm_dt.bias", "ssm_x.weight", "ssm_out.weight"] {
            ChangedModel::new(name).without(&format!("blk.0.{tensor}")).fails(tensor);
        }
    }
    ChangedModel::new("plamo2")
        .key("plamo2.ssm.time_step_rank", 5u32)
        .fails("a divisor of the inner size 16");
    ChangedModel::new("jamba").without("blk.0.ssm_b_norm.weight").fails("ssm_b_norm");
    ChangedModel::new("falcon-h1").without("blk.0.attn_q.weight").fails("attn_q");
    // The norm of the heads is optional.
    assert!(ChangedModel::new("falcon-h1").without("blk.1.ssm_norm.weight").model().is_ok());
}

#[test]
fn hostile_scales_are_refused() {
    assert!(ChangedModel::new("granitehybrid").model().is_ok());
    for key in ["embedding_scale", "residual_scale", "logit_scale"] {
        for value in [-1.0f32, f32::NAN, f32::INFINITY, 1e-7] {
            let key = format!("granitehybrid.{key}");
            ChangedModel::new("granitehybrid")
                .key(&key, value)
                .fails(&format!("key `{key}` is {value}"));
        }
    }
    let list = Array::U32(vec![0, 5, 0]);
    ChangedModel::new("granitehybrid")
        .key("granitehybrid.attention.head_count_kv", list)
        .fails("a divisor of the 4 heads");
}

#[test]
fn hostile_keys_of_rwkv7_are_refused() {
    assert!(ChangedModel::new("rwkv7").model().is_ok());
    let rwkv = |key: &str, value: u32, says: &str| {
        ChangedModel::new("rwkv7").key(&format!("rwkv7.{key}"), value).fails(says);
    };
    rwkv("wkv.head_size", 0, "is 0");
    rwkv("wkv.head_size", u32::MAX, "expected 1 to 16777216");
    rwkv("wkv.head_size", 24, "a divisor of the embedding size 64");
    rwkv("token_shift_count", 1, "expected 2");
    rwkv("feed_forward_length", 32, "blk.0.channel_mix_key.weight");
    for tensor in ["lerp_fused", "w0", "v1", "a2", "k_k", "ln", "output"] {
        let tensor = format!("blk.1.time_mix_{tensor}.weight");
        ChangedModel::new("rwkv7").without(&tensor).fails(&tensor);
    }
    ChangedModel::new("rwkv7").without("blk.0.channel_mix_lerp_k.weight").fails("lerp_k");
    // The first layer's values have no share of their own.
    assert!(ChangedModel::new("rwkv7").without("blk.0.time_mix_v1.weight").model().is_ok());
}

#[test]
fn hostile_keys_of_rwkv6_are_refused() {
    for (fixture, arch) in [("rwkv6", "rwkv6"), ("qrwkv", "rwkv6qwen2")] {
        assert!(ChangedModel::new(fixture).model().is_ok());
        let rwkv = |key: &str, value: u32, says: &str| {
            ChangedModel::new(fixture).key(&format!("{arch}.{key}"), value).fails(says);
        };
        rwkv("wkv.head_size", 0, "is 0");
        rwkv("wkv.head_size", 7, "a divisor of the embedding size 16");
        rwkv("token_shift_count", 3, "expected ");
        rwkv("time_mix_extra_dim", 0, "is 0");
        rwkv("time_mix_extra_dim", 8, "time_mix_w1.weight");
        for tensor in ["w1", "w2", "lerp_x", "lerp_w", "decay", "decay_w2", "key", "output"] {
            let tensor = format!("blk.1.time_mix_{tensor}.weight");
            let stored = tensor.replace("lerp_w", "lerp_fused");
            ChangedModel::new(fixture).without(&stored).fails(&tensor);
        }
    }
    for part in ["time_mix_first", "time_mix_ln", "channel_mix_lerp_r", "channel_mix_receptance"] {
        ChangedModel::new("rwkv6").without(&format!("blk.0.{part}.weight")).fails(part);
    }
    for n_kv in [3u32, 4] {
        let model = ChangedModel::new("qrwkv").key("rwkv6qwen2.attention.head_count_kv", n_kv);
        model.fails("a divisor of the 2 heads");
    }
}

#[test]
fn hostile_keys_of_gemma3n_are_refused() {
    assert!(ChangedModel::new("gemma3n").model().is_ok());
    let gemma = |key: &str, value: u32, says: &str| {
        ChangedModel::new("gemma3n").key(&format!("gemma3n.{key}"), value).fails(says);
    };
    gemma("altup.num_inputs", 3, "expected 4");
    gemma("altup.active_idx", 1, "expected 0");
    gemma("embedding_length_per_layer_input", 0, "embedding_length_per_layer_input");
    gemma("attention.shared_kv_layers", 22, "fewer than the 22 layers");
    let scales = |list: Vec<f32>, says: &str| {
        let key = "gemma3n.activation_sparsity_scale";
        ChangedModel::new("gemma3n").key(key, Array::F32(list)).fails(says);
    };
    scales(vec![1.0; 21], "a number for each of the 22 layers");
    scales(vec![f32::NAN; 22], "NaN");
    for tensor in ["altup_proj.weight", "altup_unembd_proj.weight", "blk.3.altup_router.weight"] {
        ChangedModel::new("gemma3n").without(tensor).fails(tensor);
    }
    ChangedModel::new("gemma3n").without("blk.1.laurel_r.weight").fails("laurel_r");
}

#[test]
fn hostile_keys_of_routing_and_scores_are_refused() {
    for name in ["llama4", "grok", "muse-glimmer", "cohere2moe"] {
        assert!(ChangedModel::new(name).model().is_ok(), "{name}");
    }
    let llama4 = ChangedModel::new("llama4").key("llama4.expert_used_count", 2u32);
    llama4.fails("expected at most 1");
    ChangedModel::new("llama4").key("llama4.expert_count", 1025u32).fails("at most 1024");
    for scale in [-1.0f32, f32::NAN, f32::INFINITY] {
        let grok = ChangedModel::new("grok").key("grok.attention.output_scale", scale);
        grok.fails("a finite number of at least 0");
    }
    ChangedModel::new("grok").without("blk.0.layer_output_norm.weight").fails("post_ffw_norm");
    for (name, key) in [("step35", "clamp_exp"), ("step35", "clamp_shexp"), ("maple", "clamp_exp")]
    {
        assert!(ChangedModel::new(name).model().is_ok(), "{name}");
        let key = format!("{name}.swiglu_{key}");
        for limit in [-1.0f32, f32::NAN, f32::INFINITY] {
            let list = Array::F32(vec![0.5, limit]);
            ChangedModel::new(name).key(&key, list).fails("finite numbers of at least 0");
        }
        let short = Array::F32(vec![0.5]);
        ChangedModel::new(name).key(&key, short).fails("a number for each of the 2 layers");
        assert!(ChangedModel::new(name).key(&key, 0.5f32).model().is_ok());
    }
    // Grok 1 has no dense block beside the experts.
    let mut grok = ChangedModel::new("grok");
    for part in ["gate", "up", "down"] {
        grok = grok.without(&format!("blk.0.ffn_{part}.weight"));
    }
    assert!(grok.model().is_ok());
}

#[test]
fn nemotron_h_layers_have_either_mixer_or_ffn() {
    let model = ChangedModel::new("nemotron_h").model().unwrap();
    let halves = model.layers.iter().map(|layer| match (&layer.frame.mixer, &layer.ffn) {
        (Mixer::Mamba2(_), None) => 'M',
        (Mixer::Attention(by), None) if by.rope.is_none() => '*',
        (Mixer::None, Some(_)) => '-',
        _ => '?',
    });
    assert_eq!(halves.collect::<String>(), "M-*M-");
    let key = "nemotron_h.attention.layer_norm_epsilon";
    ChangedModel::new("nemotron_h").without(key).fails("layer_norm_rms_epsilon` is missing");
    let lists = Array::U32(vec![0; 5]);
    ChangedModel::new("nemotron_h")
        .key("nemotron_h.feed_forward_length", lists)
        .fails("blk.1.ssm_in");
}

/// Pairs that a file assigns to the fourth position are not rotated: for text that position is 0.
#[test]
fn sections_without_a_text_position_are_not_rotated() {
    let freqs = |sections: Option<Vec<u32>>| {
        let changed = ChangedModel::new("qwen35");
        let key = "qwen35.rope.dimension_sections";
        let changed = match sections {
            Some(sections) => changed.key(key, Array::U32(sections)),
            None => changed.without(key),
        };
        let model = changed.model().unwrap();
        let attention = model.layers.iter().find_map(|layer| layer.attention()).unwrap();
        attention.rope.as_ref().unwrap().freqs(64).to_vec()
    };
    let plain = freqs(None);
    assert!(plain.len() == 4 && plain.iter().all(|freq| *freq > 0.0));
    assert_eq!(freqs(Some(vec![2, 1, 1, 0])), plain);
    assert_eq!(freqs(Some(vec![1, 1, 1, 1])), [plain[0], plain[1], plain[2], 0.0]);
}
