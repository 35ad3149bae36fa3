//! Every key of every family's fixture with values that no file should have: the model is refused
//! with an error, or runs a token. Nothing panics, hangs, or allocates much memory.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cpu::{CpuBackend, CpuOptions};
use hal::{Bytes, Device, DeviceId};
use thermocline::engine::{Engine, EngineOptions, LogitsRequest};
use thermocline::gguf::{Array, Container, File, TensorType, Value, Writer};
use thermocline::model::{Model, ModelOptions};
use thermocline::tokenizer::Vocab;

use super::{ALONE, LARGEST_ALLOCATION};
use crate::support::packed::families;
use crate::support::within;

/// The fixtures have less than a megabyte each. The context is short.
const MAX_ALLOCATION: usize = 64 << 20;
/// Maximum time to open a model and to run a token.
const MAX_TIME: Duration = Duration::from_secs(2);

/// The contents of a fixture, to be written again with other keys.
struct Contents {
    name: String,
    container: Container,
    keys: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<u64>, TensorType, Vec<u8>)>,
}

impl Contents {
    fn all() -> Vec<Contents> {
        let entries = fs::read_dir(families()).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<_> =
            entries.filter(|path| path.extension().is_some_and(|e| e == "gguf")).collect();
        paths.sort();
        let read = |path: &std::path::PathBuf| {
            let file = File::open(path).unwrap();
            let keys = file.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
            let tensors = file.tensors().iter().map(|info| {
                let bytes = file.bytes(info).unwrap().to_vec();
                (info.name.clone(), info.shape.clone(), info.ty, bytes)
            });
            Contents {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                container: file.container(),
                keys: keys.collect(),
                tensors: tensors.collect(),
            }
        };
        paths.iter().map(read).collect()
    }

    /// The fixture with `value` for `key`.
    fn with(&self, key: &str, value: &Value) -> File {
        let mut writer = Writer::new(self.container);
        for (name, old) in self.keys.iter().filter(|(name, _)| name != key) {
            writer.set(name, old.clone()).unwrap();
        }
        writer.set(key, value.clone()).unwrap();
        for (name, shape, ty, _) in &self.tensors {
            writer.declare(name, shape, *ty).unwrap();
        }
        let mut data = writer.in_memory().unwrap();
        for (name, _, _, bytes) in &self.tensors {
            data.write(name, bytes).unwrap();
        }
        File::from_vec(data.finish().unwrap(), &self.name).unwrap()
    }
}

/// Values for a key whose valid value is `old`.
fn hostile(old: &Value) -> Vec<Value> {
    let mut values: Vec<Value> = [0, 1, 3, 1 << 20, i32::MAX as u32, u32::MAX]
        .into_iter()
        .map(Value::from)
        .chain([f32::NAN, f32::INFINITY, -1.0, 0.0, 1e30].map(Value::from))
        .chain([Value::I32(-1), Value::U64(u64::MAX), Value::Bool(true), Value::from("x")])
        .collect();
    let lists = [
        Array::U32(Vec::new()),
        Array::U32(vec![0]),
        Array::U32(vec![u32::MAX; 3]),
        Array::F32(vec![f32::NAN; 2]),
        Array::Bool(vec![true; 40]),
    ];
    values.extend(lists.map(Value::Array));
    values.retain(|value| value != old);
    values
}

/// Opens the model and runs a token.
fn run(file: File) -> Result<(), String> {
    // Errors of a tokenizer do not keep a model from being opened.
    let vocab = Vocab::from_metadata(file.metadata()).map_err(|error| error.to_string());
    let model = Model::from_file(file, &ModelOptions::default());
    let model = Arc::new(model.map_err(|error| error.to_string())?);
    let backend = CpuBackend::new(CpuOptions { threads: Some(1), ..Default::default() });
    let devices = vec![Device::new(backend, DeviceId(0), Bytes(MAX_ALLOCATION as u64))];
    let options = EngineOptions { n_ctx: 64, n_ubatch: 4, ..EngineOptions::default() };
    let engine = Engine::load(model, devices, options, None, Arc::new(|_: &str| {}), &|_, _| {});
    let mut engine = engine.map_err(|error| error.to_string())?;
    let mut sequence = engine.new_sequence();
    let interrupt = AtomicBool::new(false);
    let sink = &mut |_: usize, _: &[f32]| {};
    let ids = [1, 2, 3, 4, 5];
    let ran = if engine.model().hyper.causal {
        engine.feed(&mut sequence, &ids, LogitsRequest::Last, &interrupt, sink).map(drop)
    } else {
        engine.hidden_states(&mut sequence, &ids, &interrupt, sink)
    };
    ran.map_err(|error| error.to_string())?;
    vocab.map(drop)
}

#[test]
fn hostile_keys_are_refused_or_run() {
    let _alone = ALONE.lock().unwrap();
    within(Duration::from_secs(900), || {
        let begin = Instant::now();
        let fixtures = Contents::all();
        let (mut n_refused, mut n_run, mut wrong) = (0, 0, BTreeSet::new());
        for fixture in &fixtures {
            for (key, old) in &fixture.keys {
                for value in hostile(old) {
                    let file = fixture.with(key, &value);
                    let mut told = format!("{}: {key} = {value:?}", fixture.name);
                    told.truncate(200);
                    LARGEST_ALLOCATION.store(0, Ordering::SeqCst);
                    let start = Instant::now();
                    let result = catch_unwind(AssertUnwindSafe(|| run(file)));
                    let largest = LARGEST_ALLOCATION.load(Ordering::SeqCst);
                    // A busy machine may take as long once.
                    let again = || {
                        let (file, start) = (fixture.with(key, &value), Instant::now());
                        let _ = catch_unwind(AssertUnwindSafe(|| run(file)));
                        start.elapsed()
                    };
                    if start.elapsed() > MAX_TIME && again() > MAX_TIME {
                        wrong.insert(format!("{told}: takes more than {MAX_TIME:?}"));
                    }
                    if largest > MAX_ALLOCATION {
                        wrong.insert(format!("{told}: allocates {largest} bytes"));
                    }
                    match result {
                        Ok(Ok(())) => n_run += 1,
                        Ok(Err(_)) => n_refused += 1,
                        Err(_) => {
                            wrong.insert(format!("{told}: panics"));
                        }
                    }
                }
            }
        }
        println!("{n_run} ran, {n_refused} refused, {:?}", begin.elapsed());
        assert!(wrong.is_empty(), "{} of {}: {wrong:#?}", wrong.len(), n_run + n_refused);
        assert!(n_refused > 10_000 && n_run > 1000, "{n_refused} refused, {n_run} ran");
    });
}
