//! Encoders: embeddings, ranking, and no text.

use serde_json::json;

use super::*;
use crate::support::packed::families;

fn server(name: &str) -> TestServer {
    let path = families().join(format!("{name}.gguf"));
    TestServer::with_model(config(), SchedulerOptions::default(), Some(&path))
}

#[test]
fn an_encoder_has_embeddings_and_generates_no_text() {
    let server = server("bert");
    let texts = json!({ "input": ["A cat sat.", "A cat sat!", "A cat sat."] });
    let answer = server.client.post("/v1/embeddings", &texts).json();
    let [one, other, again] = [0, 1, 2].map(|i| answer["data"][i]["embedding"].clone());
    assert_eq!((one.as_array().unwrap().len(), &one), (16, &again));
    assert_ne!(one, other);
    for path in ["/completion", "/v1/completions"] {
        let error = server.client.post(path, &json!({ "prompt": "A cat", "n_predict": 2 }));
        let error = error.error(501)["message"].as_str().unwrap().to_owned();
        assert!(error.contains("encoder") && error.contains("/v1/embeddings"), "{error}");
    }
}

#[test]
fn an_encoder_with_a_head_ranks() {
    let server = server("modern-bert");
    let request = json!({ "query": "a cat", "documents": ["a dog", "a cat", "the king"] });
    let answer = server.client.post("/rerank", &request).json();
    let scores: Vec<f64> = answer["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["relevance_score"].as_f64().unwrap())
        .collect();
    assert_eq!(scores.len(), 3);
    assert!(scores.windows(2).all(|two| two[0] > two[1]), "{scores:?}");
}
