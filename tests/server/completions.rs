//! `/v1/completions`.

use serde_json::{Value, json};

use super::shared;

const PATH: &str = "/v1/completions";

fn ask(more: Value) -> Value {
    let mut body = json!({ "prompt": "Once upon a time", "max_tokens": 6 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["text"].as_str().unwrap()
}

#[test]
fn a_stream_has_the_text_of_the_whole_answer() {
    let answer = shared().post(PATH, &ask(json!({}))).json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["logprobs"], Value::Null);
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    let request = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let events = shared().post(PATH, &ask(request)).events();
    let streamed: String = events
        .iter()
        .map(|event| event["choices"][0]["text"].as_str().unwrap_or_default())
        .collect();
    assert_eq!(streamed, text(&answer));
    assert_eq!(events.last().unwrap()["usage"]["completion_tokens"], 6);
}

#[test]
fn a_prompt_may_be_tokens_or_a_list_of_prompts() {
    let tokens = shared()
        .post("/tokenize", &json!({ "content": "Once upon a time", "add_special": true }))
        .json()["tokens"]
        .clone();
    let expected = shared().post(PATH, &ask(json!({}))).json();
    let by_tokens = shared().post(PATH, &ask(json!({ "prompt": tokens }))).json();
    assert_eq!(text(&by_tokens), text(&expected));
    for prompts in [json!(["Once upon a time", "The dog"]), json!([tokens, tokens])] {
        let answer = shared().post(PATH, &ask(json!({ "prompt": prompts, "n": 2 }))).json();
        let choices = answer["choices"].as_array().unwrap();
        assert_eq!(choices.len(), 4);
        assert!(choices.iter().enumerate().all(|(i, choice)| choice["index"] == i));
        assert_eq!(text(&answer), text(&expected));
        assert_eq!(answer["usage"]["completion_tokens"], 24);
    }
}

#[test]
fn echo_repeats_the_prompt_with_its_log_probabilities() {
    let plain = shared().post(PATH, &ask(json!({ "echo": true }))).json();
    assert!(text(&plain).starts_with("Once upon a time"), "{}", text(&plain));
    // A request as lm-evaluation-harness sends it.
    let request = json!({ "echo": true, "logprobs": 2, "max_tokens": 0, "temperature": 0 });
    let answer = shared().post(PATH, &ask(request)).json();
    assert_eq!(text(&answer), "Once upon a time");
    let logprobs = &answer["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap();
    let n = answer["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(name).len(), n, "{name}");
    }
    assert_eq!(list("token_logprobs")[0], Value::Null);
    assert!(list("token_logprobs")[1..].iter().all(|p| p.as_f64().unwrap() < 0.0));
    assert_eq!(list("top_logprobs")[1].as_object().unwrap().len(), 2);
    let request = json!({ "echo": true, "logprobs": 1, "n": 2 });
    let answer = shared().post(PATH, &ask(request.clone())).json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), n + 6);
    }
    let mut stream = request;
    stream["stream"] = true.into();
    let events = shared().post(PATH, &ask(stream)).events();
    let first: Vec<&Value> =
        events.iter().filter(|event| event["choices"][0]["index"] == 1).collect();
    assert_eq!(first[0]["choices"][0]["text"], "Once upon a time");
    assert_eq!(first[0]["choices"][0]["logprobs"]["tokens"].as_array().unwrap().len(), n);
}

#[test]
fn text_that_was_held_back_has_its_log_probabilities() {
    let answer = shared().post(PATH, &ask(json!({ "logprobs": 1 }))).json();
    let stop = format!("{}#", text(&answer));
    let request = json!({ "logprobs": 1, "stream": true, "stop": stop });
    let events = shared().post(PATH, &ask(request)).events();
    let chunks: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0])
        .filter(|choice| choice["text"] != "")
        .collect();
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0]["text"], text(&answer));
    assert_eq!(chunks[0]["logprobs"], answer["choices"][0]["logprobs"]);
}

#[test]
fn log_probabilities_are_listed_per_token() {
    let answer = shared().post(PATH, &ask(json!({ "logprobs": 3 }))).json();
    let logprobs = &answer["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(logprobs["text_offset"][0], 0);
    let tokens = logprobs["tokens"].as_array().unwrap().iter();
    let joined: String = tokens.map(|token| token.as_str().unwrap()).collect();
    assert_eq!(joined, text(&answer));
}

#[test]
fn the_best_of_several_is_returned() {
    let request = json!({ "best_of": 4, "temperature": 1.2, "seed": 3, "logprobs": 0 });
    let best = shared().post(PATH, &ask(request)).json();
    assert_eq!(best["choices"].as_array().unwrap().len(), 1);
    assert_eq!(best["usage"]["completion_tokens"], 24);
    let mean = |choice: &Value| {
        let all = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        all.iter().map(|p| p.as_f64().unwrap()).sum::<f64>() / all.len() as f64
    };
    let request = json!({ "n": 4, "temperature": 1.2, "seed": 3, "logprobs": 0 });
    let all = shared().post(PATH, &ask(request)).json();
    let highest = all["choices"].as_array().unwrap().iter().map(mean).fold(f64::MIN, f64::max);
    assert!((mean(&best["choices"][0]) - highest).abs() < 1e-6);
    for bad in [json!({ "best_of": 1, "n": 2 }), json!({ "best_of": 2, "stream": true })] {
        assert_eq!(shared().post(PATH, &ask(bad)).error(400)["param"], "best_of");
    }
}

#[test]
fn a_suffix_needs_fill_in_the_middle_tokens() {
    let error = shared().post(PATH, &ask(json!({ "suffix": "The end." }))).error(501);
    assert_eq!(
        (&error["type"], &error["param"]),
        (&json!("not_supported_error"), &json!("suffix"))
    );
    assert_eq!(shared().post(PATH, &ask(json!({ "suffix": "" }))).status, 200);
}

#[test]
fn bad_prompts_are_refused() {
    for prompt in [json!(null), json!({}), json!(5), json!([true]), json!([999_999]), json!([-1])] {
        let error = shared().post(PATH, &ask(json!({ "prompt": prompt }))).error(400);
        assert_eq!(error["param"], "prompt", "{error}");
    }
}
