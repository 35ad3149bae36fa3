//! Randomly damaged requests never get status 500.

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use serde_json::{Value, json};

use super::shared;

/// Valid requests, which the test damages.
fn seeds() -> Vec<(&'static str, Value)> {
    let user = json!({ "role": "user", "content": "Hi" });
    vec![
        (
            "/v1/chat/completions",
            json!({
                "messages": [{ "role": "system", "content": [{ "type": "text", "text": "x" }] }, user],
                "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "n": 2, "stop": ["a"],
                "logit_bias": { "5": 1 }, "logprobs": true, "top_logprobs": 2, "seed": 1,
                "stream": false, "stream_options": { "include_usage": true },
                "chat_template_kwargs": { "a": 1 }, "response_format": { "type": "text" },
            }),
        ),
        (
            "/v1/completions",
            json!({ "prompt": ["a", "b"], "max_tokens": 1, "echo": true, "logprobs": 1, "best_of": 2 }),
        ),
        (
            "/completion",
            json!({
                "prompt": [1, "a"], "n_predict": 1, "samplers": ["top_k"], "logit_bias": [[1, false]],
                "id_slot": 0, "n_probs": 2, "repeat_last_n": -1, "response_fields": ["content"],
            }),
        ),
        ("/v1/messages", json!({ "max_tokens": 1, "messages": [user], "system": "x" })),
        ("/v1/responses", json!({ "input": [user], "max_output_tokens": 1 })),
        ("/tokenize", json!({ "content": "x", "with_pieces": true })),
        ("/detokenize", json!({ "tokens": [1, 2] })),
        ("/apply-template", json!({ "messages": [user] })),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b", "input_extra": [] })),
        ("/slots/0?action=erase", json!({ "filename": "x" })),
        ("/v1/embeddings", json!({ "input": ["x"] })),
        ("/rerank", json!({ "query": "x", "documents": ["y"] })),
    ]
}

/// Replaces a random value inside `value` by an unusual value.
fn mutate(value: &mut Value, random: &mut ChaCha12Rng) {
    let deeper = random.random_bool(0.7);
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let names: Vec<String> = map.keys().cloned().collect();
            let name = names.choose(random).unwrap();
            mutate(&mut map[name], random);
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = random.random_range(0..items.len());
            mutate(&mut items[at], random);
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => *value = unusual_value(random),
    }
}

fn unusual_value(random: &mut ChaCha12Rng) -> Value {
    let deep = (0..60).fold(json!(1), |inner, _| json!([inner]));
    let all = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1e300),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(""),
        json!("\u{0}"),
        json!("x"),
        json!("\u{202e}日"),
        json!("{{ 7 * 7 }}"),
        json!([]),
        json!({}),
        json!([null]),
        json!([[1, 2]]),
        json!([-5, 1e9]),
        json!({ "a": [] }),
        json!([{ "role": "user" }]),
        json!("../../etc/passwd"),
        deep,
    ];
    all.choose(random).unwrap().clone()
}

/// The bytes of a request, possibly damaged.
fn bytes(value: &Value, random: &mut ChaCha12Rng) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    if random.random_bool(0.2) && !bytes.is_empty() {
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..4) {
            0 => bytes.truncate(at),
            1 => bytes[at] = random.random(),
            2 => drop(bytes.splice(at..at, *b"\"}")),
            _ => bytes.rotate_left(at),
        }
    }
    bytes
}

#[test]
fn a_thousand_malformed_requests_are_never_500() {
    let mut random = ChaCha12Rng::seed_from_u64(20);
    let seeds = seeds();
    let mut refused = 0;
    for i in 0..1000 {
        let (path, body) = &seeds[i % seeds.len()];
        let mut body = body.clone();
        for _ in 0..random.random_range(1..4) {
            mutate(&mut body, &mut random);
        }
        // Limit the length, because `mutate` may have changed the limit.
        if let Some(map) = body.as_object_mut() {
            for name in ["max_tokens", "n_predict", "max_output_tokens", "n", "best_of"] {
                if map
                    .get(name)
                    .is_some_and(|n| n.as_f64().is_none_or(|n| !(0.0..=2.0).contains(&n)))
                {
                    map.insert(name.to_owned(), json!(1));
                }
            }
            let length =
                if path.ends_with("responses") { "max_output_tokens" } else { "max_tokens" };
            map.entry(length).or_insert(json!(1));
        }
        let bytes = bytes(&body, &mut random);
        let answer = shared().send("POST", path, Some(&bytes));
        let shown = String::from_utf8_lossy(&bytes);
        // A slot that another test uses is refused with 503.
        let in_use = path.starts_with("/slots") && answer.status == 503;
        assert!(
            in_use || [200, 400, 404, 422, 501].contains(&answer.status),
            "{} for {path}: {shown}\n{}",
            answer.status,
            answer.text()
        );
        if answer.status != 200 {
            refused += 1;
            assert!(answer.json()["error"]["message"].is_string(), "{shown}");
            assert!(!answer.text().contains("panicked"), "{shown}");
        }
    }
    assert!(refused > 300, "{refused} were refused");
    let slots = shared().get("/slots").json();
    assert!(slots.as_array().unwrap().iter().all(|slot| slot["id"].is_u64()));
    assert_eq!(shared().get("/health").status, 200);
}
