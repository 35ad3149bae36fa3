//! The built-in model compared with references that PyTorch computed from the same weights.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde_json::Value;
use thermocline::engine::{Engine, EngineOptions, LogitsRequest, Sparsity, StepStats};
use thermocline::model::{Model, ModelOptions};
use thermocline::tokenizer::{Tokenizer, Vocab};
use thermocline::{devices, embedded};

use crate::support::largest_difference;
use crate::support::packed::{unpack, unpack_planes};

fn reference(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/reference").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(reference(name)).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

struct BuiltIn {
    engine: Engine,
    tokenizer: Tokenizer,
}

impl BuiltIn {
    fn new(sparsity: Sparsity) -> BuiltIn {
        let file = embedded::file().unwrap();
        let tokenizer = Tokenizer::new(Vocab::from_metadata(file.metadata()).unwrap()).unwrap();
        let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
        let options = EngineOptions {
            n_ctx: 544,
            sparsity,
            kv_formats: hal::KvCache::both(hal::format::Format::F32),
            ..EngineOptions::default()
        };
        let devices = vec![devices::cpu(Some(2))];
        let quiet = Arc::new(|_: &str| {});
        let engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
        BuiltIn { engine, tokenizer }
    }

    /// Calls `sink` with the logits after every token of `ids`, in a new sequence.
    fn logits(&mut self, ids: &[u32], sink: &mut dyn FnMut(usize, &[f32])) -> StepStats {
        let mut sequence = self.engine.new_sequence();
        let interrupt = AtomicBool::new(false);
        self.engine.feed(&mut sequence, ids, LogitsRequest::All, &interrupt, sink).unwrap()
    }
}

/// PyTorch's logits: multiples of 1/1024 as I16, the low bytes first, then the high bytes.
fn expected_logits() -> Vec<f32> {
    let bytes = unpack_planes(&reference("logits.planes.gz"), 2);
    bytes.as_chunks().0.iter().map(|&pair| f32::from(i16::from_le_bytes(pair)) / 1024.0).collect()
}

#[test]
fn the_repository_stores_the_published_file() {
    const SHA256: &str = "e8d2f6f54e80dcde7b59d29a1b3d8a496e78cd34a0a629efc8247994160c35de";
    let digest = ring::digest::digest(&ring::digest::SHA256, embedded::BYTES);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, SHA256);
}

#[test]
fn logits_match_pytorch() {
    let expected = expected_logits();
    let prompts = json("reference.json")["logits"]["input_ids"].clone();
    for sparsity in [Sparsity::Exact, Sparsity::Off] {
        let mut subject = BuiltIn::new(sparsity);
        let mut rows = expected.chunks_exact(4096);
        for prompt in prompts.as_array().unwrap() {
            subject.logits(&ids(prompt), &mut |token, got| {
                let expected = rows.next().unwrap();
                let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
                let worst = largest_difference(expected, got);
                assert!(worst <= 1e-3 * scale, "token {token}: {worst} of {scale}");
            });
        }
        assert!(rows.next().is_none(), "all references were compared");
    }
}

#[test]
fn greedy_texts_match_pytorch() {
    let mut subject = BuiltIn::new(Sparsity::Exact);
    let mut compared = 0;
    let greedy: Value = serde_json::from_slice(&unpack(&reference("greedy.json.gz"))).unwrap();
    for case in greedy.as_array().unwrap() {
        let prompt = case["prompt"].as_str().unwrap();
        let prompt_ids = subject.tokenizer.encode(prompt, true, false).unwrap();
        assert_eq!(prompt_ids, ids(&case["prompt_ids"]), "{prompt}");
        let continuation = ids(&case["ids"]);
        let all = [&prompt_ids[..], &continuation[..]].concat();
        let first = prompt_ids.len() - 1;
        subject.logits(&all[..all.len() - 1], &mut |token, logits| {
            let Some(step) = token.checked_sub(first) else { return };
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
            let gap = case["logit_gaps"][step].as_f64().unwrap();
            let near_tie = gap < 1e-3;
            assert!(
                best as u32 == continuation[step] || near_tie,
                "{prompt}: step {step} gives {best}, not {}, the gap is {gap}",
                continuation[step]
            );
            if best as u32 != continuation[step] {
                println!("{prompt}: step {step} differs at a gap of {gap}");
            }
            compared += 1;
        });
    }
    assert!(compared > 1000, "{compared} steps were compared");
}

#[test]
fn perplexity_and_density_match_pytorch() {
    let reference_json = json("reference.json");
    let expected = reference_json["perplexity"]["per_story"].as_f64().unwrap();
    let text = std::fs::read_to_string(reference("eval.txt")).unwrap();
    let mut subject = BuiltIn::new(Sparsity::Exact);
    let (mut nll, mut n, mut neurons) = (0.0, 0u32, StepStats::default());
    for story in text.split("\n\n").map(str::trim).filter(|story| !story.is_empty()) {
        let mut ids = subject.tokenizer.encode(story, true, false).unwrap();
        ids.push(subject.tokenizer.eos().unwrap());
        ids.truncate(513);
        let inputs = &ids[..ids.len() - 1];
        let stats = subject.logits(inputs, &mut |token, logits| {
            let most = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
            let sum: f64 = logits.iter().map(|&v| (f64::from(v) - most).exp()).sum();
            nll += sum.ln() + most - f64::from(logits[ids[token + 1] as usize]);
            n += 1;
        });
        neurons.active += stats.active;
        neurons.neurons += stats.neurons;
    }
    let perplexity = (nll / f64::from(n)).exp();
    assert_eq!(u64::from(n), reference_json["perplexity"]["per_story_tokens"].as_u64().unwrap());
    assert!((perplexity / expected - 1.0).abs() < 0.005, "{perplexity} against {expected}");
    // The file has how often each neuron fired, `[n_layer, n_ff]` in U32. A neuron whose gate is 0
    // except for rounding may count differently.
    let counts = unpack(&reference("activation_counts.npy.gz"));
    let counts = counts[counts.len() - 4 * 4 * 1280..].chunks_exact(4);
    let fired: f64 = counts.map(|b| f64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))).sum();
    let density = neurons.active / neurons.neurons;
    assert!(
        (neurons.active / fired - 1.0).abs() < 1e-4,
        "{density}: {} of {fired}",
        neurons.active
    );
}
