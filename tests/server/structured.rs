//! Constrained output and tool calls, in the APIs of OpenAI, Anthropic and llama-server.

use serde_json::{Value, json};

use super::shared;

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "count": { "type": "integer", "minimum": 0, "maximum": 99 },
            "color": { "enum": ["red", "green"] },
        },
        "required": ["count", "color"],
        "additionalProperties": false,
    })
}

#[track_caller]
fn check(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!((0..=99).contains(&value["count"].as_i64().unwrap()), "{text}");
    assert!(["red", "green"].contains(&value["color"].as_str().unwrap()), "{text}");
    assert_eq!(value.as_object().unwrap().len(), 2);
}

fn ask(more: Value) -> Value {
    let mut body = json!({
        "max_tokens": 2000, "temperature": 1.0, "seed": 3,
        "messages": [{ "role": "user", "content": "How many cats, and of which color?" }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const CHAT: &str = "/v1/chat/completions";

#[test]
fn a_schema_holds_for_each_choice() {
    let format =
        json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema() } });
    let fields = json!({ "response_format": format, "n": 3 });
    let answer = shared().post(CHAT, &ask(fields)).json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop");
        check(choice["message"]["content"].as_str().unwrap());
    }
    let events = shared().post(CHAT, &ask(json!({ "json_schema": schema(), "stream": true })));
    let events = events.events();
    let texts = events.iter().map(|e| e["choices"][0]["delta"]["content"].as_str().unwrap_or(""));
    check(&texts.collect::<String>());
    let body = json!({ "prompt": "Cats:", "json_schema": schema(), "n_predict": 2000 });
    check(shared().post("/completion", &body).json()["content"].as_str().unwrap());
    let text = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema() } });
    let body = json!({ "input": "Cats?", "text": text, "max_output_tokens": 2000 });
    let answer = shared().post("/v1/responses", &body).json();
    check(answer["output"][0]["content"][0]["text"].as_str().unwrap());
}

#[test]
fn grammars_constrain_the_answer() {
    let text = |more: Value| {
        let answer = shared().post(CHAT, &ask(more)).json();
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({ "grammar": "root ::= \"a\"{5,5}" })), "aaaaa");
    assert!(["yes", "no"].contains(&text(json!({ "guided_choice": ["yes", "no"] })).as_str()));
    let digits = text(json!({ "guided_regex": "[0-9]{4}" }));
    assert!(digits.len() == 4 && digits.chars().all(|c| c.is_ascii_digit()), "{digits}");
    for (more, param) in [
        (json!({ "grammar": "root ::= this is (not valid" }), "grammar"),
        (json!({ "json_schema": { "type": "hiccup" } }), "json_schema"),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "response_format": { "type": "sound" } }), "response_format"),
    ] {
        assert_eq!(shared().post(CHAT, &ask(more)).error(400)["param"], param);
    }
}

fn tools() -> Value {
    let tool = |name: &str| {
        json!({ "type": "function", "function": {
            "name": name, "description": "Counts.", "parameters": schema(),
        } })
    };
    json!([tool("count_cats"), tool("count_dogs")])
}

#[test]
fn a_required_call_is_valid_whole_and_streamed() {
    let fields =
        json!({ "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false });
    let answer = shared().post(CHAT, &ask(fields.clone())).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert_eq!(choice["message"]["content"], Value::Null);
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 1);
    let function = &calls[0]["function"];
    assert!(["count_cats", "count_dogs"].contains(&function["name"].as_str().unwrap()));
    check(function["arguments"].as_str().unwrap());
    let mut stream = fields;
    stream["stream"] = true.into();
    let events = shared().post(CHAT, &ask(stream)).events();
    let (mut name, mut arguments) = (String::new(), String::new());
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        assert!(delta["content"].as_str().unwrap_or_default().is_empty(), "{delta}");
        let function = &delta["tool_calls"][0]["function"];
        name += function["name"].as_str().unwrap_or_default();
        arguments += function["arguments"].as_str().unwrap_or_default();
    }
    assert_eq!(
        (json!(name), json!(arguments)),
        (function["name"].clone(), function["arguments"].clone())
    );
    let last = events.last().unwrap();
    assert_eq!(last["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn a_named_tool_is_called_and_its_result_is_read() {
    let named = json!({ "type": "function", "function": { "name": "count_dogs" } });
    let fields = json!({ "tools": tools(), "tool_choice": named, "parallel_tool_calls": false });
    let message = shared().post(CHAT, &ask(fields)).json()["choices"][0]["message"].clone();
    assert_eq!(message["tool_calls"][0]["function"]["name"], "count_dogs");
    let result = json!({
        "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "7",
    });
    let user = json!({ "role": "user", "content": "How many dogs?" });
    let next = json!({ "messages": [user, message, result], "tools": tools(), "max_tokens": 5 });
    assert_eq!(shared().post(CHAT, &ask(next)).status, 200);
    let none = json!({ "tools": tools(), "tool_choice": "none", "max_tokens": 5 });
    let message = shared().post(CHAT, &ask(none)).json()["choices"][0]["message"].clone();
    assert!(message.get("tool_calls").is_none() && message["content"].is_string());
}

#[test]
fn messages_and_responses_return_tool_calls() {
    let tool = json!({ "name": "count_cats", "input_schema": schema() });
    let choice = json!({ "type": "any", "disable_parallel_tool_use": true });
    let mut body = json!({
        "max_tokens": 2000, "tools": [tool], "tool_choice": choice,
        "messages": [{ "role": "user", "content": "How many cats?" }],
    });
    let answer = shared().post("/v1/messages", &body).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    let block = &answer["content"][0];
    assert_eq!((&block["type"], &block["name"]), (&json!("tool_use"), &json!("count_cats")));
    check(&block["input"].to_string());
    body["stream"] = true.into();
    let events = shared().post("/v1/messages", &body).events();
    let parts = events.iter().map(|e| e["delta"]["partial_json"].as_str().unwrap_or_default());
    check(&parts.collect::<String>());

    let tool = json!({ "type": "function", "name": "count_cats", "parameters": schema() });
    let mut body = json!({
        "input": "How many cats?", "tools": [tool], "tool_choice": "required",
        "parallel_tool_calls": false, "max_output_tokens": 2000,
    });
    let answer = shared().post("/v1/responses", &body).json();
    let item = &answer["output"][0];
    assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!("count_cats")));
    check(item["arguments"].as_str().unwrap());
    body["stream"] = true.into();
    let events = shared().post("/v1/responses", &body).events();
    let done = |e: &&Value| e["type"] == "response.function_call_arguments.done";
    let done = events.iter().find(done).unwrap();
    check(done["arguments"].as_str().unwrap());
    let output =
        json!({ "type": "function_call_output", "call_id": item["call_id"], "output": "7" });
    let user = json!({ "role": "user", "content": "How many cats?" });
    let next = json!({ "input": [user, item, output], "max_output_tokens": 5 });
    assert_eq!(shared().post("/v1/responses", &next).status, 200);
}
