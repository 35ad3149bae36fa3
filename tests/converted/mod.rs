//! Repacked weights: cached in a file, used only if the file is valid, and without effect on the
//! output.

mod command;
mod memory;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hal::format::Format;
use hal::{Bytes, Device, StoredPack};
use thermocline::converted::{self, RepackFile, StaleFile, Weight, WriteError};
use thermocline::devices;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, Sparsity, to_repack};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};

use crate::support::Tiny;

fn tiny(seed: u64) -> Tiny {
    Tiny { seed, format: Format::Q4_0, ..Tiny::default() }
}

fn model_at(path: &Path) -> Arc<Model> {
    Arc::new(Model::from_file(File::open(path).unwrap(), &ModelOptions::default()).unwrap())
}

fn options() -> EngineOptions {
    EngineOptions { n_ctx: 64, n_ubatch: 16, ..EngineOptions::default() }
}

/// Logits of all tokens of a short sequence, and the bytes that the ledger counts for the CPU.
fn logits(model: &Arc<Model>, options: EngineOptions) -> (Vec<f32>, Bytes) {
    let cpu = devices::cpu(Some(2));
    let quiet = Arc::new(|text: &str| panic!("{text}"));
    let mut engine =
        Engine::load(Arc::clone(model), vec![cpu], options, None, quiet, &|_, _| {}).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| (i * i + 3) % 80).collect();
    let mut sequence = engine.new_sequence();
    let mut all = Vec::new();
    let sink = &mut |_: usize, row: &[f32]| all.extend_from_slice(row);
    engine.feed(&mut sequence, &tokens, LogitsRequest::All, &AtomicBool::new(false), sink).unwrap();
    (all, engine.devices()[0].ledger().used())
}

/// A model in a folder, and its repacked weights in the subfolder `a/cache`.
struct Fixture {
    _folder: tempfile::TempDir,
    source: PathBuf,
    target: PathBuf,
    cpu: Device,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("tiny.gguf");
        fs::write(&source, tiny(1).bytes()).unwrap();
        let cpu = devices::cpu(Some(3));
        let (model, cache) = (model_at(&source), folder.path().join("a/cache"));
        let weights = to_repack(&model, &options(), &cpu);
        let target = converted::path(&cache, &model.file, &weights).unwrap();
        converted::write(&target, &model.file, &weights, &cpu, &|_, _| ControlFlow::Continue(()))
            .unwrap();
        Fixture { _folder: folder, source, target, cpu }
    }

    fn weights(&self, model: &Model) -> Vec<Weight> {
        to_repack(model, &options(), &self.cpu)
    }

    fn open(&self) -> Result<Arc<RepackFile>, StaleFile> {
        let model = model_at(&self.source);
        RepackFile::open(&self.target, &model.file, &self.weights(&model))
    }
}

#[test]
fn cached_packs_give_the_same_bits_and_take_no_memory() {
    let fixture = Fixture::new();
    let model = model_at(&fixture.source);
    let kept = EngineOptions { converted: Some(fixture.open().unwrap()), ..options() };
    let (expected, in_memory) = logits(&model, options());
    let (found, mapped) = logits(&model, kept);
    assert!(found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits()));
    let packs = converted::size(&fixture.weights(&model));
    assert!(mapped + packs <= in_memory, "{mapped} booked, without the file {in_memory}");
    let folder = fixture.target.parent().unwrap();
    assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "nothing else is left behind");
}

/// The writing can be stopped before each weight, and then leaves nothing behind.
#[test]
fn a_stopped_writing_leaves_no_file() {
    let fixture = Fixture::new();
    let model = model_at(&fixture.source);
    let (weights, target) = (fixture.weights(&model), fixture.target.with_file_name("stopped"));
    for n_calls in 1..=weights.len() {
        let calls = AtomicUsize::new(0);
        let stop = |_: u64, _: u64| match calls.fetch_add(1, Ordering::Relaxed) + 1 {
            n if n == n_calls => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let written = converted::write(&target, &model.file, &weights, &fixture.cpu, &stop);
        assert!(matches!(written, Err(WriteError::Stopped)), "{n_calls}: {written:?}");
        let folder = fixture.target.parent().unwrap();
        assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "{n_calls}");
    }
}

#[test]
fn logits_without_repacking_are_equal_within_rounding() {
    for format in [Format::F16, Format::Q4_0, Format::Q8_0] {
        let model = Tiny { format, ..tiny(7) }.model();
        let (expected, with) = logits(&model, options());
        let (found, without) = logits(&model, EngineOptions { repack: false, ..options() });
        let cpu = devices::cpu(Some(1));
        assert!(to_repack(&model, &EngineOptions { repack: false, ..options() }, &cpu).is_empty());
        assert!(without < with);
        let largest = expected.iter().fold(0f32, |max, v| max.max(v.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 0.03 * largest, "{format}: {found} {expected}");
        }
    }
}

#[test]
fn changed_models_and_damaged_files_are_detected() {
    let fixture = Fixture::new();
    let good = fs::read(&fixture.target).unwrap();
    let check = |bytes: &[u8], is: fn(&StaleFile) -> bool| {
        fs::write(&fixture.target, bytes).unwrap();
        let stale = fixture.open().unwrap_err();
        assert!(is(&stale), "{stale}");
    };
    for len in [0, 3, 100, good.len() / 2, good.len() - 4080] {
        check(&good[..len], |stale| matches!(stale, StaleFile::Damaged(_)));
    }
    check(&tiny(1).bytes(), |stale| matches!(stale, StaleFile::Other));
    let first = {
        fs::write(&fixture.target, &good).unwrap();
        let file = File::open(&fixture.target).unwrap();
        file.tensors()[1].offset() as usize
    };
    let mut bytes = good.clone();
    bytes[first] ^= 1;
    check(&bytes, |stale| matches!(stale, StaleFile::Sum { label } if label == "blk.1.ffn_down"));
    fs::write(&fixture.target, &good).unwrap();
    assert!(fixture.open().is_ok());
    // A model with the same header and other weights.
    fs::write(&fixture.source, tiny(2).bytes()).unwrap();
    assert!(matches!(fixture.open(), Err(StaleFile::Model)));
    fs::remove_file(&fixture.target).unwrap();
    assert!(matches!(fixture.open(), Err(StaleFile::Absent)));
}

#[test]
fn a_changed_header_byte_is_detected_or_harmless() {
    let fixture = Fixture::new();
    let good = fs::read(&fixture.target).unwrap();
    let model = model_at(&fixture.source);
    let weights = fixture.weights(&model);
    let packs = |kept: &RepackFile| -> Vec<Vec<u8>> {
        let find = |w: &Weight| kept.find(&w.label, &w.pack, w.stored).unwrap();
        weights.iter().map(|w| (*find(w)).as_ref().to_vec()).collect()
    };
    let expected = packs(&fixture.open().unwrap());
    let header = File::open(&fixture.target).unwrap().tensors()[0].offset() as usize;
    for at in 0..header.min(1500) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&fixture.target, &bytes).unwrap();
        if let Ok(kept) = RepackFile::open(&fixture.target, &model.file, &weights) {
            assert!(packs(&kept) == expected, "byte {at}");
        }
    }
}

#[test]
fn every_changed_byte_of_a_pack_is_detected() {
    let fixture = Fixture::new();
    let good = fs::read(&fixture.target).unwrap();
    let file = File::open(&fixture.target).unwrap();
    let packs: Vec<_> =
        file.tensors().iter().map(|t| t.offset()..t.offset() + t.n_bytes()).collect();
    let (mut refused, mut gaps) = (0, 0);
    for at in (packs[0].start as usize..good.len()).step_by(61) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&fixture.target, &bytes).unwrap();
        match (fixture.open(), packs.iter().any(|pack| pack.contains(&(at as u64)))) {
            (Err(StaleFile::Sum { .. }), true) => refused += 1,
            (Ok(_), false) => gaps += 1,
            (found, _) => panic!("byte {at}: {found:?}"),
        }
    }
    assert!(refused > 100 && gaps > 0, "{refused} {gaps}");
}

#[test]
#[cfg(unix)]
fn a_replaced_model_of_the_same_size_and_time_is_detected() {
    let fixture = Fixture::new();
    let time = fs::metadata(&fixture.source).unwrap().modified().unwrap();
    let mut bytes = fs::read(&fixture.source).unwrap();
    let model = model_at(&fixture.source);
    let down = fixture.weights(&model)[0].source.desc().bytes().unwrap().0;
    let tensor = model.file.tensors().iter().find(|t| t.name.ends_with("ffn_down.weight"));
    bytes[(tensor.unwrap().offset() + down / 4) as usize] ^= 1;
    let file = fs::OpenOptions::new().write(true).open(&fixture.source).unwrap();
    std::io::Write::write_all(&mut &file, &bytes).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    assert_eq!(fs::metadata(&fixture.source).unwrap().modified().unwrap(), time);
    assert!(matches!(fixture.open(), Err(StaleFile::Model)));
}

/// A predictor needs a down projection stored by neuron. If the file has none and repacking is off,
/// gates select the neurons.
#[test]
fn without_a_transposed_down_the_predictor_is_not_used() {
    for format in [Format::F16, Format::Q4_0, Format::Q8_0] {
        for pwri in [false, true] {
            let model = Tiny { format, pwri, rank: 32, ..tiny(3) }.model();
            let converted = to_repack(&model, &options(), &devices::cpu(Some(1)));
            let ends = |part| move |weight: &&Weight| weight.label.ends_with(part);
            let [bundles, downs] =
                ["ffn_bundle", "ffn_down"].map(|part| converted.iter().filter(ends(part)).count());
            let expected = if pwri { (3, 0) } else { (3, 3) };
            assert_eq!((bundles, downs), expected, "PowerInfer's files have down in rows");
            assert_eq!(converted.len(), bundles + downs);
            let cols = if pwri { 3 } else { 2 } * model.hyper.n_embd;
            let wide = converted.iter().filter(ends("ffn_bundle"));
            assert!(wide.into_iter().all(|weight| weight.pack.source.n_cols == cols));
            let as_it_is = EngineOptions { repack: false, ..options() };
            let exact = EngineOptions { sparsity: Sparsity::Exact, ..as_it_is.clone() };
            let counts =
                [options(), as_it_is.clone(), exact.clone()].map(|o| o.n_predicting(&model));
            assert_eq!(counts, if pwri { [3, 3, 0] } else { [3, 0, 0] });
            let [predicted, as_it_is, exact] =
                [options(), as_it_is, exact].map(|options| logits(&model, options).0);
            assert_eq!(as_it_is, if pwri { predicted.clone() } else { exact.clone() }, "{format}");
            assert_ne!(predicted, exact, "a random predictor misses active neurons");
        }
    }
}

#[test]
fn each_layout_has_its_own_file() {
    let fixture = Fixture::new();
    let model = model_at(&fixture.source);
    let mut weights = fixture.weights(&model);
    weights[0].stored.layout = "plain/0";
    let stale = RepackFile::open(&fixture.target, &model.file, &weights).unwrap_err();
    assert!(matches!(stale, StaleFile::Other), "{stale}");
    let folder = fixture.target.parent().unwrap();
    assert_ne!(converted::path(folder, &model.file, &weights).unwrap(), fixture.target);
    let kept = fixture.open().unwrap();
    let Weight { label, pack, stored, .. } = &fixture.weights(&model)[1];
    assert!(kept.find(label, pack, *stored).is_some());
    assert!(kept.find(label, pack, StoredPack { layout: "plain/0", ..*stored }).is_none());
    assert!(kept.find("blk.9.ffn_down", pack, *stored).is_none());
}

#[test]
fn a_model_in_memory_has_no_file() {
    let model = tiny(1).model();
    let weights = to_repack(&model, &options(), &devices::cpu(Some(1)));
    assert_eq!(weights.len(), 3);
    assert_eq!(converted::path(Path::new("/nowhere"), &model.file, &weights), None);
}
