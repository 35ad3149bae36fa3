//! Observed blocks: their values equal the engine's own on every placement, and observing does not
//! change the output.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hal::format::Format;
use hal::{Bytes, Device, HostRows, KvCache};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use thermocline::embedded;
use thermocline::engine::{
    Engine, EngineOptions, Error, LogitsRequest, Sequence, Sparsity, StepStats,
};
use thermocline::gguf::File;
use thermocline::model::{Affine, Model, ModelOptions};
use thermocline::placement::Placement;

use crate::placement_is_invisible::{cpu_device, ignore_notices, random_placement, sim_device};
use crate::support::packed::families;
use crate::support::{Tiny, largest_difference, within};

const LIMIT: Duration = Duration::from_secs(120);

fn built_in() -> Arc<Model> {
    let file = embedded::file().unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

fn load(model: &Arc<Model>, devices: Vec<Device>, placement: Option<Placement>) -> Engine {
    let options = EngineOptions {
        n_ctx: model.hyper.n_ctx_train.min(128),
        n_ubatch: 32,
        kv_formats: KvCache::both(Format::F32),
        sparsity: Sparsity::Exact,
        ..EngineOptions::default()
    };
    Engine::load(Arc::clone(model), devices, options, placement, ignore_notices(), &|_, _| {})
        .unwrap()
}

/// The observed values of one layer, all tokens.
#[derive(Clone, Debug, Default)]
struct ObservedTokens {
    residual: Vec<f32>,
    x: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    weights: Vec<f32>,
}

fn observe(
    engine: &mut Engine,
    sequence: &mut Sequence,
    ids: &[u32],
) -> (Vec<ObservedTokens>, StepStats) {
    let mut layers = vec![ObservedTokens::default(); engine.model().hyper.n_layer];
    let mut raw = Vec::new();
    let stats = engine
        .observe(sequence, ids, &AtomicBool::new(false), &mut |layer, observed| {
            let seen: &mut ObservedTokens = &mut layers[layer];
            seen.residual.extend(observed.residual);
            seen.x.extend(observed.x);
            seen.gate.extend(observed.gate.unwrap_or_default());
            seen.up.extend(observed.up);
            seen.weights.extend(observed.weights.unwrap_or_default());
            raw.push(observed.n_tokens);
        })
        .unwrap();
    assert_eq!(raw.iter().sum::<usize>(), ids.len() * engine.model().blocks().count());
    (layers, stats)
}

fn ids(model: &Model, n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * i * 7 + 3 * i + 1) as u32 % model.n_vocab() as u32).collect()
}

/// Largest difference divided by the root mean square of `a`.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    let spread = (a.iter().map(|v| v * v).sum::<f32>() / a.len().max(1) as f32).sqrt();
    largest_difference(a, b) / spread.max(1e-9)
}

/// `w . x + bias`, with 64-bit sums.
fn product(by: &Affine<HostRows>, x: &[f32]) -> Vec<f32> {
    let desc = by.w.desc();
    let mut w = vec![0.0; desc.n_rows * desc.n_cols];
    desc.format.dequantize(&by.w.rows(0..desc.n_rows).unwrap(), &mut w);
    let bias = by.bias.as_ref().map(|bias| {
        let mut values = vec![0.0; desc.n_rows];
        Format::F32.dequantize(&bias.rows(0..1).unwrap(), &mut values);
        values
    });
    let mut y = Vec::new();
    for x in x.chunks_exact(desc.n_cols) {
        for (row, w) in w.chunks_exact(desc.n_cols).enumerate() {
            let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            y.push(dot as f32 + bias.as_ref().map_or(0.0, |bias| bias[row]));
        }
    }
    y
}

/// What of a token's gates exceeds their cut-off: the mean and `factor` standard deviations.
fn cut(gate: &mut [f32], factor: f32) {
    let of = |f: &dyn Fn(f64) -> f64| {
        gate.iter().map(|&gate| f(f64::from(gate))).sum::<f64>() / gate.len() as f64
    };
    let mean = of(&|gate| gate);
    let deviation = (of(&|gate| gate * gate) - mean * mean).sqrt();
    let cut = (mean + f64::from(factor) * deviation) as f32;
    gate.iter_mut().for_each(|gate| *gate = (*gate - cut).max(0.0));
}

#[test]
fn observed_active_neurons_match_the_counters() {
    within(LIMIT, || {
        let model = built_in();
        let mut engine = load(&model, vec![cpu_device(2)], None);
        let mut sequence = engine.new_sequence();
        let ids = ids(&model, 77);
        let (layers, stats) = observe(&mut engine, &mut sequence, &ids);
        let fired = |seen: &ObservedTokens| seen.gate.iter().filter(|gate| **gate > 0.0).count();
        let fired: usize = layers.iter().map(fired).sum();
        assert_eq!(fired as f64, stats.active);
        drop(sequence);
        let mut other = engine.new_sequence();
        let interrupt = AtomicBool::new(false);
        let fed =
            engine.feed(&mut other, &ids, LogitsRequest::Last, &interrupt, &mut |_, _| {}).unwrap();
        assert!((fed.active - stats.active).abs() < 1e-3 * stats.active, "{fed:?} {stats:?}");
    });
}

#[test]
fn observed_activations_match_the_weights_of_every_family() {
    within(LIMIT, || {
        let mut n = 0;
        for entry in fs::read_dir(families()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|end| end != "gguf") {
                continue;
            }
            let file = File::open(&path).unwrap();
            let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
            if !model.hyper.causal {
                continue;
            }
            let mut engine = load(&model, vec![cpu_device(2)], None);
            let mut sequence = engine.new_sequence();
            let ids = ids(&model, 37);
            let (layers, _) = observe(&mut engine, &mut sequence, &ids);
            // Quantised weights with rounded activations differ by about 1 % of the spread.
            let bound =
                |of: &Affine| if of.w.desc().format.quants().is_some() { 0.2 } else { 1e-4 };
            for (seen, layer) in layers.iter().zip(&model.layers) {
                let Some(ffn) = &layer.ffn else {
                    assert!(seen.x.is_empty(), "{}", path.display());
                    continue;
                };
                let up = product(&ffn.up, &seen.x);
                assert!(difference(&up, &seen.up) < bound(&ffn.up), "{}", path.display());
                let mut gate = ffn.gate.as_ref().map_or(Vec::new(), |gate| product(gate, &seen.x));
                if let Some(factor) = ffn.gaussian_cut {
                    gate.chunks_exact_mut(ffn.n_ff()).for_each(|gate| cut(gate, factor));
                }
                assert!(difference(&gate, &seen.gate) < bound(&ffn.up), "{}", path.display());
                // Latent experts have another width than the residual.
                let [n_residual, n_x] = [&seen.residual, &seen.x].map(Vec::len);
                assert_eq!(n_residual * ffn.width(), n_x * model.hyper.n_embd);
                let used = seen.weights.iter().filter(|weight| **weight != 0.0).count();
                let expected = layer.experts().map_or(0, |experts| experts.n_used * ids.len());
                assert_eq!(used, expected, "{}", path.display());
            }
            n += 1;
        }
        assert!(n > 20, "{n} families");
    });
}

#[test]
fn neurons_are_observed_on_every_device() {
    within(LIMIT, || {
        for tiny in [
            Tiny::default(),
            Tiny { seed: 2, format: Format::Q4_0, n_ff: 64, ..Tiny::default() },
            Tiny { seed: 3, activation: "silu", ..Tiny::default() },
        ] {
            let model = tiny.model();
            let ids = ids(&model, 41);
            let mut engine = load(&model, vec![cpu_device(2)], None);
            let mut sequence = engine.new_sequence();
            let (expected, alone) = observe(&mut engine, &mut sequence, &ids);
            let mut rng = ChaCha8Rng::seed_from_u64(tiny.seed);
            for seed in 0..4 {
                let mut devices = vec![cpu_device(2)];
                devices.extend((1..3).map(|index| {
                    sim_device(index, Bytes::MAX, Duration::ZERO..Duration::from_micros(50), seed).1
                }));
                let placement = random_placement(&mut rng, &model, 3);
                let mut engine = load(&model, devices, Some(placement.clone()));
                let mut sequence = engine.new_sequence();
                let (seen, stats) = observe(&mut engine, &mut sequence, &ids);
                let bound = if tiny.format.quants().is_some() { 0.2 } else { 2e-3 };
                for (expected, seen) in expected.iter().zip(&seen) {
                    for (expected, seen) in [
                        (&expected.residual, &seen.residual),
                        (&expected.x, &seen.x),
                        (&expected.gate, &seen.gate),
                        (&expected.up, &seen.up),
                    ] {
                        assert!(difference(expected, seen) < bound, "{tiny:?} {placement:?}");
                    }
                }
                assert!(
                    (stats.active - alone.active).abs() <= 0.02 * alone.active,
                    "{stats:?} {alone:?}"
                );
            }
        }
    });
}

#[test]
fn observing_changes_no_logits() {
    within(LIMIT, || {
        let model = Tiny { n_layer: 2, ..Tiny::default() }.model();
        let ids = ids(&model, 50);
        let interrupt = AtomicBool::new(false);
        let run = |look: bool| {
            let mut engine = load(&model, vec![cpu_device(2)], None);
            let mut sequence = engine.new_sequence();
            if look {
                observe(&mut engine, &mut sequence, &ids[..16]);
                engine.truncate(&mut sequence, 0);
            }
            let mut logits = Vec::new();
            let sink = &mut |_: usize, row: &[f32]| logits.push(row.to_vec());
            engine.feed(&mut sequence, &ids, LogitsRequest::All, &interrupt, sink).unwrap();
            logits
        };
        assert_eq!(run(false), run(true));
        // Observed tokens are in the cache like any others.
        let mut engine = load(&model, vec![cpu_device(2)], None);
        let mut sequence = engine.new_sequence();
        observe(&mut engine, &mut sequence, &ids[..49]);
        let mut last = Vec::new();
        let sink = &mut |_: usize, row: &[f32]| last = row.to_vec();
        engine.feed(&mut sequence, &ids[49..], LogitsRequest::Last, &interrupt, sink).unwrap();
        assert!(difference(&run(false)[49], &last) < 2e-3);
    });
}

#[test]
fn an_interrupted_observation_leaves_the_sequence_unchanged() {
    let model = Tiny::default().model();
    let mut engine = load(&model, vec![cpu_device(2)], None);
    let mut sequence = engine.new_sequence();
    let (ids, stop) = (ids(&model, 40), AtomicBool::new(false));
    let mut n_seen = 0;
    let error = engine.observe(&mut sequence, &ids, &stop, &mut |_, _| {
        n_seen += 1;
        stop.store(n_seen == 5, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(matches!(error, Err(Error::Interrupted)));
    assert_eq!((n_seen, sequence.tokens()), (5, &ids[..32]));
    engine.observe(&mut sequence, &ids[32..], &AtomicBool::new(false), &mut |_, _| {}).unwrap();
    let too_many =
        engine.observe(&mut sequence, &[1; 128], &AtomicBool::new(false), &mut |_, _| {});
    assert!(matches!(too_many, Err(Error::ContextFull { .. })));
}
