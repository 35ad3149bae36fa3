//! Neurons that a predictor chooses, read from disk one by one: the words are those of the model in
//! memory, to the bit, whatever the budget and wherever the rows are read from.
#![cfg(unix)]

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hal::Bytes;
use hal::format::Format;
use thermocline::converted::{self, RepackFile};
use thermocline::engine::{
    Engine, EngineOptions, Error, LogitsRequest, NeuronReads, PagingOptions, PlannerInputs,
    to_repack,
};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::synthetic::Spec;

use crate::placement_is_invisible::{cpu_device, ignore_notices};
use crate::support::Tiny;

/// A model in a folder, where its repack files go.
struct Fixture {
    folder: tempfile::TempDir,
    model: Arc<Model>,
}

impl Fixture {
    fn new(bytes: &[u8]) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("model"), bytes).unwrap();
        Fixture::in_folder(folder)
    }

    fn synthetic(spec: &Spec) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        spec.write(&folder.path().join("model"), &mut |_, _| true).unwrap();
        Fixture::in_folder(folder)
    }

    fn in_folder(folder: tempfile::TempDir) -> Fixture {
        let file = File::open(&folder.path().join("model")).unwrap();
        let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
        Fixture { folder, model }
    }

    fn options(&self, budget: Option<Bytes>, neurons: NeuronReads) -> EngineOptions {
        let paging = budget.map(|budget| PagingOptions { budget, depth: 3, neurons });
        EngineOptions { n_ctx: 128, n_ubatch: 32, paging, ..EngineOptions::default() }
    }

    /// The repack file for `options`, written if it does not exist; `None` if nothing is repacked.
    fn repacked(&self, options: &EngineOptions) -> Option<Arc<RepackFile>> {
        let (cpu, file) = (cpu_device(2), &self.model.file);
        let weights = to_repack(&self.model, options, &cpu);
        if weights.is_empty() {
            return None;
        }
        let path = converted::path(self.folder.path(), file, &weights).unwrap();
        if !path.exists() {
            let go_on = |_, _| ControlFlow::Continue(());
            converted::write(&path, file, &weights, &cpu, &go_on).unwrap();
        }
        Some(RepackFile::open(&path, file, &weights).unwrap())
    }

    fn load(&self, options: EngineOptions) -> Result<Engine, Error> {
        let (model, devices) = (Arc::clone(&self.model), vec![cpu_device(2)]);
        Engine::load(model, devices, options, None, ignore_notices(), &|_, _| {})
    }

    /// The budget that leaves `weights` bytes for weights.
    fn memory_for(&self, weights: u64) -> Bytes {
        let in_place = EngineOptions { repack: false, ..self.options(None, NeuronReads::Layer) };
        let whole = self.load(in_place).unwrap();
        whole.devices()[0].ledger().used() + Bytes(weights)
    }

    /// Loads with a repack file. A budget that is too small is enlarged.
    fn load_in(&self, budget: &mut Bytes, neurons: NeuronReads) -> Engine {
        loop {
            let options = self.options(Some(*budget), neurons);
            let converted = self.repacked(&options);
            match self.load(EngineOptions { converted, ..options }) {
                Ok(engine) => return engine,
                Err(Error::Store(store::Error::Capacity { needed, capacity })) => {
                    assert!(needed > capacity);
                    *budget += needed - capacity;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// The logits of a prompt of several micro-batches and of single tokens after it.
fn logits(engine: &mut Engine) -> Vec<Vec<f32>> {
    let n_vocab = engine.model().n_vocab() as u32;
    let ids: Vec<u32> = (0..57u32).map(|i| (i * i * 7 + 3 * i + 1) % n_vocab).collect();
    let (mut all, never) = (Vec::new(), AtomicBool::new(false));
    let mut sequence = engine.new_sequence();
    let (prompt, rest) = ids.split_at(45);
    for part in [prompt].into_iter().chain(rest.chunks(1)) {
        let mut each = |_: usize, row: &[f32]| all.push(row.to_vec());
        engine.feed(&mut sequence, part, LogitsRequest::All, &never, &mut each).unwrap();
    }
    all
}

fn tiny() -> Tiny {
    Tiny {
        n_layer: 6,
        // A unit takes whole pages, so its rows must not be much smaller.
        n_embd: 1024,
        n_ff: 640,
        format: Format::Q8_0,
        pwri: true,
        rank: 32,
        ..Tiny::default()
    }
}

#[test]
fn any_budget_gives_the_bits_of_neurons_in_memory() {
    let f16 = Tiny { format: Format::F16, n_layer: 4, ..tiny() };
    for (name, tiny) in [("Q8_0", tiny()), ("F16", f16)] {
        let fixture = Fixture::new(&tiny.bytes());
        let whole = fixture.load(fixture.options(None, NeuronReads::Layer));
        let expected = logits(&mut whole.unwrap());
        for neurons in [NeuronReads::Rows, NeuronReads::Bundles] {
            let mut budget = Bytes(1);
            let mut smallest = fixture.load_in(&mut budget, neurons);
            let tiers = smallest.tiers().unwrap();
            assert!(smallest.devices()[0].ledger().used() <= budget, "{name}");
            assert!(tiers.row_reads_per_token > 0.0, "{name}: {tiers:?}");
            assert!(logits(&mut smallest) == expected, "{name}, {neurons:?}, smallest budget");
            let disk = smallest.take_stats().unwrap().disk;
            assert!(disk.misses > 1000 && disk.hits > 0, "{name}, {neurons:?}: {disk:?}");
            if neurons == NeuronReads::Bundles {
                // Each neuron has its own pages: 3,264 or 6,144 bytes of rows.
                let each = tiers.rows_per_token.0 as f64 / tiers.row_reads_per_token;
                let expected = if name == "F16" { 8192.0 } else { 4096.0 };
                assert!((each - expected).abs() < 1.0, "{name}: {each} bytes a neuron");
            }
            for eighths in [1, 6] {
                let mut budget = budget + Bytes(tiers.on_disk().0 * eighths / 8 + 4096);
                let mut engine = fixture.load_in(&mut budget, neurons);
                assert!(logits(&mut engine) == expected, "{name}, {neurons:?} with {budget}");
            }
        }
    }
}

#[test]
fn neurons_that_no_token_needs_are_not_read() {
    let mut spec = Spec::parse("1024x4x4096x8/2:Q8_0:relu:pwri").unwrap();
    spec.n_vocab = 512;
    let fixture = Fixture::synthetic(&spec);
    let budget = fixture.memory_for(48 << 20);
    let read = |neurons| {
        let mut engine = fixture.load_in(&mut budget.clone(), neurons);
        let mut sequence = engine.new_sequence();
        let mut read = Vec::new();
        for token in 0..40 {
            let mut none = |_: usize, _: &[f32]| {};
            let never = AtomicBool::new(false);
            engine.feed(&mut sequence, &[token], LogitsRequest::None, &never, &mut none).unwrap();
            read.push(engine.take_stats().unwrap().disk.read.0);
        }
        read[20..].iter().sum::<u64>()
    };
    let (layers, bundles) = (read(NeuronReads::Layer), read(NeuronReads::Bundles));
    assert!(bundles > 0 && bundles * 2 < layers, "{bundles} bytes, with whole layers {layers}");
}

/// The predictor of the next layer orders reads before its layer begins.
#[test]
fn neurons_of_the_next_layer_are_read_ahead() {
    let mut spec = Spec::parse("1024x4x4096x8/2:Q8_0:relu:pwri").unwrap();
    spec.n_vocab = 512;
    let fixture = Fixture::synthetic(&spec);
    let mut engine = fixture.load_in(&mut fixture.memory_for(48 << 20), NeuronReads::Bundles);
    let (mut sequence, never) = (engine.new_sequence(), AtomicBool::new(false));
    for token in 0..20 {
        let mut none = |_: usize, _: &[f32]| {};
        engine.feed(&mut sequence, &[token], LogitsRequest::None, &never, &mut none).unwrap();
    }
    let disk = engine.take_stats().unwrap().disk;
    // Nothing guesses for the first of four layers.
    assert!(disk.ahead * 2 > disk.misses, "{disk:?}");
    assert!(disk.wasted.0 * 4 < disk.read.0, "{disk:?}");
}

/// Predictors stay in memory where attention does not fit, so that neurons are read ahead there too.
#[test]
fn predictors_stay_in_memory_beside_attention_on_disk() {
    let mut spec = Spec::parse("1024x4x4096x8/2:Q8_0:relu:pwri").unwrap();
    spec.n_vocab = 512;
    let fixture = Fixture::synthetic(&spec);
    let mut budget = Bytes(1);
    drop(fixture.load_in(&mut budget, NeuronReads::Bundles));
    budget += Bytes(4 << 20);
    let mut engine = fixture.load_in(&mut budget, NeuronReads::Bundles);
    let tiers = engine.tiers().unwrap();
    assert!(tiers.read_ahead > Bytes(0), "all of attention is in memory: {tiers:?}");
    let (mut sequence, never) = (engine.new_sequence(), AtomicBool::new(false));
    for token in 0..20 {
        let mut none = |_: usize, _: &[f32]| {};
        engine.feed(&mut sequence, &[token], LogitsRequest::None, &never, &mut none).unwrap();
    }
    let disk = engine.take_stats().unwrap().disk;
    // Chunks of attention are some hundred of these reads.
    assert!(disk.ahead * 2 > disk.misses, "{disk:?}");
}

/// The room is filled with the neurons that the profile says are used most, before the first token.
#[test]
fn a_profile_fills_the_memory_with_the_neurons_used_most() {
    let fixture = Fixture::new(&Tiny { n_ff: 2048, ..tiny() }.bytes());
    let use_of = |neuron: usize| if neuron.is_multiple_of(4) { 0.9 } else { 0.01 };
    let uses: Vec<Vec<f32>> = vec![(0..2048).map(use_of).collect(); 6];
    let placing = PlannerInputs { uses: Some(Arc::new(uses)), ..PlannerInputs::default() };
    let options = fixture.options(Some(fixture.memory_for(50 << 20)), NeuronReads::Bundles);
    let converted = fixture.repacked(&options);
    let mut engine = fixture.load(EngineOptions { converted, placing, ..options }).unwrap();
    let tiers = engine.tiers().unwrap();
    assert!(tiers.by_profile && tiers.hits() > 0.9, "{tiers:?}");
    let whole = fixture.load(fixture.options(None, NeuronReads::Layer));
    assert!(logits(&mut engine) == logits(&mut whole.unwrap()));
}

/// Transposed weights of experts are in the repack file as one matrix for all experts, so they are
/// read with their layer.
#[test]
fn repacked_experts_on_disk_give_the_bits_of_experts_in_memory() {
    let mut spec = Spec::parse("128x3x96x4/2*8/3:Q8_0:relu").unwrap();
    spec.n_vocab = 512;
    let fixture = Fixture::synthetic(&spec);
    let whole = fixture.options(None, NeuronReads::Layer);
    let converted = fixture.repacked(&whole);
    assert!(converted.is_some());
    let expected = logits(&mut fixture.load(EngineOptions { converted, ..whole }).unwrap());
    let mut budget = Bytes(1);
    let mut engine = fixture.load_in(&mut budget, NeuronReads::Layer);
    assert!(engine.tiers().unwrap().on_disk() > Bytes(0));
    assert!(logits(&mut engine) == expected);
}
