//! Any bytes as the file of what was learned about the built-in model, and as PowerInfer's list of GPU neurons: read or
//! refused. The fuzzer cannot guess sums, so a file's sections are also summed for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use thermocline::gguf::{File, Value};
use thermocline::learned::{self, Contents, Learned, Section};
use thermocline::model::{Model, ModelOptions};
use thermocline::profile::{self, Profile};

fn model() -> Model {
    let file = thermocline::embedded::file().expect("the model is in the program");
    Model::from_file(file, &ModelOptions::default()).expect("it runs")
}

/// The same keys and tensors of a section, with the sum and the fingerprint that they need.
fn summed(file: &File, model: &Model) -> Option<Learned> {
    let mut contents = Contents::default();
    for (key, value) in file.metadata().iter() {
        if let Some(name) = key.strip_prefix("profile.").filter(|name| *name != "sum") {
            contents.set(name, value.clone() as Value);
        }
    }
    for tensor in file.tensors() {
        if let Some(name) = tensor.name.strip_prefix("profile.") {
            let bytes = file.bytes(tensor).ok()?.to_vec();
            contents.tensor(name, &tensor.shape, tensor.ty, bytes);
        }
    }
    let folder = tempfile::tempdir().ok()?;
    let path = folder.path().join("x.gguf");
    learned::save(&path, &model.file, Section::Profile, &contents, false).ok()?;
    Learned::open(&path, &model.file).ok()
}

fuzz_target!(|bytes: &[u8]| {
    let model = &model();
    if let Ok(read) = Learned::from_vec(bytes.to_vec(), &model.file.fingerprint()) {
        let _ = Profile::read(&read, model);
    }
    let Ok(file) = File::from_vec(bytes.to_vec(), "fuzz") else { return };
    let _ = profile::gpu_index(&file, model.hyper.n_layer, model.hyper.n_ff);
    if let Some(read) = summed(&file, model) {
        if let Ok(Some(profile)) = Profile::read(&read, model) {
            let _ = (profile.summary(), profile.probabilities(), profile::svg(&profile, "fuzz"));
        }
    }
});
