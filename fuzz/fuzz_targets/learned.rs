//! Reads side files of tiny models and PowerInfer's list of GPU neurons, with some bytes changed,
//! and arbitrary bytes. Each read must succeed or return an error. The fuzzer cannot guess
//! checksums, so the sections of a file are also read with correct checksums.
#![no_main]

mod made;

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use thermocline::gguf::{Container, File, TensorType, Writer};
use thermocline::learned::{self, Section, SectionContents, SideFile};
use thermocline::model::{Model, ModelOptions};
use thermocline::predictor::{self, ERRORS, Layers};
use thermocline::profile::{self, Counts, Profile};

/// A model with exact zeros (ReLU), a model with experts, and a model with neither.
const MODELS: [&str; 3] = ["llama-relu", "qwen2moe", "qwen2"];

struct Corpus {
    models: Vec<Model>,
    /// Valid files, which the fuzzer changes.
    files: Vec<Vec<u8>>,
}

static CORPUS: LazyLock<Corpus> = LazyLock::new(|| {
    let open = |name: &&str| {
        let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/families");
        let path = families.join(format!("{name}.gguf.planes.gz"));
        let unpacked = planes::unpack(&path, 2).expect("the model is compressed");
        let file = File::from_vec(unpacked, "model").expect("the model is a GGUF file");
        Model::from_file(file, &ModelOptions::default()).expect("the model is supported")
    };
    let models: Vec<Model> = MODELS.iter().map(open).collect();
    let mut files = vec![gpu_index(&models[0])];
    for model in &models {
        files.push(saved(model, Section::Profile, &profile_of(model)));
    }
    files.push(saved(&models[0], Section::Predictor, &predictor_of(&models[0])));
    files.push(saved(&models[2], Section::Thresholds, &thresholds_of(&models[2])));
    Corpus { models, files }
});

fn saved(model: &Model, section: Section, contents: &SectionContents) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a temporary directory can be created");
    let path = folder.path().join("x.gguf");
    learned::save(&path, &model.file, section, contents, false).expect("the section can be saved");
    std::fs::read(path).expect("the saved file can be read")
}

/// A profile of 64 tokens, with samples.
fn profile_of(model: &Model) -> SectionContents {
    let (hyper, mut contents) = (&model.hyper, SectionContents::default());
    contents.set("version", 1u64);
    contents.set("source", "none");
    contents.set("neurons", model.ffn_function());
    for (name, value) in [("tokens", 64u64), ("wanted", 64), ("stride", 8)] {
        contents.set(name, value);
    }
    let n_ff = model.max_n_ff() as u64;
    for i in 0..hyper.n_layer {
        let name = |part: &str| format!("blk.{i}.{part}");
        contents.i64s(&name("fires"), &[n_ff], &vec![7; n_ff as usize]);
        contents.f64s(&name("size"), &[n_ff], &vec![0.5; n_ff as usize]);
        contents.f64s(&name("input"), &[hyper.n_embd as u64], &vec![0.5; hyper.n_embd]);
        if let Some(experts) = model.experts() {
            contents.i64s(&name("routed"), &[experts.n as u64], &vec![3; experts.n]);
        }
        let n_words = model.max_n_ff().div_ceil(64);
        contents.i64s(&name("samples"), &[n_words as u64, 8], &vec![0x55; n_words * 8]);
        let order: Vec<i32> = (0..n_ff as i32).rev().collect();
        contents.i32s(&name("order"), &[n_ff], &order);
    }
    contents
}

fn set_common(contents: &mut SectionContents, model: &Model) {
    contents.set("version", 1u64);
    contents.set("neurons", model.ffn_function());
    contents.set("recipe", "none");
    contents.f32s("levels", &[2], &[0.05, 0.1]);
}

fn set_curve(contents: &mut SectionContents, layer: usize) {
    let values = vec![0.5; 5 * ERRORS.len()];
    contents.f32s(&format!("blk.{layer}.curve"), &[ERRORS.len() as u64, 5], &values);
}

fn predictor_of(model: &Model) -> SectionContents {
    let (hyper, mut contents) = (&model.hyper, SectionContents::default());
    set_common(&mut contents, model);
    let rank = 8;
    for i in 0..hyper.n_layer {
        for (part, cols, rows) in [("fc1", hyper.n_embd, rank), ("fc2", rank, model.max_n_ff())] {
            let bytes = vec![0x30; cols * rows * 2];
            contents.tensor(
                &format!("blk.{i}.{part}"),
                &[cols as u64, rows as u64],
                TensorType::F16,
                bytes,
            );
        }
        contents.f32s(
            &format!("blk.{i}.bias"),
            &[model.max_n_ff() as u64],
            &vec![0.0; model.max_n_ff()],
        );
        contents.f32s(&format!("blk.{i}.trained"), &[1], &[0.0]);
        set_curve(&mut contents, i);
    }
    contents
}

fn thresholds_of(model: &Model) -> SectionContents {
    let (hyper, mut contents) = (&model.hyper, SectionContents::default());
    set_common(&mut contents, model);
    for i in 0..hyper.n_layer {
        contents.f32s(
            &format!("blk.{i}.weights"),
            &[model.max_n_ff() as u64],
            &vec![1.0; model.max_n_ff()],
        );
        set_curve(&mut contents, i);
    }
    contents
}

fn gpu_index(model: &Model) -> Vec<u8> {
    let mut writer = Writer::new(Container::PowerInfer);
    let n_ff = model.max_n_ff();
    writer.set("general.architecture", "generic.gpu_index").expect("the key is valid");
    writer
        .set("generic.gpu_index.block_count", model.hyper.n_layer as u32)
        .expect("the key is valid");
    writer.set("split.vram_capacity", 123_456u64).expect("the key is valid");
    let names: Vec<String> = (0..model.hyper.n_layer).map(|i| format!("blk.{i}.gpu_idx")).collect();
    for name in &names {
        writer.declare(name, &[n_ff as u64], TensorType::I32).expect("the tensor is valid");
    }
    let mut data = writer.in_memory().expect("the file fits in memory");
    for name in &names {
        data.write(name, &vec![1; 4 * n_ff]).expect("the tensor has these bytes");
    }
    data.finish().expect("every tensor was written")
}

/// Saves the keys and tensors of a section to a new side file, with the correct checksum and
/// fingerprint, and opens this file.
fn with_checksum(file: &File, model: &Model, section: Section) -> Option<SideFile> {
    let prefix = format!("{}.", section.name());
    let mut contents = SectionContents::default();
    for (key, value) in file.metadata().iter() {
        if let Some(name) = key.strip_prefix(&prefix).filter(|name| *name != "sum") {
            contents.set(name, value.clone());
        }
    }
    for tensor in file.tensors() {
        if let Some(name) = tensor.name.strip_prefix(&prefix) {
            let bytes = file.bytes(tensor).ok()?.to_vec();
            contents.tensor(name, &tensor.shape, tensor.ty, bytes);
        }
    }
    let folder = tempfile::tempdir().ok()?;
    let path = folder.path().join("x.gguf");
    learned::save(&path, &model.file, section, &contents, false).ok()?;
    SideFile::open(&path, &model.file).ok()
}

/// Reads all sections and uses their contents; returns the number of sections.
fn read(learned: &SideFile, model: &Model) -> usize {
    let mut n = 0;
    if let Ok(Some(profile)) = Profile::read(learned, model) {
        let chosen: Vec<Vec<u32>> =
            profile.layers().iter().map(|layer| layer.order().to_vec()).collect();
        let _ = (
            profile.summary(),
            profile.probabilities(),
            profile.mean_contributions(),
            profile.mean_squares(),
        );
        let _ = (
            profile.activation_share(&chosen),
            profile.hottest_share(5),
            profile::svg(&profile, Counts::of(model), "fuzz", "a text"),
        );
        n += 1;
    }
    if let Ok(Some(chooser)) = predictor::read(learned, model) {
        for error in [0.0, 0.01, 0.05, 0.99, 2.0] {
            match &chooser.layers {
                Layers::Predictors(layers) => {
                    layers.iter().for_each(|layer| _ = layer.threshold(error))
                }
                Layers::Thresholds(layers) => {
                    layers.iter().for_each(|layer| drop(layer.rows(error)))
                }
                Layers::Imported { .. } => {}
            }
        }
        n += 1;
    }
    n
}

fn run(bytes: &[u8]) -> usize {
    let models = &CORPUS.models;
    let mut n = 0;
    for model in models {
        if let Ok(learned) = SideFile::from_vec(bytes.to_vec(), &model.file.fingerprint()) {
            n += read(&learned, model);
        }
    }
    let Ok(file) = File::from_vec(bytes.to_vec(), "fuzz") else { return n };
    n += usize::from(profile::gpu_index(&file, &models[0].neurons()).is_ok());
    for section in Section::ALL {
        let names = file.tensors().iter().any(|tensor| tensor.name.starts_with(section.name()));
        if !names {
            continue;
        }
        for model in models {
            if let Some(learned) = with_checksum(&file, model, section) {
                n += read(&learned, model);
            }
        }
    }
    n
}

fuzz_target!(
    init: {
        for (i, file) in CORPUS.files.iter().enumerate() {
            assert!(run(file) > 0, "file {i}: an unchanged file must be readable");
        }
    },
    |bytes: &[u8]| {
        if let Some(file) = made::changed(&CORPUS.files, bytes) {
            run(&file);
        }
    }
);
