//! Random schedules: four sequences that are fed together, forked, truncated, rolled back, saved
//! and restored, on devices that may be lost, have the same logits as each sequence in an engine of
//! its own.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hal::format::Format;
use hal::{Backend, Bytes, Device, DeviceId, KvCache};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sim::SimBackend;
use thermocline::engine::{
    DenseFrom, Engine, EngineOptions, Error, Feed, LogitsRequest, Sequence, Streaming,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::placement::Placement;

use super::{feed, load, options};
use crate::placement_is_invisible::{cpu_device, difference, random_placement, sim_device};
use crate::support::packed::families;
use crate::support::{Tiny, within};

pub(super) const N: usize = 4;
/// Maximum number of tokens of a sequence: a little more than two cache blocks.
const MAX_TOKENS: usize = 70;

/// The logits after each list of tokens that was asked for, computed once by an engine with one
/// sequence.
pub(super) struct SingleSequence {
    engine: Engine,
    sequence: Sequence,
    known: HashMap<Vec<u32>, Vec<f32>>,
}

impl SingleSequence {
    pub(super) fn new(engine: Engine) -> SingleSequence {
        SingleSequence { sequence: engine.new_sequence(), engine, known: HashMap::new() }
    }

    fn logits(&mut self, tokens: &[u32]) -> &Vec<f32> {
        if !self.known.contains_key(tokens) {
            let held = self.sequence.tokens().iter().zip(tokens);
            let same = held.take_while(|(a, b)| a == b).count().min(tokens.len() - 1);
            self.engine.truncate(&mut self.sequence, same);
            let rows = feed(&mut self.engine, &mut self.sequence, &tokens[same..]);
            for (i, row) in rows.into_iter().enumerate() {
                self.known.insert(tokens[..=same + i].to_vec(), row);
            }
        }
        &self.known[tokens]
    }
}

/// Four sequences and their expected tokens.
struct Schedule<'a> {
    engine: Engine,
    sequences: Vec<Sequence>,
    tokens: Vec<Vec<u32>>,
    alone: &'a mut SingleSequence,
    rng: ChaCha8Rng,
    /// Largest allowed difference, in units of the logits' spread; 0 for the same bits.
    bound: f32,
}

impl Schedule<'_> {
    fn step(&mut self) {
        let rng = &mut self.rng;
        let mut requests = Vec::new();
        for i in 0..N {
            // Most steps are decode.
            let most = if rng.random_bool(0.7) { 2 } else { 20 };
            let n = rng.random_range(0..most).min(MAX_TOKENS - self.tokens[i].len());
            let more: Vec<u32> = (0..n).map(|_| rng.random_range(0..8)).collect();
            let want = [LogitsRequest::Last, LogitsRequest::All, LogitsRequest::None]
                [rng.random_range(0..3)];
            requests.push((more, want));
        }
        let mut got: Vec<(usize, usize, Vec<f32>)> = Vec::new();
        let sequences = self.sequences.iter_mut().zip(&requests);
        let mut feeds: Vec<_> = sequences
            .map(|(sequence, (tokens, want))| Feed { sequence, tokens, want: *want })
            .collect();
        let sink =
            &mut |i: usize, position: usize, row: &[f32]| got.push((i, position, row.to_vec()));
        self.engine.step(&mut feeds, &AtomicBool::new(false), sink).unwrap();
        let mut n_expected = 0;
        for (i, (more, want)) in requests.iter().enumerate() {
            self.tokens[i].extend(more);
            n_expected += match want {
                LogitsRequest::None => 0,
                LogitsRequest::Last => more.len().min(1),
                LogitsRequest::All => more.len(),
            };
        }
        assert_eq!(got.len(), n_expected);
        for (i, position, row) in got {
            let expected = self.alone.logits(&self.tokens[i][..=position]);
            match self.bound {
                0.0 => assert_eq!(row, *expected, "sequence {i} at {position}"),
                bound => {
                    let found = difference(&vec![expected.clone()], &vec![row]);
                    assert!(found <= bound, "sequence {i} at {position}: {found}");
                }
            }
        }
    }

    fn random_action(&mut self) {
        let [i, j] = [0; 2].map(|_| self.rng.random_range(0..N));
        match self.rng.random_range(0..12) {
            0 if i != j => {
                self.sequences[j] = self.engine.fork(&self.sequences[i]);
                self.tokens[j] = self.tokens[i].clone();
            }
            1 | 2 => {
                let n = self.rng.random_range(0..=self.tokens[i].len());
                let cached = self.engine.truncate(&mut self.sequences[i], n);
                assert!(cached <= n);
                self.tokens[i].truncate(n);
            }
            3 => {
                self.engine.checkpoint(&mut self.sequences[i]).unwrap();
            }
            4 if i != j => {
                let saved = self.engine.save(&self.sequences[i]);
                self.sequences[j] = self.engine.new_sequence();
                self.tokens[j].clear();
                match saved.and_then(|saved| self.engine.restore(&saved)) {
                    Ok(sequence) => {
                        self.sequences[j] = sequence;
                        self.tokens[j] = self.tokens[i].clone();
                    }
                    // A device whose budget is full to the last bytes has no memory for copies.
                    Err(error) => {
                        let full = matches!(error, Error::Device(hal::Error::OutOfMemory { .. }));
                        let mut others = self.engine.devices()[1..].iter();
                        let limited = others.any(|device| device.ledger().budget() < Bytes::MAX);
                        assert!(full && limited, "{error}");
                    }
                }
            }
            5 => {
                self.sequences[i] = self.engine.new_sequence();
                self.tokens[i].clear();
            }
            _ => self.step(),
        }
        for (sequence, tokens) in self.sequences.iter().zip(&self.tokens) {
            assert_eq!(sequence.tokens(), tokens);
        }
    }
}

/// Runs `n_actions` random actions; `between` is called before each.
pub(super) fn run(
    engine: Engine,
    alone: &mut SingleSequence,
    (seed, n_actions, bound): (u64, usize, f32),
    between: &mut dyn FnMut(usize),
) {
    let sequences = (0..N).map(|_| engine.new_sequence()).collect();
    let mut schedule = Schedule {
        engine,
        sequences,
        tokens: vec![Vec::new(); N],
        alone,
        rng: ChaCha8Rng::seed_from_u64(seed),
        bound,
    };
    for act in 0..n_actions {
        between(act);
        schedule.random_action();
    }
}

/// A model with exact skipping; a dense model with a sliding window; a model with a predictor that
/// selects the same neurons on every device; a model with per-layer embeddings, some of whose
/// layers share the KV cache of earlier layers; latent attention.
fn models() -> Vec<Arc<Model>> {
    let chosen = Tiny { pwri: true, rank: 8, marked: true, ..Tiny::default() };
    let window = Tiny { window: Some(9), activation: "silu", ..Tiny::default() };
    let made = [Tiny::default(), window, chosen];
    made.iter().map(Tiny::model).chain(["gemma4-shared", "deepseek2"].map(family)).collect()
}

#[test]
fn random_schedules_have_the_bits_of_single_sequences() {
    within(Duration::from_secs(120), || {
        for model in models() {
            let mut alone =
                SingleSequence::new(load(&model, vec![cpu_device(2)], options(1), None));
            for seed in 0..25 {
                let engine = load(&model, vec![cpu_device(2)], options(N), None);
                run(engine, &mut alone, (seed, 24, 0.0), &mut |_| {});
            }
        }
    });
}

#[test]
fn lists_and_all_rows_have_the_bits_of_single_sequences() {
    within(Duration::from_secs(120), || {
        for model in models() {
            let mut alone =
                SingleSequence::new(load(&model, vec![cpu_device(2)], options(1), None));
            let forced = [0.0, 0.5, 1.0, 2.0].map(|share| DenseFrom([share; 4]));
            let mut shares = Vec::new();
            for dense_from in forced {
                let options = EngineOptions { dense_from, ..options(N) };
                let engine = load(&model, vec![cpu_device(2)], options, None);
                run(engine, &mut alone, (7, 24, 0.0), &mut |_| {});
                // Every sequence gets the same tokens, so that the counts of all engines agree.
                let options = EngineOptions { dense_from, ..self::options(N) };
                let mut engine = load(&model, vec![cpu_device(2)], options, None);
                let mut sequences: Vec<Sequence> = (0..N).map(|_| engine.new_sequence()).collect();
                for token in 0..6 {
                    let mut feeds: Vec<Feed<'_>> = Vec::new();
                    let tokens = [[token], [token + 1], [7 - token], [3]];
                    for (sequence, tokens) in sequences.iter_mut().zip(&tokens) {
                        feeds.push(Feed { sequence, tokens, want: LogitsRequest::None });
                    }
                    engine.step(&mut feeds, &AtomicBool::new(false), &mut |_, _, _| {}).unwrap();
                }
                let union = engine.take_stats().unwrap().union;
                shares.push((union.dense().unwrap(), union.active().unwrap()));
                assert_eq!(engine.take_stats().unwrap().union.active(), None);
            }
            let dense: Vec<f64> = shares.iter().map(|(dense, _)| *dense).collect();
            assert!(dense.is_sorted_by(|a, b| a >= b) && dense[0] > 0.5, "{dense:?}");
            assert_eq!(dense[3], 0.0);
            assert!(shares.iter().all(|(_, active)| *active == shares[0].1 && *active > 0.0));
        }
    });
}

/// Models with recurrent layers, by the names of their files.
pub(super) const RECURRENT: [&str; 8] = [
    "lfm2",
    "qwen35",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
    "mamba2",
    "granitehybrid-moe",
    "nemotron_h",
];

pub(super) fn family(name: &str) -> Arc<Model> {
    let file = File::open(&families().join(format!("{name}.gguf"))).unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

#[test]
fn recurrent_sequences_roll_back_to_checkpoints() {
    within(Duration::from_secs(120), || {
        let blocks = crate::families::blocks::models().chain(crate::families::deepseek4::models());
        let blocks = blocks.map(|(_, model)| model);
        for model in RECURRENT.map(family).into_iter().chain(blocks) {
            let options = |n_seq| EngineOptions { n_checkpoint: 3, ..options(n_seq) };
            let mut alone =
                SingleSequence::new(load(&model, vec![cpu_device(2)], options(1), None));
            for seed in 0..20 {
                let engine = load(&model, vec![cpu_device(2)], options(N), None);
                run(engine, &mut alone, (seed, 24, 0.0), &mut |_| {});
            }
            for seed in 0..10 {
                let (backend, devices, placement) = simulated(&model, seed);
                let engine = load(&model, devices, options(N), Some(placement));
                let between = &mut |act: usize| {
                    if act == 8 && seed % 3 == 0 {
                        backend.lose_after(seed * 5);
                    }
                };
                run(engine, &mut alone, (seed, 24, 2e-3), between);
            }
        }
    });
}

/// The backend of a simulated device, the CPU and that device, and a random placement on both.
fn simulated(model: &Model, seed: u64) -> (Arc<SimBackend>, Vec<Device>, Placement) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (backend, device) = sim_device(1, Bytes::MAX, Duration::ZERO..Duration::ZERO, seed);
    let placement = random_placement(&mut rng, model, 2);
    (backend, vec![cpu_device(1), device], placement)
}

#[test]
fn random_schedules_on_two_devices_survive_a_loss() {
    within(Duration::from_secs(120), || {
        for model in models() {
            let mut alone =
                SingleSequence::new(load(&model, vec![cpu_device(1)], options(1), None));
            for seed in 0..25 {
                let (backend, devices, placement) = simulated(&model, seed);
                let options = match seed % 4 {
                    0 => EngineOptions { adapt: true, ..options(N) },
                    // Longer steps, with weights streamed to the device.
                    1 => {
                        let streaming = Streaming::Forced { from: 17, chunk_bytes: Bytes(8 << 10) };
                        EngineOptions { n_ubatch: 64, streaming, ..options(N) }
                    }
                    _ => options(N),
                };
                let engine = load(&model, devices, options, Some(placement));
                let lost_at = (seed % 3 == 0).then_some(5 + seed as usize % 10);
                let between = &mut |act: usize| {
                    if lost_at == Some(act) {
                        backend.lose_after(seed % 40);
                    }
                };
                run(engine, &mut alone, (seed, 24, 2e-3), between);
            }
        }
    });
}

/// Runs `n` schedules of each type of model on the device of `backend`: first all on the device,
/// then split.
pub(crate) fn on_device(backend: &Arc<dyn Backend>, n: u64) {
    let files = RECURRENT.iter().chain(&["gemma4-shared"]).map(|name| family(name));
    for model in files.chain([Tiny::default().model()]) {
        // Recurrent layers amplify the errors of rounding keys and values to F16.
        let kv_formats = KvCache::both(Format::F32);
        let options = |n_seq| EngineOptions { n_checkpoint: 3, kv_formats, ..options(n_seq) };
        let mut alone = SingleSequence::new(load(&model, vec![cpu_device(1)], options(1), None));
        for seed in 0..n {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let placement = match seed {
                0 => Placement::all_on(1, model.hyper.n_layer),
                _ => random_placement(&mut rng, &model, 2),
            };
            let device = Device::new(Arc::clone(backend), DeviceId(1), Bytes::MAX);
            let engine = load(&model, vec![cpu_device(1), device], options(N), Some(placement));
            run(engine, &mut alone, (seed, 16, 1e-3), &mut |_| {});
        }
    }
}
