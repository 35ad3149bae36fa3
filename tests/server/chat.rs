//! `/v1/chat/completions`.

use serde_json::{Value, json};

use super::shared;

fn ask(more: Value) -> Value {
    let mut body = json!({
        "model": "any",
        "max_tokens": 8,
        "messages": [
            { "role": "system", "content": "Tell stories." },
            { "role": "user", "content": "Tell me of a cat." },
        ],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

const PATH: &str = "/v1/chat/completions";

#[test]
fn an_answer_has_all_members() {
    let answer = shared().post(PATH, &ask(json!({}))).json();
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!(answer["object"], "chat.completion");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(answer["system_fingerprint"].as_str().unwrap().starts_with('b'));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let prompt = usage["prompt_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], prompt + 8);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    let timings = &answer["timings"];
    assert_eq!(timings["predicted_n"], 8);
    assert_eq!(
        timings["prompt_n"].as_u64().unwrap() + timings["cache_n"].as_u64().unwrap(),
        prompt
    );
}

#[test]
fn the_alias_without_a_version_is_the_same() {
    let text = |path: &str| {
        let answer = shared().post(path, &ask(json!({}))).json();
        answer["choices"][0]["message"]["content"].clone()
    };
    assert_eq!(text(PATH), text("/chat/completions"));
}

#[test]
fn a_stream_has_the_same_text_and_the_official_shape() {
    let whole = shared().post(PATH, &ask(json!({}))).json();
    let fields = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let answer = shared().post(PATH, &ask(fields));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    let events = answer.events();
    assert_eq!(events[0]["choices"][0]["delta"], json!({ "role": "assistant", "content": null }));
    let mut text = String::new();
    for event in &events {
        assert_eq!(event["object"], "chat.completion.chunk");
        for name in ["id", "created", "model"] {
            assert_eq!(event[name], events[0][name]);
        }
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());
    let [.., finish, usage] = events.as_slice() else { panic!("too few events") };
    assert_eq!(finish["choices"][0]["finish_reason"], "length");
    assert_eq!(finish["choices"][0]["delta"], json!({}));
    assert_eq!((&finish["usage"], &usage["choices"]), (&Value::Null, &json!([])));
    assert_eq!(usage["usage"]["completion_tokens"], 8);
    assert!(usage["timings"]["predicted_per_second"].is_f64());
    let plain = shared().post(PATH, &ask(json!({ "stream": true }))).events();
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn choices_have_different_seeds() {
    let fields = json!({ "n": 3, "temperature": 1.5, "seed": 5, "max_tokens": 12, "top_k": 0 });
    let answer = shared().post(PATH, &ask(fields.clone())).json();
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter().enumerate();
        let text = |(i, choice): (usize, &Value)| {
            assert_eq!(choice["index"], i);
            choice["message"]["content"].as_str().unwrap().to_owned()
        };
        choices.map(text).collect()
    };
    let three = texts(&answer);
    assert_eq!(three.len(), 3);
    assert!(three[0] != three[1] && three[1] != three[2], "{three:?}");
    assert_eq!(three, texts(&shared().post(PATH, &ask(fields)).json()), "the same seed");
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    let stream = json!({ "n": 2, "stream": true });
    let events = shared().post(PATH, &ask(stream)).events();
    for index in 0..2 {
        let has_index = |event: &&Value| event["choices"][0]["index"] == index;
        let last = events.iter().rfind(has_index).unwrap();
        assert_eq!(last["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn log_probabilities_cover_the_answer() {
    let fields = json!({ "logprobs": true, "top_logprobs": 4 });
    let answer = shared().post(PATH, &ask(fields)).json();
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 8);
    let mut bytes = Vec::new();
    for token in content {
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        // Greedy: the chosen token is the most likely one.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
    let stream = json!({ "logprobs": true, "stream": true });
    let events = shared().post(PATH, &ask(stream)).events();
    let has_list = |event: &&Value| event["choices"][0]["logprobs"]["content"].is_array();
    assert_eq!(events.iter().filter(has_list).count(), 8);
    // Text that is held back until the end also has log-probabilities.
    let stream = json!({ "logprobs": true, "stream": true, "stop": format!("{text}#") });
    let events = shared().post(PATH, &ask(stream)).events();
    let chunks: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0])
        .filter(|choice| choice["delta"]["content"].is_string())
        .collect();
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0]["delta"]["content"], text);
    assert_eq!(chunks[0]["logprobs"]["content"].as_array().unwrap().len(), 8);
}

#[test]
fn a_stop_string_is_not_shown() {
    let answer = shared().post(PATH, &ask(json!({ "max_tokens": 40 }))).json();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let word = text.split_whitespace().nth(3).unwrap();
    let (before, _) = text.split_once(word).unwrap();
    for stop in [json!(word), json!(["no such text", word])] {
        let fields = json!({ "stop": stop, "max_tokens": 40 });
        let answer = shared().post(PATH, &ask(fields)).json();
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert_eq!(answer["choices"][0]["message"]["content"], before);
    }
}

#[test]
fn a_second_turn_reuses_the_first() {
    let first = ask(json!({}));
    let answer = shared().post(PATH, &first).json();
    let mut messages = first["messages"].as_array().unwrap().clone();
    messages.push(answer["choices"][0]["message"].clone());
    messages.push(json!({ "role": "user", "content": "And of a dog?" }));
    let answer = shared().post(PATH, &ask(json!({ "messages": messages }))).json();
    let usage = &answer["usage"];
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 32 && cached < usage["prompt_tokens"].as_u64().unwrap(), "{usage}");
    let off = json!({ "cache_prompt": false });
    let usage = shared().post(PATH, &ask(off)).json()["usage"].clone();
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn the_beginning_of_an_answer_is_continued() {
    let user = json!({ "role": "user", "content": "Hi" });
    let body = json!({ "messages": [user, { "role": "assistant", "content": "Once" }] });
    let prompt = shared().post("/apply-template", &body).json()["prompt"].clone();
    assert!(prompt.as_str().unwrap().ends_with("<|im_start|>assistant\nOnce"), "{prompt}");
    let fields = json!({ "messages": body["messages"], "verbose": true });
    let answer = shared().post(PATH, &ask(fields)).json();
    // The tokens as text: with BOS, and the space that the vocabulary prepends.
    let tokens = format!("<s> {}", prompt.as_str().unwrap());
    assert_eq!(answer["__verbose"]["prompt"], tokens);
}

#[test]
fn llama_servers_extensions_work() {
    let fields = json!({ "stream": true, "timings_per_token": true, "return_progress": true });
    let events = shared().post(PATH, &ask(fields)).events();
    let token = |event: &&Value| event["choices"][0]["delta"]["content"].is_string();
    assert!(events.iter().filter(token).all(|event| event["timings"]["predicted_n"].is_u64()));
    let progress: Vec<&Value> =
        events.iter().map(|event| &event["prompt_progress"]).filter(|p| p.is_object()).collect();
    let last = progress.last().unwrap();
    assert_eq!(last["processed"], last["total"]);
    let ignore = json!({ "ignore_eos": true, "max_tokens": 300, "min_p": 0.1, "top_k": 5 });
    let answer = shared().post(PATH, &ask(ignore)).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
}

#[test]
fn errors_name_the_field() {
    for (more, param) in [
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [{ "role": "user", "content": 1 }] }), "messages[0].content"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 1000 }), "n"),
        (json!({ "top_logprobs": 5 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "stop": 5 }), "stop"),
        (json!({ "logit_bias": { "999999": 1 } }), "logit_bias"),
        (json!({ "id_slot": 99 }), "id_slot"),
        (json!({ "mirostat": 3 }), "mirostat"),
        (json!({ "adaptive_target": 0.5 }), "adaptive_target"),
        (json!({ "dry_sequence_breakers": "x" }), "dry_sequence_breakers"),
        (json!({ "response_format": { "type": "sound" } }), "response_format"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0]"),
    ] {
        let error = shared().post(PATH, &ask(more)).error(400);
        assert_eq!(error["param"], param, "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let unknown = json!({ "no_such_field": 1, "user": "me", "service_tier": "auto" });
    assert_eq!(shared().post(PATH, &ask(unknown)).status, 200);
}

#[test]
fn a_prompt_beyond_the_context_is_refused_with_its_size() {
    let long = "a story of a cat and a dog ".repeat(3000);
    let fields = json!({ "messages": [{ "role": "user", "content": long }], "stream": true });
    let error = shared().post(PATH, &ask(fields)).error(400);
    assert_eq!(error["type"], "exceed_context_size_error");
    assert!(error["n_prompt_tokens"].as_u64().unwrap() > error["n_ctx"].as_u64().unwrap());
}

#[test]
fn tokens_of_a_conversation_are_counted() {
    let counted = shared().post("/v1/chat/completions/input_tokens", &ask(json!({}))).json();
    let used = shared().post(PATH, &ask(json!({}))).json()["usage"]["prompt_tokens"].clone();
    assert_eq!(counted["input_tokens"], used);
}
