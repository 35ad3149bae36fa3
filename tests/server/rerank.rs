//! Reranking, compared with llama.cpp (`scripts/make_rank_fixture`).

use std::fs;
use std::path::{Path, PathBuf};

use ::gguf::{Array, Container, File, Strings, TensorType, Value as GgufValue, Writer};
use scheduler::{EmbedError, Pooling, Scheduler};
use serde_json::{Value, json};

use super::*;
use crate::support::packed::families;

/// Maximum difference of two scores. Sums in another order differ by up to 2e-7.
const TOLERANCE: f64 = 1e-5;

/// A tensor to add: its name, its shape in ggml order, and its bytes.
struct NewTensor {
    name: &'static str,
    shape: Vec<u64>,
    ty: TensorType,
    bytes: Vec<u8>,
}

/// Writes a copy of `tests/families/{from}` to `to`, without the tensor `without` and with more
/// keys and tensors.
fn write_changed(
    from: &str,
    to: &Path,
    without: &str,
    keys: &[(&str, GgufValue)],
    added: &[NewTensor],
) {
    let file = File::open(&families().join(from)).unwrap();
    let mut writer = Writer::new(Container::Gguf);
    for (key, value) in file.metadata().iter() {
        writer.set(key, value.clone()).unwrap();
    }
    for (key, value) in keys {
        writer.set(key, value.clone()).unwrap();
    }
    let kept: Vec<_> = file.tensors().iter().filter(|info| info.name != without).collect();
    for info in &kept {
        writer.declare(&info.name, &info.shape, info.ty).unwrap();
    }
    for NewTensor { name, shape, ty, .. } in added {
        writer.declare(name, shape, *ty).unwrap();
    }
    let mut data = writer.in_memory().unwrap();
    for info in kept {
        data.write(&info.name, file.slice(info).unwrap().as_ref()).unwrap();
    }
    for NewTensor { name, bytes, .. } in added {
        data.write(name, bytes).unwrap();
    }
    fs::write(to, data.finish().unwrap()).unwrap();
}

fn strings(all: &[&str]) -> GgufValue {
    let mut strings = Strings::default();
    all.iter().for_each(|text| strings.push(text.as_bytes()));
    Array::String(strings).into()
}

fn fixture() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/rerank.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The model of `scripts/make_rank_fixture`. It is written once: a second write would truncate the
/// file while a server has it mapped.
fn reranker() -> &'static Path {
    static PATH: LazyLock<PathBuf> = LazyLock::new(write_reranker);
    &PATH
}

fn write_reranker() -> PathBuf {
    let fixture = fixture();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reranker.gguf");
    let qwen3 = File::open(&families().join("qwen3.gguf")).unwrap();
    let output = qwen3.tensor("output.weight").unwrap();
    let rows = qwen3.slice(output).unwrap();
    let row = rows.as_ref().len() / output.shape[1] as usize;
    let labels: Vec<&str> =
        fixture["labels"].as_array().unwrap().iter().map(|label| label.as_str().unwrap()).collect();
    // The vocabulary begins with the printable characters.
    let ids = labels.iter().map(|label| usize::from(label.as_bytes()[0] - b'!'));
    let bytes = ids.flat_map(|id| rows.as_ref()[id * row..(id + 1) * row].to_vec()).collect();
    let head = NewTensor {
        name: "cls.output.weight",
        shape: vec![output.shape[0], labels.len() as u64],
        ty: output.ty,
        bytes,
    };
    let keys = [
        ("qwen3.pooling_type", 4u32.into()),
        ("qwen3.classifier.output_labels", strings(&labels)),
        ("tokenizer.chat_template.rerank", fixture["template"].as_str().unwrap().into()),
    ];
    write_changed("qwen3.gguf", &path, "output.weight", &keys, &[head]);
    path
}

fn scheduler(path: &Path) -> Scheduler {
    let kv_formats = hal::KvCache::both(hal::format::Format::F32);
    let options = Options { kv_formats, ..Options::default() };
    let (engine, tokenizer) = Model::open(path, &options).unwrap().into_parts();
    Scheduler::start(engine, Arc::new(tokenizer), SchedulerOptions::default()).unwrap()
}

fn shared_reranker() -> &'static TestServer {
    static SERVER: LazyLock<TestServer> = LazyLock::new(|| {
        TestServer::with_model(config(), SchedulerOptions::default(), Some(reranker()))
    });
    &SERVER
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

#[test]
fn scores_are_those_of_llama_cpp() {
    let fixture = fixture();
    for request in fixture["requests"].as_array().unwrap() {
        let scores = numbers(&request["scores"]);
        let body = json!({ "query": request["query"], "documents": request["documents"] });
        let answer = shared_reranker().client.post("/v1/rerank", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = answer.json();
        assert_eq!(
            (&answer["object"], &answer["model"]),
            (&json!("list"), &json!("reranker.gguf"))
        );
        assert_eq!(answer["usage"]["prompt_tokens"], request["n_tokens"]);
        assert_eq!(answer["usage"]["total_tokens"], request["n_tokens"]);
        let results = answer["results"].as_array().unwrap();
        assert_eq!(results.len(), scores.len());
        let mut before = f64::INFINITY;
        for result in results {
            let score = result["relevance_score"].as_f64().unwrap();
            let expected = scores[result["index"].as_u64().unwrap() as usize];
            assert!((score - expected).abs() < TOLERANCE, "{score} instead of {expected}");
            assert!(score <= before && result["document"].is_null());
            before = score;
        }
    }
}

#[test]
fn jina_and_tei_requests_are_answered() {
    let client = &shared_reranker().client;
    let texts = ["hi", "It is a bear.", "Paris, a city in France"];
    let request = |more: Value| {
        let mut body = json!({ "query": "What is a panda?" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let tei =
        client.post("/rerank", &request(json!({ "texts": texts, "return_text": true }))).json();
    let items = tei.as_array().unwrap();
    assert_eq!(items.len(), 3);
    assert!(items.iter().all(|i| i["text"] == texts[i["index"].as_u64().unwrap() as usize]));
    let plain = client.post("/reranking", &request(json!({ "texts": texts, "top_n": 99 }))).json();
    assert!(plain[0]["text"].is_null() && plain[0]["score"] == tei[0]["score"]);
    let documents = json!([{ "text": texts[0] }, texts[1], texts[2]]);
    let jina = json!({ "documents": documents, "top_n": 2, "return_documents": true });
    let jina = client.post("/v1/reranking", &request(jina)).json();
    let results = jina["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    assert_eq!(results[0]["document"]["text"], items[0]["text"]);
    assert_eq!(results[0]["relevance_score"], items[0]["score"]);
    let single = |more: Value| {
        request(json!({ "documents": ["y"] })).as_object().map(|body| {
            let mut body = body.clone();
            body.extend(more.as_object().unwrap().clone());
            Value::Object(body)
        })
    };
    for (more, param) in [
        (json!({ "query": null }), "query"),
        (json!({ "query": 1 }), "query"),
        (json!({ "documents": null }), "documents"),
        (json!({ "documents": [] }), "documents"),
        (json!({ "documents": "y" }), "documents"),
        (json!({ "documents": [1] }), "documents"),
        (json!({ "documents": vec!["y"; 1025] }), "documents"),
        (json!({ "documents": ["y ".repeat(9000)] }), "documents"),
        (json!({ "texts": ["y"] }), "texts"),
        (json!({ "top_n": 0 }), "top_n"),
        (json!({ "return_documents": "yes" }), "return_documents"),
        (json!({ "raw_scores": true }), "raw_scores"),
        (json!({ "truncate": true }), "truncate"),
    ] {
        assert_eq!(client.post("/rerank", &single(more).unwrap()).error(400)["param"], param);
    }
}

#[test]
fn a_ranking_model_counts_its_tokens_and_generates() {
    // A separate server, because other tests add to the counter.
    let server = TestServer::with_model(config(), SchedulerOptions::default(), Some(reranker()));
    let client = &server.client;
    let answer = client.post("/rerank", &json!({ "query": "a", "documents": ["b", "c"] })).json();
    let n_tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let metrics = client.get("/metrics");
    let line = format!("thermocline:prompt_tokens_total {n_tokens}");
    assert!(metrics.text().lines().any(|l| l == line), "{line}\n{}", metrics.text());
    let error = client.post("/v1/embeddings", &json!({ "input": "x" })).error(501);
    assert!(error["message"].as_str().unwrap().contains("--pooling last"), "{error}");
    let written = client.post("/completion", &json!({ "prompt": "x", "n_predict": 2 }));
    assert_eq!(written.status, 200, "{}", written.text());
}

#[test]
fn a_request_that_takes_too_long_ends() {
    let limits = Limits { timeout: std::time::Duration::from_millis(300), ..Limits::default() };
    let config = Config { limits, ..config() };
    let server = TestServer::with_model(config, SchedulerOptions::default(), Some(reranker()));
    let documents = vec!["some words ".repeat(20); 1024];
    server.client.post("/rerank", &json!({ "query": "a", "documents": documents })).error(503);
}

/// Granite's scores have no softmax, and its final norm is divided by the logit scale.
#[test]
fn a_two_layer_head_applies_tanh_between_its_layers() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-layers.gguf");
    let granite = File::open(&families().join("granite.gguf")).unwrap();
    let scale = granite.metadata().f32("granite.logit_scale").unwrap().unwrap();
    assert!((scale - 1.0).abs() > 0.1, "the scale must have an effect");
    let n = granite.metadata().u32("granite.embedding_length").unwrap().unwrap() as usize;
    let values = |n: usize, by: f32| (0..n).map(|i| ((i * 7 + 3) % 11) as f32 * by - 0.4).collect();
    let dense: Vec<f32> = values(n * n, 0.08);
    let [dense_bias, output]: [Vec<f32>; 2] = [values(n, 0.05), values(n, 0.09)];
    let added = |name, shape: &[usize], values: &[f32]| NewTensor {
        name,
        shape: shape.iter().map(|n| *n as u64).collect(),
        ty: hal::format::Format::F32.into(),
        bytes: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let all = [
        added("cls.weight", &[n, n], &dense),
        added("cls.bias", &[n], &dense_bias),
        added("cls.output.weight", &[n], &output),
        added("cls.output.bias", &[1], &[0.25]),
    ];
    write_changed("granite.gguf", &path, "", &[], &all);
    let server = TestServer::with_model(config(), SchedulerOptions::default(), Some(&path));
    let scheduler = scheduler(&path);
    let ids: Vec<u32> = (5..25).collect();
    let hidden = scheduler.embed(ids.clone(), Pooling::Last).unwrap();
    let product = |row: &[f32]| row.iter().zip(&hidden).map(|(w, x)| w * x * scale).sum::<f32>();
    let inner = dense.chunks(n).zip(&dense_bias).map(|(row, bias)| (product(row) + bias).tanh());
    let expected = inner.zip(&output).map(|(x, w)| x * w).sum::<f32>() + 0.25;
    let got = scheduler.embed(ids, Pooling::Rank).unwrap();
    assert_eq!(got.len(), 1);
    assert!((got[0] - expected).abs() < 1e-4, "{} instead of {expected}", got[0]);
    // Without a template, query and document are concatenated.
    let answer = server.client.post("/rerank", &json!({ "query": "a", "documents": ["b"] })).json();
    let ids = server.client.post("/tokenize", &json!({ "content": "ab" })).json()["tokens"].clone();
    let ids: Vec<u32> = numbers(&ids).into_iter().map(|id| id as u32).collect();
    let score = f64::from(scheduler.embed(ids, Pooling::Rank).unwrap()[0]);
    let found = answer["results"][0]["relevance_score"].as_f64().unwrap();
    assert!((found - score).abs() < 1e-6, "{found} instead of {score}");
}

#[test]
fn a_wrong_head_is_refused() {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("wrong-head.gguf");
    let ty = hal::format::Format::F32.into();
    let head = NewTensor { name: "cls.output.weight", shape: vec![48, 3], ty, bytes: vec![0; 576] };
    let labels = [("qwen3.classifier.output_labels", strings(&["yes", "no"]))];
    write_changed("qwen3.gguf", &path, "", &labels, &[head]);
    let error = Model::open(&path, &Options::default()).unwrap_err();
    let error = std::error::Error::source(&error).map_or(error.to_string(), |e| e.to_string());
    assert!(error.contains("cls.output.weight") && error.contains("[48, 2]"), "{error}");
    let scheduler = scheduler(&families().join("qwen3.gguf"));
    let error = scheduler.embed(vec![1], Pooling::Rank).unwrap_err();
    assert!(matches!(error, EmbedError::NoHead), "{error}");
}
