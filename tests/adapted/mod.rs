//! LoRA adapters and RoPE settings compared with llama.cpp's logits
//! (`scripts/make_adapter_fixtures`), on the CPU and on split placements.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hal::format::Format;
use hal::{Bytes, KvCache};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use thermocline::engine::{Engine, EngineOptions};
use thermocline::gguf::{Container, File, Writer};
use thermocline::model::{Adapter, AdapterMerge, Model, ModelOptions, RopeOverrides, RopeScaling};
use thermocline::placement::Placement;

use crate::placement_is_invisible::{
    Logits, cpu_device, ignore_notices, logits_of, random_placement, sim_device,
};
use crate::support::packed::{families, unpack};
use crate::support::within;

mod command;
mod errors;

const LIMIT: Duration = Duration::from_secs(120);

/// A model with adapters or RoPE settings, and llama.cpp's logits of its last tokens.
struct Case {
    family: String,
    /// Format of the matrices that the fixture has in F16.
    format: Option<Format>,
    adapters: Vec<Adapter>,
    rope: RopeOverrides,
    ids: Vec<u32>,
    expected: Logits,
}

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/adapted"))
}

fn adapter_bytes(name: &str) -> Vec<u8> {
    unpack(&folder().join(format!("{name}.gguf.gz")))
}

fn adapter(name: &str, scale: f32) -> Adapter {
    Adapter { file: File::from_vec(adapter_bytes(name), name).unwrap(), scale }
}

fn family_file(name: &str) -> File {
    File::open(&families().join(format!("{name}.gguf"))).unwrap()
}

fn overrides(rope: &Value) -> RopeOverrides {
    let number = |key: &str| rope.get(key).map(|value| value.as_f64().unwrap() as f32);
    RopeOverrides {
        scaling: rope.get("rope_scaling").map(|scaling| match scaling.as_str().unwrap() {
            "none" => RopeScaling::None,
            "linear" => RopeScaling::Linear,
            "yarn" => RopeScaling::Yarn,
            other => panic!("{other}"),
        }),
        freq_base: number("rope_freq_base"),
        freq_scale: number("rope_freq_scale").or(number("rope_scale").map(f32::recip)),
        yarn_orig_ctx: number("yarn_orig_ctx").map(|n| n as usize),
        yarn_ext_factor: number("yarn_ext_factor"),
        yarn_attn_factor: number("yarn_attn_factor"),
        yarn_beta_slow: number("yarn_beta_slow"),
        yarn_beta_fast: number("yarn_beta_fast"),
    }
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("cases.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let ids: Vec<u32> =
        json["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let n_compared = json["n_compared"].as_u64().unwrap() as usize;
    let bytes = unpack(&folder().join("logits.gz"));
    let mut values = vec![0.0; bytes.len() / 2];
    Format::F16.dequantize(&bytes, &mut values);
    let list = json["cases"].as_array().unwrap();
    let n_vocab = values.len() / list.len() / n_compared;
    let mut rows = values.chunks_exact(n_vocab).map(<[f32]>::to_vec);
    let case = |case: &Value| Case {
        family: case["family"].as_str().unwrap().to_owned(),
        format: case["format"].as_str().map(|name| name.parse().unwrap()),
        adapters: case["adapters"].as_array().map_or(Vec::new(), |list| {
            let scaled =
                |pair: &Value| adapter(pair[0].as_str().unwrap(), pair[1].as_f64().unwrap() as f32);
            list.iter().map(scaled).collect()
        }),
        rope: overrides(&case["rope"]),
        ids: ids.clone(),
        expected: rows.by_ref().take(n_compared).collect(),
    };
    list.iter().map(case).collect()
}

/// The file with the matrices that are in F16 in another format.
fn recast(file: &File, to: Format) -> File {
    let mut writer = Writer::new(Container::Gguf);
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    let format = |ty: Format| if ty == Format::F16 { to } else { ty };
    for tensor in file.tensors() {
        writer.declare(&tensor.name, &tensor.shape, format(tensor.ty.format().unwrap())).unwrap();
    }
    let mut data = writer.in_memory().unwrap();
    for tensor in file.tensors() {
        let from = tensor.ty.format().unwrap();
        let mut values = vec![0.0; tensor.n_elements() as usize];
        from.dequantize(file.bytes(tensor).unwrap(), &mut values);
        let mut bytes = vec![0; format(from).row_bytes(values.len()).unwrap()];
        format(from).quantize(&values, &mut bytes);
        data.write(&tensor.name, &bytes).unwrap();
    }
    File::from_vec(data.finish().unwrap(), "recast").unwrap()
}

fn merged(file: File, adapters: &[Adapter]) -> File {
    AdapterMerge::new(&file, adapters).unwrap().apply(file, &|_, _| {}).unwrap()
}

fn model(case: &Case, format: Format) -> Arc<Model> {
    let file = merged(recast(&family_file(&case.family), format), &case.adapters);
    let options = ModelOptions { rope: case.rope.clone(), ..ModelOptions::default() };
    Arc::new(Model::from_file(file, &options).unwrap())
}

/// The mean squared error of all rows, divided by the mean square of the expected values.
fn relative_error(expected: &Logits, got: &[Vec<f32>]) -> f32 {
    assert_eq!(expected.len(), got.len());
    let pairs = || expected.iter().flatten().zip(got.iter().flatten());
    let error: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    error / expected.iter().flatten().map(|a| a.powi(2)).sum::<f32>()
}

/// Relative errors on the CPU and on a random split over three devices, in prefill and in decode.
fn errors_of(model: &Arc<Model>, case: &Case, seed: u64) -> Vec<f32> {
    let error = |placement: Option<Placement>, pieces: &[usize]| {
        let mut devices = vec![cpu_device(2)];
        if placement.is_some() {
            devices.extend((1..3).map(|index| {
                sim_device(index, Bytes::MAX, Duration::ZERO..Duration::ZERO, seed).1
            }));
        }
        let kv_formats = KvCache::both(Format::F32);
        let options =
            EngineOptions { n_ctx: 64, n_ubatch: 24, kv_formats, ..EngineOptions::default() };
        let (model, notices) = (Arc::clone(model), ignore_notices());
        let mut engine =
            Engine::load(model, devices, options, placement, notices, &|_, _| {}).unwrap();
        let got = logits_of(&mut engine, &case.ids, pieces);
        relative_error(&case.expected, &got[got.len() - case.expected.len()..])
    };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut split = || Some(random_placement(&mut rng, model, 3));
    vec![error(None, &[24]), error(None, &[1]), error(split(), &[24]), error(split(), &[7, 1])]
}

#[test]
fn logits_with_adapters_match_llama_cpp() {
    within(LIMIT, || {
        let mut n = 0;
        for (seed, case) in cases().iter().enumerate().filter(|(_, case)| !case.adapters.is_empty())
        {
            let formats = case.format.map_or(vec![Format::F16, Format::F32], |format| vec![format]);
            for format in formats {
                let errors = errors_of(&model(case, format), case, seed as u64);
                let bound = if format == Format::Q8_0 {
                    1e-4
                } else if format.quants().is_some() {
                    // Without adapters, the error is 1.2e-4: both round activations to 8 bits.
                    2e-4
                } else {
                    // llama.cpp rounds the input of the F16 factors to F16.
                    5e-6
                };
                let fits = errors.iter().all(|error| *error <= bound);
                assert!(fits, "{} in {format}: {errors:?}", case.family);
                n += 1;
            }
        }
        assert_eq!(n, 12);
    });
}

#[test]
fn logits_with_rope_settings_match_llama_cpp() {
    within(LIMIT, || {
        let mut n = 0;
        for (seed, case) in cases().iter().enumerate().filter(|(_, case)| !case.rope.is_empty()) {
            let errors = errors_of(&model(case, Format::F32), case, seed as u64);
            // The references are rounded to F16.
            let fits = errors.iter().all(|error| *error <= 2e-7);
            assert!(fits, "{} with {:?}: {errors:?}", case.family, case.rope);
            n += 1;
        }
        assert_eq!(n, 7);
    });
}

/// Neurons that a merged gate switches off are skipped exactly, and so are those whose rows are on
/// another device.
#[test]
fn merged_neurons_are_skipped_exactly() {
    within(LIMIT, || {
        let cases = cases();
        let case = cases.iter().find(|case| case.family == "arcee").unwrap();
        let model = model(case, Format::F16);
        assert!(model.is_exactly_sparse());
        let run = |sparsity| {
            let options = EngineOptions { n_ctx: 64, sparsity, ..EngineOptions::default() };
            let devices = vec![cpu_device(2)];
            let notices = ignore_notices();
            let model = Arc::clone(&model);
            let mut engine =
                Engine::load(model, devices, options, None, notices, &|_, _| {}).unwrap();
            logits_of(&mut engine, &case.ids, &[7])
        };
        use thermocline::engine::Sparsity;
        let (exact, dense) = (run(Sparsity::Exact), run(Sparsity::Off));
        assert!(relative_error(&dense, &exact) < 1e-8);
    });
}

#[test]
fn adapters_and_scales_belong_to_what_identifies_a_model() {
    let fingerprint = |adapters: &[Adapter]| merged(family_file("granite"), adapters).fingerprint();
    let plain = fingerprint(&[]);
    assert_eq!(plain, family_file("granite").fingerprint());
    assert_eq!(plain, fingerprint(&[adapter("granite-a", 0.0)]), "a scale of 0 changes nothing");
    let one = fingerprint(&[adapter("granite-a", 1.0)]);
    assert_eq!(one, fingerprint(&[adapter("granite-a", 1.0), adapter("granite-b", 0.0)]));
    let others = [
        fingerprint(&[adapter("granite-a", 1.000_000_1)]),
        fingerprint(&[adapter("granite-b", 1.0)]),
        fingerprint(&[adapter("granite-a", 1.0), adapter("granite-b", 1e-30)]),
        plain,
    ];
    assert!(others.iter().all(|other| *other != one), "{one}: {others:?}");
}

/// The side file next to a model was made without adapters.
#[test]
fn side_files_with_adapters_are_in_the_cache_folder() {
    let cache = Path::new("cache");
    let places = |file: &File| thermocline::learned::places(file, Some(cache));
    let plain = places(&family_file("granite"));
    let [beside, in_cache] = &plain[..] else { panic!("{plain:?}") };
    assert!(beside.starts_with(families()) && in_cache.starts_with(cache));
    let [one, two] = ["granite-a", "granite-b"]
        .map(|name| places(&merged(family_file("granite"), &[adapter(name, 1.0)])));
    assert!(one.len() == 1 && one[0].starts_with(cache) && one[0] != *in_cache, "{one:?}");
    assert_ne!(one, two);
}

#[test]
fn the_real_bytes_of_merged_matrices_are_counted() {
    let plain = recast(&family_file("granite"), Format::Q4_0);
    let (before, n_tensors) = (plain.size_bytes(), plain.tensors().len());
    let merge = AdapterMerge::new(&plain, &[adapter("granite-a", 1.0)]).unwrap();
    // 5 matrices in each of 2 layers, `attn_v` with 16 rows of 32 and the others with 32.
    assert_eq!(merge.n_matrices(), 10);
    let n_rows = 2 * (16 + 4 * 32);
    assert_eq!((merge.size(), merge.size_before()), (Bytes(34 * n_rows), Bytes(18 * n_rows)));
    let (size, replaced) = (merge.size().0, merge.size_before().0);
    let file = merge.apply(plain, &|_, _| {}).unwrap();
    let header: usize = file.overlay_headers().map(<[u8]>::len).sum();
    assert_eq!(file.overlay_bytes(), header as u64 + size);
    assert_eq!(file.size_bytes(), before - replaced + file.overlay_bytes());
    assert_eq!(file.tensors().len(), n_tensors);
    let model = Model::from_file(file, &ModelOptions::default()).unwrap();
    let formats = |layer: usize| {
        let ffn = model.layers[layer].ffn.as_ref().unwrap();
        ffn.matrices().map(|(_, rows)| rows.desc().format).collect::<Vec<_>>()
    };
    assert_eq!(formats(0), [Format::Q8_0; 3]);
}
