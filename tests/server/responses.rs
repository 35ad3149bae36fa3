//! `/v1/responses`.

use serde_json::{Value, json};

use super::shared;

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "any", "max_output_tokens": 8, "instructions": "Tell stories.",
        "input": [{ "role": "user", "content": "Tell me of a cat." }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const PATH: &str = "/v1/responses";

#[test]
fn a_response_has_a_message() {
    let answer = shared().post(PATH, &ask(json!({}))).json();
    assert!(answer["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(answer["object"], "response");
    assert_eq!(answer["status"], "incomplete");
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(answer["instructions"], "Tell stories.");
    let item = &answer["output"][0];
    assert!(item["id"].as_str().unwrap().starts_with("msg_"));
    assert!(!item["content"][0]["text"].as_str().unwrap().is_empty());
    assert_eq!(answer["usage"]["output_tokens"], 8);
    let parts = json!([{ "type": "message", "role": "user",
        "content": [{ "type": "input_text", "text": "Tell me of a cat." }] }]);
    let same = shared().post(PATH, &ask(json!({ "input": parts }))).json();
    assert_eq!(same["output"][0]["content"], item["content"]);
}

#[test]
fn a_stream_opens_and_closes_each_part() {
    let whole = shared().post(PATH, &ask(json!({}))).json();
    let events = shared().post(PATH, &ask(json!({ "stream": true }))).events();
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(
        kinds[..4],
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
        ]
    );
    assert!(kinds.ends_with(&[
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]));
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64));
    let texts = events.iter().map(|event| event["delta"].as_str().unwrap_or_default());
    let text: String = texts.collect();
    assert_eq!(text, whole["output"][0]["content"][0]["text"].as_str().unwrap());
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], *text);
    assert_eq!(last["usage"]["output_tokens"], 8);
}

#[test]
fn unsupported_fields_are_refused_by_name() {
    for (more, param) in [
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "background": true }), "background"),
        (json!({ "store": true }), "store"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools"),
        (json!({ "input": 5 }), "input"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input[0]"),
        (json!({ "text": { "format": { "type": "sound" } } }), "response_format"),
    ] {
        assert_eq!(shared().post(PATH, &ask(more)).error(400)["param"], param);
    }
}
