//! Opens the models of `tests/families` with some bytes changed, which are those of keys and of the
//! tensor table: each must be a model or be refused with an error.
#![no_main]

mod made;

use std::path::Path;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};
use thermocline::tokenizer::Vocab;

static MODELS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/families");
    let entries = std::fs::read_dir(families).expect("the folder of fixtures can be read");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".gguf.planes.gz"));
    paths.sort();
    paths.iter().map(|path| planes::unpack(path, 2).expect("a compressed model")).collect()
});

fuzz_target!(|input: &[u8]| {
    let Some(bytes) = made::changed(&MODELS, input) else { return };
    let Ok(file) = File::from_vec(bytes, "model") else { return };
    let _ = Vocab::from_metadata(file.metadata());
    let _ = Model::from_file(file, &ModelOptions::default());
});
