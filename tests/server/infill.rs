//! `/infill`, with the built-in model and added fill-in-the-middle tokens.

use std::sync::atomic::AtomicBool;

use hal::{Bytes, Device};
use runtime::{devices, embedded};
use scheduler::SchedulerOptions;
use serde_json::{Value, json};
use text::tokenizer::{SpecialIds, Tokenizer, Vocab};
use thermocline::engine::{Engine, EngineOptions, Feed, LogitsRequest};
use thermocline::model::{Model, ModelOptions};

use super::{TestServer, config};

const PRE: u32 = 301;
const SUF: u32 = 302;
const MID: u32 = 303;
const REP: u32 = 304;
const SEP: u32 = 305;

fn model_with_fim(has_files: bool) -> (Engine, Tokenizer) {
    let file = embedded::file().unwrap();
    let mut vocab = Vocab::from_metadata(file.metadata()).unwrap();
    vocab.ids = SpecialIds {
        fim_pre: Some(PRE),
        fim_suf: Some(SUF),
        fim_mid: Some(MID),
        fim_rep: has_files.then_some(REP),
        fim_sep: has_files.then_some(SEP),
        ..vocab.ids
    };
    let tokenizer = Tokenizer::new(vocab).unwrap();
    let model = Model::from_file(file, &ModelOptions::default()).unwrap();
    let options = EngineOptions { n_ctx: 1024, n_seq: 2, ..EngineOptions::default() };
    let cpu: Device = devices::cpu(Some(1));
    (runtime::load_quietly(&model.into(), options, cpu).unwrap(), tokenizer)
}

fn server(has_files: bool) -> TestServer {
    let (engine, tokenizer) = model_with_fim(has_files);
    let reserves: &[Bytes] = &[];
    TestServer::from_engine(engine, tokenizer, config(), SchedulerOptions::default(), reserves)
}

fn ask() -> Value {
    json!({
        "input_extra": [{ "filename": "a.h", "text": "int a;" }, { "text": "int b;" }],
        "input_prefix": "int main() {", "input_suffix": "}", "prompt": "  return",
        "n_predict": 5, "return_tokens": true,
    })
}

/// Greedy continuation of `prompt` by the engine alone.
fn continuation(prompt: &[u32], n: usize) -> Vec<u32> {
    let (mut engine, _) = model_with_fim(false);
    let mut sequence = engine.new_sequence();
    let (mut tokens, mut answer) = (prompt.to_vec(), Vec::new());
    while answer.len() < n {
        let mut best = 0;
        let sink = &mut |_: usize, _: usize, logits: &[f32]| {
            let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            best = logits.iter().position(|logit| *logit == largest).unwrap();
        };
        let feed = Feed { sequence: &mut sequence, tokens: &tokens, want: LogitsRequest::Last };
        engine.step(&mut [feed], &AtomicBool::new(false), sink).unwrap();
        tokens = vec![best as u32];
        answer.push(best as u32);
    }
    answer
}

/// Sends the request; checks that the server's prompt is `prompt` and the answer its greedy
/// continuation.
fn check(server: &TestServer, prompt: &[u32]) {
    let answer = server.client.post("/infill", &ask()).json();
    assert_eq!(answer["tokens_evaluated"], prompt.len(), "{answer}");
    let expected = server.client.post("/detokenize", &json!({ "tokens": prompt })).json();
    assert_eq!(answer["prompt"], expected["content"].as_str().unwrap(), "{answer}");
    assert_eq!(answer["tokens"], json!(continuation(prompt, 5)));
}

#[test]
fn the_prompt_has_llama_servers_order() {
    let server = server(true);
    let tokenizer = &model_with_fim(true).1;
    let ids = |text: &str| tokenizer.encode(text, false, false).unwrap();
    let prompt = [
        &[REP][..],
        &ids("myproject\n"),
        &[SEP],
        &ids("a.h\n"),
        &ids("int a;"),
        &[SEP],
        &ids("tmp\n"),
        &ids("int b;"),
        &[SEP],
        &ids("filename\n"),
        &[tokenizer.bos().unwrap(), PRE],
        &ids("int main() {"),
        &ids("  return"),
        &[SUF],
        &ids("}"),
        &[MID],
    ];
    check(&server, &prompt.concat());
    // OpenAI's `suffix` uses the same tokens.
    let suffix = json!({ "prompt": "int main() {", "suffix": "}", "max_tokens": 3 });
    assert_eq!(server.client.post("/v1/completions", &suffix).status, 200);
}

#[test]
fn without_file_tokens_extra_files_become_snippets() {
    let server = server(false);
    let tokenizer = &model_with_fim(false).1;
    let ids = |text: &str| tokenizer.encode(text, false, false).unwrap();
    let snippet = ids("\n\n--- snippet ---\n\n");
    let prompt = [
        &snippet[..],
        &ids("int a;"),
        &snippet,
        &ids("int b;"),
        &[tokenizer.bos().unwrap(), PRE],
        &ids("int main() {"),
        &ids("  return"),
        &[SUF],
        &ids("}"),
        &[MID],
    ];
    check(&server, &prompt.concat());
}
