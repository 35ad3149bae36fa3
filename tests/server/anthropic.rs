//! `/v1/messages`.

use serde_json::{Value, json};

use super::shared;

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "any", "max_tokens": 8, "system": "Tell stories.",
        "messages": [{ "role": "user", "content": "Tell me of a cat." }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const PATH: &str = "/v1/messages";

#[test]
fn a_message_has_all_members() {
    let answer = shared().post(PATH, &ask(json!({}))).json();
    assert!(answer["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&answer["type"], &answer["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(answer["content"][0]["type"], "text");
    assert_eq!(answer["stop_reason"], "max_tokens");
    assert_eq!(answer["usage"]["output_tokens"], 8);
    assert!(answer.get("timings").is_none());
    let usage = &answer["usage"];
    let [new, cached] =
        ["input_tokens", "cache_read_input_tokens"].map(|n| usage[n].as_u64().unwrap());
    let counted = shared().post("/v1/messages/count_tokens", &ask(json!({}))).json();
    assert_eq!(counted, json!({ "input_tokens": new + cached }));
}

#[test]
fn a_stream_has_anthropics_events_in_order() {
    let whole = shared().post(PATH, &ask(json!({}))).json();
    let answer = shared().post(PATH, &ask(json!({ "stream": true })));
    let events = answer.events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let names = answer.text().lines().filter_map(|line| line.strip_prefix("event: "));
    assert_eq!(kinds, names.collect::<Vec<_>>());
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert!(kinds.ends_with(&["content_block_stop", "message_delta", "message_stop"]));
    assert!(events[0]["message"]["usage"]["input_tokens"].as_u64().unwrap() > 0);
    let texts = events.iter().map(|event| event["delta"]["text"].as_str().unwrap_or_default());
    assert_eq!(texts.collect::<String>(), whole["content"][0]["text"].as_str().unwrap());
    let delta = &events[events.len() - 2];
    assert_eq!(delta["delta"]["stop_reason"], "max_tokens");
    assert_eq!(delta["usage"]["output_tokens"], 8);
}

#[test]
fn the_stop_sequence_is_named() {
    let answer = shared().post(PATH, &ask(json!({ "max_tokens": 40 }))).json();
    let text = answer["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(3).unwrap();
    let fields = json!({ "max_tokens": 40, "stop_sequences": [word] });
    let answer = shared().post(PATH, &ask(fields)).json();
    assert_eq!(answer["stop_reason"], "stop_sequence");
    assert_eq!(answer["stop_sequence"], word);
}

#[test]
fn errors_have_anthropics_shape() {
    for body in [
        ask(json!({ "max_tokens": null })),
        ask(json!({ "max_tokens": -1 })),
        ask(json!({ "messages": [] })),
        ask(json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] })),
        ask(json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] })),
        ask(json!({ "temperature": "x" })),
    ] {
        let answer = shared().post(PATH, &body);
        assert_eq!(answer.status, 400, "{}", answer.text());
        let json = answer.json();
        assert_eq!(json["type"], "error");
        assert_eq!(json["error"]["type"], "invalid_request_error");
        assert!(json["error"]["message"].as_str().unwrap().contains('`'), "{json}");
        assert_eq!(json["request_id"], *answer.header("x-request-id").unwrap());
    }
}
