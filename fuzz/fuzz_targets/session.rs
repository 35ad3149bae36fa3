//! Restores saved sequences of tiny models with some bytes changed, with the wrong and with the right checksum: each is
//! refused, or the sequence continues or ends with an error.
#![no_main]

mod made;

use std::cell::RefCell;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, LazyLock};

use hal::{Bytes, Device, DeviceId};
use libfuzzer_sys::fuzz_target;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest};
use thermocline::gguf::File;
use thermocline::model::{Model, ModelOptions};

/// Attention, a window, latent attention, a delta rule, and a recurrent model.
const MODELS: [&str; 5] = ["llama-relu", "gemma3", "deepseek2", "qwen3next", "mamba2"];

static OPENED: LazyLock<Vec<Arc<Model>>> = LazyLock::new(|| {
    let families = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/families");
    let open = |name: &&str| {
        let bytes = planes::unpack(&families.join(format!("{name}.gguf.planes.gz")), 2)
            .expect("a compressed model");
        let file = File::from_vec(bytes, "model").expect("a GGUF file");
        Arc::new(Model::from_file(file, &ModelOptions::default()).expect("a model"))
    };
    MODELS.iter().map(open).collect()
});

fn engine(model: &Arc<Model>) -> Engine {
    let backend = cpu::CpuBackend::new(cpu::CpuOptions { threads: Some(1), ..Default::default() });
    let device = Device::new(backend, DeviceId(0), Bytes::MAX);
    let options = EngineOptions { n_ctx: 64, n_ubatch: 16, n_seq: 2, ..EngineOptions::default() };
    Engine::load(Arc::clone(model), vec![device], options, None, Arc::new(|_| {}), &|_, _| {})
        .expect("an engine")
}

fn feed(engine: &mut Engine, sequence: &mut thermocline::engine::Sequence, tokens: &[u32]) -> bool {
    let interrupt = AtomicBool::new(false);
    engine.feed(sequence, tokens, LogitsRequest::Last, &interrupt, &mut |_, _| {}).is_ok()
}

thread_local! {
    static ENGINES: RefCell<Vec<Engine>> = RefCell::new(OPENED.iter().map(engine).collect());
}

/// A saved sequence of each model.
static SAVED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let save = |model: &Arc<Model>| {
        let mut engine = engine(model);
        let mut sequence = engine.new_sequence();
        assert!(feed(&mut engine, &mut sequence, &[1, 2, 3, 4, 5, 6, 7, 8, 9]));
        engine.save(&sequence).expect("the sequence can be saved")
    };
    OPENED.iter().map(save).collect()
});

/// The checksum of saved sequences, by its definition.
fn sum(bytes: &[u8]) -> u64 {
    let word =
        |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let sum = words.iter().fold(0, |sum, bytes| word(sum, u64::from_le_bytes(*bytes)));
    let sum = word(word(sum, u64::from_le_bytes(last)), bytes.len() as u64);
    (sum ^ (sum >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (sum >> 29)
}

/// Whether the model `which` takes the bytes; then it computes another token.
fn run(which: usize, bytes: &[u8]) -> bool {
    ENGINES.with_borrow_mut(|engines| {
        let engine = &mut engines[which];
        let Ok(mut sequence) = engine.restore(bytes) else { return false };
        // Changed keys and states may be NaN, which is an error of this step alone.
        let _ = feed(engine, &mut sequence, &[3]);
        let _ = engine.save(&sequence);
        true
    })
}

fuzz_target!(
    init: {
        for (i, saved) in SAVED.iter().enumerate() {
            assert!(run(i, saved), "{}: an unchanged sequence must be restored", MODELS[i]);
        }
    },
    |input: &[u8]| {
        let Some(mut bytes) = made::changed(&SAVED, input) else { return };
        let which = usize::from(input[0]) % MODELS.len();
        run(which, &bytes);
        if let Some(end) = bytes.len().checked_sub(8) {
            let sum = sum(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
            run(which, &bytes);
        }
    }
);
