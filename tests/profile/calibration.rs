//! Collecting profiles: the counts equal PyTorch's, a resumed run gives the same file, and every
//! family has a profile, with or without experts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hal::Device;
use thermocline::embedded;
use thermocline::engine::{Engine, EngineOptions, Error, Sparsity};
use thermocline::gguf::File;
use thermocline::learned::{self, Section, SideFile};
use thermocline::model::{Model, ModelOptions};
use thermocline::profile::{Gatherer, Profile, Text, calibrate, finish};
use thermocline::tokenizer::{Tokenizer, Vocab};

use crate::placement_is_invisible::{cpu_device, ignore_notices};
use crate::support::packed::{families, unpack};
use crate::support::{Tiny, within};

const LIMIT: Duration = Duration::from_secs(240);

pub(super) fn built_in() -> Arc<Model> {
    let file = embedded::file().unwrap();
    Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap())
}

fn load(model: &Arc<Model>, n_ctx: usize, devices: Vec<Device>) -> Engine {
    let sparsity = Sparsity::Exact;
    let options = EngineOptions { n_ctx, n_ubatch: 64, sparsity, ..EngineOptions::default() };
    Engine::load(Arc::clone(model), devices, options, None, ignore_notices(), &|_, _| {}).unwrap()
}

fn ids(model: &Model, n: usize) -> Vec<u32> {
    (0..n).map(|i| (i * i * 11 + 5 * i + 2) as u32 % model.n_vocab() as u32).collect()
}

pub(super) fn collect_profile(model: &Arc<Model>, text: &Text) -> Profile {
    let mut engine = load(model, text.n_ctx(), vec![cpu_device(2)]);
    let mut gatherer = Gatherer::new(model).unwrap();
    let mut profile = text.start(model);
    let interrupt = AtomicBool::new(false);
    calibrate(&mut engine, text, &mut profile, &mut gatherer, &interrupt, &mut |_, _| {}).unwrap();
    finish(model, &mut profile);
    profile
}

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference").join(name)
}

#[test]
fn counts_of_the_built_in_model_match_pytorch() {
    within(LIMIT, || {
        let model = built_in();
        let hyper = &model.hyper;
        let vocab = Vocab::from_metadata(model.file.metadata()).unwrap();
        let tokenizer = Tokenizer::new(vocab).unwrap();
        let text = fs::read_to_string(reference("eval.txt")).unwrap();
        let mut engine = load(&model, 512, vec![cpu_device(2)]);
        let mut gatherer = Gatherer::new(&model).unwrap();
        let mut profile = Profile::new(&model, "stories", 11443);
        let (interrupt, mut active) = (AtomicBool::new(false), 0.0);
        for story in text.split("\n\n").map(str::trim).filter(|story| !story.is_empty()) {
            let mut ids = tokenizer.encode(story, true, false).unwrap();
            ids.truncate(512);
            let mut sequence = engine.new_sequence();
            let look = &mut |layer, observed: &thermocline::engine::ObservedBlock<'_>| {
                gatherer.add(&profile, layer, observed);
            };
            active += engine.observe(&mut sequence, &ids, &interrupt, look).unwrap().active;
            drop(sequence);
            gatherer.commit(&mut profile);
        }
        assert_eq!((profile.n_tokens(), profile.is_finished()), (11443, true));
        // The file has counts as `[n_layer, n_ff]` in U32.
        let counts = unpack(&reference("activation_counts.npy.gz"));
        let counts = &counts[counts.len() - 4 * hyper.n_layer * model.max_n_ff()..];
        let counts: Vec<u64> =
            counts.as_chunks().0.iter().map(|&b| u32::from_le_bytes(b).into()).collect();
        let fires: Vec<u64> =
            profile.layers().iter().flat_map(|l| l.active_counts().to_vec()).collect();
        assert_eq!(fires.iter().sum::<u64>() as f64, active, "the engine counts as many");
        // A neuron whose gate is 0 except for rounding may count differently.
        for (at, (ours, theirs)) in fires.iter().zip(&counts).enumerate() {
            assert!(ours.abs_diff(*theirs) <= 2 + theirs / 500, "{at}: {ours}, not {theirs}");
        }
        let density = profile.summary().density;
        assert!((0.08..0.11).contains(&density), "{density}");
    });
}

#[test]
fn an_interrupted_run_gives_the_same_file() {
    within(LIMIT, || {
        let tiny = Tiny { n_ff: 70, activation: "silu", ..Tiny::default() };
        for model in [Tiny::default().model(), tiny.model()] {
            let text = Text::new(&ids(&model, 300), Some(1), 32, Some(290));
            assert_eq!((text.n_tokens(), text.n_ctx()), (290, 32));
            let folder = tempfile::tempdir().unwrap();
            let whole = folder.path().join("whole.gguf");
            let expected = collect_profile(&model, &text);
            let save = |path: &Path, profile: &Profile| {
                let contents = profile.contents(&model);
                learned::save(path, &model.file, Section::Profile, &contents, false).unwrap();
            };
            save(&whole, &expected);
            let parts = folder.path().join("parts.gguf");
            let mut profile = text.start(&model);
            let mut n_stops = 0;
            while !profile.is_finished() {
                let mut engine = load(&model, 32, vec![cpu_device(2)]);
                let mut gatherer = Gatherer::new(&model).unwrap();
                let (stop, mut n_looks) = (AtomicBool::new(false), 0);
                // Each run is interrupted after its second window.
                let mut profile_then = profile.clone();
                let ended = calibrate(
                    &mut engine,
                    &text,
                    &mut profile_then,
                    &mut gatherer,
                    &stop,
                    &mut |_, n_more| {
                        n_looks += usize::from(n_more == 0);
                        stop.store(n_looks == 2, Ordering::Relaxed);
                    },
                );
                profile = profile_then;
                assert!(matches!(ended, Err(Error::Interrupted) | Ok(_)));
                n_stops += usize::from(ended.is_err());
                save(&parts, &profile);
                let read = SideFile::open(&parts, &model.file).unwrap();
                let read = Profile::read(&read, &model).unwrap().unwrap();
                assert_eq!(read, profile);
                assert!(text.continues(&read));
                profile = read;
            }
            assert!(n_stops > 3, "{n_stops}");
            finish(&model, &mut profile);
            save(&parts, &profile);
            assert_eq!(fs::read(&whole).unwrap(), fs::read(&parts).unwrap());
            let other = Text::new(&ids(&model, 301)[1..], Some(1), 32, Some(290));
            assert!(!other.continues(&profile));
        }
    });
}

#[test]
fn every_family_has_a_profile() {
    within(LIMIT, || {
        let mut n_experts = 0;
        for entry in fs::read_dir(families()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|end| end != "gguf") {
                continue;
            }
            let name = path.display();
            let file = File::open(&path).unwrap();
            let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
            if !model.hyper.causal || model.blocks().next().is_none() {
                continue;
            }
            let text = Text::new(&ids(&model, 90), None, 45, None);
            let profile = collect_profile(&model, &text);
            let summary = profile.summary();
            assert!(summary.density > 0.0 && summary.density < 0.9, "{name}: {summary:?}");
            let sizes = profile.mean_contributions();
            assert!(sizes.iter().flatten().any(|&size| size > 0.0), "{name}");
            let squares = profile.mean_squares().unwrap();
            assert!(squares.iter().flatten().all(|square| square.is_finite()), "{name}");
            for (layer, weights) in profile.layers().iter().zip(&model.layers) {
                assert_eq!(layer.order().len(), weights.n_ff());
                if let Some(experts) = weights.experts() {
                    let used: u64 = layer.expert_counts().iter().sum();
                    assert_eq!(used, 90 * experts.n_used as u64, "{name}");
                    for (expert, &routed) in layer.expert_counts().iter().enumerate() {
                        let fires = &layer.active_counts()[expert * experts.n_ff..][..experts.n_ff];
                        assert!(fires.iter().all(|&n| n <= routed), "{name}");
                    }
                    n_experts += 1;
                }
            }
            let probabilities = profile.probabilities();
            assert_eq!(probabilities.len(), model.hyper.n_layer);
            assert!(probabilities.iter().flatten().all(|p| (0.0..=1.0).contains(p)));
        }
        assert!(n_experts > 4, "{n_experts}");
    });
}

#[test]
fn hot_neurons_come_first_in_the_order() {
    let model = built_in();
    let vocab = Vocab::from_metadata(model.file.metadata()).unwrap();
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let text = fs::read_to_string(reference("eval.txt")).unwrap();
    let tokens = tokenizer.encode(&text[..6000], true, false).unwrap();
    let profile = collect_profile(&model, &Text::new(&tokens, tokenizer.bos(), 512, None));
    let mut distances = [0.0, 0.0];
    for layer in profile.layers() {
        let fires = layer.active_counts();
        let (first, last) = layer.order().split_at(model.max_n_ff() / 2);
        let sum = |list: &[u32]| list.iter().map(|&n| fires[n as usize]).sum::<u64>();
        assert!(sum(first) > sum(last));
        // Neurons that are adjacent in the order have more similar counts than neurons adjacent in
        // the file.
        let apart = |pair: &[u32]| fires[pair[0] as usize].abs_diff(fires[pair[1] as usize]) as f64;
        distances[0] += layer.order().windows(2).map(apart).sum::<f64>();
        let as_stored: Vec<u32> = (0..model.max_n_ff() as u32).collect();
        distances[1] += as_stored.windows(2).map(apart).sum::<f64>();
    }
    assert!(distances[0] < 0.9 * distances[1], "{distances:?}");
}
