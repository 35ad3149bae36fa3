//! Every family compared with logits that PyTorch (`scripts/make_family_fixtures`,
//! `make_expert_fixtures`) or llama.cpp (`scripts/make_recurrent_fixtures`) computed from the same
//! weights. Encoders are compared by the hidden states of all tokens.

use std::collections::HashSet;
use std::fs;
use std::mem::discriminant;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hal::format::Format;
use hal::{Bytes, Device, KvCache};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use thermocline::engine::{self, Engine, EngineOptions, Sparsity, Streaming};
use thermocline::gguf::{Container, File, Writer};
use thermocline::model::{ArchSpec, Model, ModelOptions, arch};
use thermocline::placement::{self, LayerPlacement, Placement};

pub(crate) mod blocks;
pub(crate) mod deepseek4;
mod encoders;
mod grovemoe;
mod hrm_text;
mod kda;
mod kimi_k3;
mod latent;
mod layers;
mod on_devices;
pub(crate) mod qwen4exp;
mod shared_kv;
pub(crate) mod sparse;
mod talkie;

use crate::placement_is_invisible::{
    Logits, cpu_device, difference, ignore_notices, logits_of, random_placement, sim_device,
};
use crate::support::packed::families;
use crate::support::within;

const LIMIT: Duration = Duration::from_secs(120);
/// Largest allowed difference, relative to the logits' spread. Sums in another order differ by up
/// to 2e-5.
const BOUND: f32 = 1e-4;

/// A model and its expected results.
struct Fixture {
    name: String,
    model: Arc<Model>,
    runs: Vec<Run>,
    /// Largest allowed difference, relative to the logits' spread: above [`BOUND`] for quantised
    /// weights, whose activations are rounded.
    bound: f32,
}

/// Context size, token ids, and their logits according to PyTorch or llama.cpp; in encoders their
/// hidden states.
struct Run {
    n_ctx: usize,
    ids: Vec<u32>,
    logits: Logits,
}

fn folder() -> &'static Path {
    families()
}

fn fixtures() -> Vec<Fixture> {
    let paths = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
    paths.sort();
    let results = folder().join("mixtral.gguf");
    let one_each = File::open(one_tensor_per_expert()).unwrap();
    let one_each = fixture_of("mixtral-old", &results, one_each);
    paths.iter().map(|path| fixture(path)).chain([one_each]).collect()
}

/// The path of `mixtral.gguf` with a tensor for each expert, as files of early 2024 have them. Written
/// once per process, as [`families`].
fn one_tensor_per_expert() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let bytes = split_experts(&File::open(&folder().join("mixtral.gguf")).unwrap());
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mixtral-old.gguf");
        let part = path.with_extension(format!("{}.part", std::process::id()));
        fs::write(&part, bytes).unwrap();
        fs::rename(part, &path).unwrap();
        path
    })
}

/// `file` with a tensor for each expert.
fn split_experts(file: &File) -> Vec<u8> {
    let mut writer = Writer::new(Container::Gguf);
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    let mut parts = Vec::new();
    for tensor in file.tensors() {
        let (bytes, shape) = (file.bytes(tensor).unwrap(), &tensor.shape);
        let Some(part) = tensor.name.strip_suffix("_exps.weight") else {
            parts.push((tensor.name.clone(), &shape[..], tensor, bytes));
            continue;
        };
        for (e, bytes) in bytes.chunks(bytes.len() / shape[2] as usize).enumerate() {
            parts.push((format!("{part}.{e}.weight"), &shape[..2], tensor, bytes));
        }
    }
    assert!(parts.len() > file.tensors().len(), "the model has experts");
    for (name, shape, tensor, _) in &parts {
        writer.declare(name, shape, tensor.ty.format().unwrap()).unwrap();
    }
    let mut data = writer.in_memory().unwrap();
    parts.iter().for_each(|(name, _, _, bytes)| data.write(name, bytes).unwrap());
    data.finish().unwrap()
}

/// Name and model of every fixture that generates text.
pub(crate) fn models() -> impl Iterator<Item = (String, Arc<Model>)> {
    let decoders = fixtures().into_iter().filter(|fixture| fixture.model.hyper.causal);
    decoders.map(|fixture| (fixture.name, fixture.model))
}

/// As [`models`], and the models that tests generate.
pub(crate) fn all_models() -> impl Iterator<Item = (String, Arc<Model>)> {
    let of_indexers = sparse::models().chain(blocks::models()).chain(qwen4exp::models());
    models().chain(of_indexers).chain(deepseek4::models())
}

fn fixture(path: &Path) -> Fixture {
    let name = path.file_stem().unwrap().to_string_lossy();
    fixture_of(&name, path, File::open(path).unwrap())
}

/// The model of `file`, with the expected results of the fixture at `path`.
fn fixture_of(name: &str, path: &Path, file: File) -> Fixture {
    let model = Model::from_file(file, &ModelOptions::default());
    let model = Arc::new(model.unwrap_or_else(|error| panic!("{name}: {error}")));
    let json: Value =
        serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
    let numbers = |list: &Value| -> Vec<f64> {
        list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    };
    // The file has the F32 logits of all runs, little-endian, one row per token.
    let logits = fs::read(path.with_extension("logits")).unwrap();
    let width = if model.hyper.causal { model.n_vocab() } else { model.hyper.n_embd };
    let mut rows = logits.chunks_exact(4 * width).map(|row| {
        let values = row.chunks_exact(4).map(|v| f32::from_le_bytes(v.try_into().unwrap()));
        values.collect::<Vec<f32>>()
    });
    let run = |run: &Value| {
        let ids: Vec<u32> = numbers(&run["ids"]).into_iter().map(|id| id as u32).collect();
        let logits: Logits = rows.by_ref().take(ids.len()).collect();
        assert_eq!(logits.len(), ids.len(), "{name}: a row of logits per token");
        Run { n_ctx: run["n_ctx"].as_u64().unwrap() as usize, ids, logits }
    };
    let runs = json["runs"].as_array().unwrap().iter().map(run).collect();
    assert!(rows.next().is_none(), "{name}: more rows of logits than tokens");
    let bound = json["bound"].as_f64().map_or(BOUND, |bound| bound as f32);
    Fixture { name: name.to_owned(), model, runs, bound }
}

fn load(
    fixture: &Fixture,
    n_ctx: usize,
    sparsity: Sparsity,
    devices: Vec<Device>,
    placement: Option<Placement>,
) -> Engine {
    let kv_formats = KvCache::both(Format::F32);
    // Most runs have 21 tokens, and are thus a single prefill step.
    let options =
        EngineOptions { n_ctx, n_ubatch: 21, kv_formats, sparsity, ..EngineOptions::default() };
    let model = Arc::clone(&fixture.model);
    Engine::load(model, devices, options, placement, ignore_notices(), &|_, _| {}).unwrap()
}

#[test]
fn family_logits_match_their_references() {
    within(LIMIT, || {
        let mut wrong = Vec::new();
        for fixture in fixtures() {
            for run in &fixture.runs {
                for pieces in [&[run.ids.len()][..], &[1], &[5, 3, 7]] {
                    let devices = vec![cpu_device(2)];
                    let mut engine = load(&fixture, run.n_ctx, Sparsity::Predicted, devices, None);
                    let got = logits_of(&mut engine, &run.ids, pieces);
                    let difference = difference(&run.logits, &got);
                    if difference.is_nan() || difference > fixture.bound {
                        wrong.push(format!("{}, {pieces:?}: {difference}", fixture.name));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    });
}

#[test]
fn skipped_neurons_do_not_change_logits() {
    within(LIMIT, || {
        let sparse = fixtures().into_iter().filter(|fixture| fixture.model.is_exactly_sparse());
        let mut n = 0;
        for fixture in sparse {
            let run = &fixture.runs[0];
            let [exact, dense] = [Sparsity::Exact, Sparsity::Off].map(|sparsity| {
                let mut engine = load(&fixture, run.n_ctx, sparsity, vec![cpu_device(2)], None);
                assert_eq!(engine.is_sparse(), sparsity == Sparsity::Exact);
                logits_of(&mut engine, &run.ids, &[7])
            });
            let difference = difference(&dense, &exact);
            assert!(difference <= 1e-4, "{}: {difference}", fixture.name);
            n += 1;
        }
        assert!(n >= 10, "{n} families skip neurons");
    });
}

#[test]
fn neurons_on_other_devices_do_not_change_logits() {
    within(LIMIT, || {
        for (seed, fixture) in fixtures().into_iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
            for _ in 0..3 {
                let mut devices = vec![cpu_device(2)];
                devices.extend((1..3).map(|index| {
                    sim_device(index, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1
                }));
                let placement = random_placement(&mut rng, &fixture.model, 3);
                let run = &fixture.runs[0];
                let given = Some(placement.clone());
                let mut engine = load(&fixture, run.n_ctx, Sparsity::Predicted, devices, given);
                // A few tokens per step, as in decode, and all at once, as in prefill.
                for pieces in [&[9, 1][..], &[run.ids.len()]] {
                    let got = logits_of(&mut engine, &run.ids, pieces);
                    let difference = difference(&run.logits, &got);
                    assert!(
                        difference <= fixture.bound,
                        "{}, {pieces:?}: {difference} by {placement:?}",
                        fixture.name
                    );
                }
            }
        }
    });
}

/// All variants of blocks (biases, parallel blocks, post-norms, no gate) with absent weights that
/// are streamed in prefill.
#[test]
fn streamed_neurons_do_not_change_logits() {
    within(LIMIT, || {
        for (seed, fixture) in fixtures().into_iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
            for _ in 0..3 {
                let sim = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
                let placement = random_placement(&mut rng, &fixture.model, 2);
                let run = &fixture.runs[0];
                let options = EngineOptions {
                    n_ctx: run.n_ctx,
                    n_ubatch: 21,
                    kv_formats: KvCache::both(Format::F32),
                    streaming: Streaming::Forced { from: 17, chunk_bytes: Bytes(1) },
                    ..EngineOptions::default()
                };
                let (model, devices) = (Arc::clone(&fixture.model), vec![cpu_device(2), sim]);
                let given = Some(placement.clone());
                let mut engine =
                    Engine::load(model, devices, options, given, ignore_notices(), &|_, _| {})
                        .unwrap();
                let got = logits_of(&mut engine, &run.ids, &[run.ids.len()]);
                let difference = difference(&run.logits, &got);
                let name = &fixture.name;
                assert!(difference <= fixture.bound, "{name}: {difference} by {placement:?}");
            }
        }
    });
}

/// If neurons can be exchanged, the CPU has copies of vectors that an exchange writes to.
#[test]
fn exchanges_between_devices_do_not_change_logits() {
    within(LIMIT, || {
        for (seed, fixture) in fixtures().into_iter().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
            let n_layer = fixture.model.layers.len();
            let mut split = Placement::all_on(0, n_layer);
            split.layers[n_layer - 1] = LayerPlacement::whole(1);
            for placement in [split, random_placement(&mut rng, &fixture.model, 2)] {
                let run = &fixture.runs[0];
                let options = EngineOptions {
                    n_ctx: run.n_ctx,
                    n_ubatch: 21,
                    kv_formats: KvCache::both(Format::F32),
                    adapt: true,
                    ..EngineOptions::default()
                };
                let sim = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, 1).1;
                let (model, devices) = (Arc::clone(&fixture.model), vec![cpu_device(2), sim]);
                let given = Some(placement.clone());
                let loaded =
                    Engine::load(model, devices, options, given, ignore_notices(), &|_, _| {});
                let mut engine = match loaded {
                    // Layers that share a cache cannot be divided.
                    Err(engine::Error::Placement(placement::Error::SharedKvCache { .. })) => {
                        continue;
                    }
                    loaded => loaded.unwrap(),
                };
                let difference =
                    difference(&run.logits, &logits_of(&mut engine, &run.ids, &[5, 1]));
                let name = &fixture.name;
                assert!(difference <= fixture.bound, "{name}: {difference} by {placement:?}");
            }
        }
    });
}

/// The values of a family's fields that change what is computed, each with its field's name. Numbers
/// are left out.
fn traits(spec: &ArchSpec) -> Vec<String> {
    let scales = spec.scales;
    let kinds =
        [scales.embedding, scales.residual, scales.logits].map(|scale| discriminant(&scale));
    let routing = spec.routing;
    vec![
        format!("encoder {} {:?}", spec.encoder, spec.rank_activation),
        format!("norm {:?} {}", spec.norm, spec.norm_weights),
        format!("block {:?}", spec.block),
        format!("kv {:?} {} {}", spec.kv, spec.v_norm, spec.keys_as_values),
        format!("queries and keys {:?}", spec.qk_norm.map(|norm| norm.over)),
        format!("after RoPE {:?}", spec.qk_norm.map(|norm| norm.after_rope)),
        format!("gate {:?}", spec.gate),
        format!("positions {:?}", discriminant(&spec.positions)),
        format!("ALiBi {:?}", discriminant(&spec.alibi)),
        format!("scores {:?} {:?}", discriminant(&spec.attn_scale), spec.embedding_norm),
        format!("windows {:?}", spec.global_layers.map(|global| global.first)),
        format!("rotary {:?}", spec.rotary),
        format!("YaRN {:?}", spec.yarn_log),
        format!("local RoPE {:?}", spec.local_rope),
        format!("scales {kinds:?} {:?}", scales.keys),
        format!("clamps {}", spec.clamps),
        format!("temperature {:?}", spec.temperature),
        format!("softcaps {} {}", spec.attn_softcap > 0.0, spec.logit_softcap > 0.0),
        format!("neurons {} {}", spec.half_n_ff, spec.feed_forward),
        format!("ffn {:?} {:?}", spec.ffn, discriminant(&spec.activation)),
        format!("experts {:?} {:?}", routing.input, routing.scoring),
        format!("weights {} {}", routing.renormalise, routing.scales_input),
        format!("dense {:?} {}", spec.dense_beside, routing.averages),
        format!("limits {:?}, half of RoPE {}", spec.clamp, spec.half_rotary),
        format!("halves {}, streams {}", spec.halves, spec.altup),
        format!("cut-off {}", spec.gaussian_cut.is_some()),
        format!("chunks {}, own epsilon {}", spec.chunk.is_some(), spec.post_norm_eps.is_some()),
    ]
}

/// Families that differ only in names share fixtures; `scripts/check_llama_archs` compares all of
/// them with llama.cpp. DeepSeek-V4 is compared with plain loops.
#[test]
fn every_trait_of_a_family_has_a_fixture() {
    let fixtures = fixtures();
    let generated = deepseek4::models().map(|(_, model)| traits(model.spec));
    let held: HashSet<String> =
        fixtures.iter().map(|f| traits(f.model.spec)).chain(generated).flatten().collect();
    for spec in arch::ALL {
        for one in traits(spec) {
            assert!(held.contains(&one), "{}: no fixture has {one}", spec.name);
        }
    }
    for family in ["llama", "bamboo", "falcon", "opt"] {
        for container in [Container::Gguf, Container::PowerInfer] {
            let found =
                |f: &Fixture| f.model.spec.name == family && f.model.file.container() == container;
            assert!(fixtures.iter().any(found), "{family} in {container}");
        }
    }
}

#[test]
fn the_documentation_lists_the_families() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/models.md")).unwrap();
    let table = arch::table();
    assert!(page.contains(&table), "docs/models.md does not have this table:\n{table}");
    let mut models: Vec<&str> = arch::ALL.iter().map(|spec| spec.models).collect();
    models.sort_unstable();
    assert!(models.windows(2).all(|two| two[0] != two[1]), "two families of the same models");
}

#[test]
fn a_context_beyond_learned_positions_is_refused() {
    let fixture = fixture(&folder().join("opt.gguf"));
    let options = EngineOptions { n_ctx: 65, ..EngineOptions::default() };
    let devices = vec![cpu_device(1)];
    let error = Engine::load(fixture.model, devices, options, None, ignore_notices(), &|_, _| {});
    let error = error.map(drop).unwrap_err().to_string();
    assert!(error.contains("65 tokens") && error.contains("64 learned positions"), "{error}");
}
