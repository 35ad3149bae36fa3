//! Sends requests with changed fields, and arbitrary bodies, to a server with the built-in model: each gets an answer or
//! an error with a message, none of status 500.
#![no_main]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use runtime::{Computation, ContextSize, DeviceOptions, Dialogue, Options};
use serde_json::{Value, json};
use serve::{Address, Config, Defaults, Endpoints, Limits, ServedModel, Server};
use thermocline::chat::{Template, builtin};
use thermocline::scheduler::SchedulerOptions;

/// Starts the server; returns its address.
static SERVER: LazyLock<String> = LazyLock::new(|| {
    let devices = DeviceOptions { backend: Some("cpu"), ..DeviceOptions::default() };
    let options = Options {
        n_parallel: NonZeroU32::new(2).expect("not zero"),
        n_ctx: NonZeroU32::new(512).map(ContextSize::Tokens),
        computation: Computation { devices, ..Computation::default() },
        ..Options::default()
    };
    let (engine, tokenizer) =
        runtime::Model::built_in(&options).expect("the built-in model").into_parts();
    let address = Address::Tcp { host: "127.0.0.1".to_owned(), port: 0 };
    let limits = Limits {
        max_body: 1 << 14,
        n_predict: Some(2),
        n_choices: 4,
        timeout: Duration::from_secs(10),
        ..Limits::default()
    };
    let endpoints = Endpoints { metrics: true, props: true, ..Endpoints::default() };
    let server = Server::bind(Config { address, limits, endpoints, ..Config::default() })
        .expect("a free port");
    let url = server.urls()[0].clone();
    let handle = server.handle();
    std::thread::spawn(move || server.run());
    let template = Template::compile(builtin("chatml").expect("a template")).expect("it compiles");
    let dialogue = Dialogue::with_template(template);
    let dialogue = runtime::dialogue::with_special_tokens(dialogue, &tokenizer);
    let (tokenizer, defaults) = (Arc::new(tokenizer), Defaults::default());
    let served =
        ServedModel::start(engine, tokenizer, dialogue, defaults, SchedulerOptions::default(), &[]);
    handle.ready(Arc::new(served.expect("a scheduler")));
    url.rsplit_once("//").expect("a URL").1.to_owned()
});

/// Requests whose fields are changed.
static REQUESTS: LazyLock<Vec<(&str, Value)>> = LazyLock::new(|| {
    let user = json!({"role": "user", "content": "Hi"});
    let object =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let function = json!({"name": "f", "description": "x", "parameters": object});
    let tool = json!({"type": "function", "function": function});
    vec![
        (
            "/v1/chat/completions",
            json!({
                "messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}, user], "n": 2,
                "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "stop": ["a"], "logit_bias": {"5": 1},
                "logprobs": true, "top_logprobs": 2, "seed": 1, "stream": false,
                "stream_options": {"include_usage": true}, "chat_template_kwargs": {"a": 1},
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": object}}
            }),
        ),
        (
            "/v1/chat/completions",
            json!({
                "messages": [
                    user, {"role": "assistant", "content": null, "tool_calls": [{
                        "id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                    {"role": "tool", "tool_call_id": "1", "content": "2"}
                ],
                "tools": [tool], "tool_choice": "auto", "parallel_tool_calls": false, "max_tokens": 2
            }),
        ),
        ("/v1/chat/completions/input_tokens", json!({"messages": [user]})),
        (
            "/v1/completions",
            json!({"prompt": ["a", "b"], "max_tokens": 1, "echo": true, "logprobs": 1, "best_of": 2, "suffix": null}),
        ),
        (
            "/completion",
            json!({
                "prompt": [1, "a"], "n_predict": 1, "samplers": ["top_k"], "logit_bias": [[1, false]],
                "id_slot": 0, "n_probs": 2, "repeat_last_n": -1, "response_fields": ["content"],
                "cache_prompt": true, "t_max_predict_ms": 10, "dry_sequence_breakers": ["x"], "min_keep": 1
            }),
        ),
        (
            "/completion",
            json!({"prompt": "a", "n_predict": 2, "grammar": "root ::= [a-z]+", "stream": true}),
        ),
        ("/completion", json!({"prompt": "a", "n_predict": 2, "json_schema": object})),
        (
            "/v1/messages",
            json!({
                "max_tokens": 1, "messages": [user], "system": "x", "stop_sequences": ["y"], "stream": true,
                "tools": [{"name": "f", "input_schema": object}], "tool_choice": {"type": "auto"}
            }),
        ),
        ("/v1/messages/count_tokens", json!({"messages": [user]})),
        (
            "/v1/responses",
            json!({"input": [user], "max_output_tokens": 1, "instructions": "x", "stream": true}),
        ),
        (
            "/tokenize",
            json!({"content": "x", "with_pieces": true, "add_special": true, "parse_special": false}),
        ),
        ("/detokenize", json!({"tokens": [1, 2]})),
        ("/apply-template", json!({"messages": [user]})),
        (
            "/infill",
            json!({"input_prefix": "a", "input_suffix": "b", "input_extra": [], "n_predict": 1}),
        ),
        ("/slots/0?action=erase", json!({"filename": "x"})),
        ("/props", json!({})),
        ("/v1/embeddings", json!({"input": ["x"], "encoding_format": "float", "dimensions": 2})),
        ("/rerank", json!({"query": "x", "documents": ["y"], "top_n": 1})),
    ]
});

fn unusual(u: &mut Unstructured) -> Result<Value> {
    Ok(match u.int_in_range(0..=19u8)? {
        0 => json!(null),
        1 => json!(u.arbitrary::<bool>()?),
        2 => json!(i64::MIN),
        3 => json!(u64::MAX),
        4 => json!(1e300),
        5 => json!(u.arbitrary::<i32>()?),
        6 => json!(f64::from(u.arbitrary::<u8>()?) / 16.0),
        7 => json!(""),
        8 => json!("\u{0}"),
        9 => json!("\u{202e}日"),
        10 => json!([]),
        11 => json!({}),
        12 => json!([null]),
        13 => json!([-5, 1e9]),
        14 => json!([{"role": "user"}]),
        15 => json!("../../etc/passwd"),
        16 => (0..60).fold(json!(1), |inner, _| json!([inner])),
        17 => json!({"type": u.arbitrary::<&str>()?}),
        18 => json!("x".repeat(u.int_in_range(0..=4000)?)),
        _ => json!(u.arbitrary::<&str>()?),
    })
}

/// Replaces, removes or adds one value somewhere inside of `value`.
fn change(value: &mut Value, u: &mut Unstructured) -> Result<()> {
    let deeper = u.ratio(7u8, 10)?;
    match value {
        Value::Object(map) if deeper && !map.is_empty() => {
            let names: Vec<String> = map.keys().cloned().collect();
            let name = u.choose(&names)?;
            match u.int_in_range(0..=9u8)? {
                0 => drop(map.remove(name)),
                1 => drop(map.insert(u.arbitrary::<&str>()?.to_owned(), unusual(u)?)),
                _ => change(&mut map[name], u)?,
            }
        }
        Value::Array(items) if deeper && !items.is_empty() => {
            let at = u.choose_index(items.len())?;
            match u.int_in_range(0..=9u8)? {
                0 => drop(items.remove(at)),
                1 => items.insert(at, unusual(u)?),
                _ => change(&mut items[at], u)?,
            }
        }
        other => *other = unusual(u)?,
    }
    Ok(())
}

/// A path and a body.
fn request(u: &mut Unstructured) -> Result<(&'static str, Vec<u8>)> {
    let (path, body) = &REQUESTS[u.choose_index(REQUESTS.len())?];
    if u.ratio(1u8, 8)? {
        return Ok((path, u.bytes(u.len())?.to_vec()));
    }
    let mut body = body.clone();
    for _ in 0..u.int_in_range(1..=4u8)? {
        change(&mut body, u)?;
    }
    Ok((path, body.to_string().into_bytes()))
}

fn send(path: &str, body: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(&**SERVER).expect("the server listens");
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    // The server may answer a body that is too large before it has read all of it.
    let _ = stream.write_all(&[head.as_bytes(), body].concat());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    answer
}

fuzz_target!(|input: &[u8]| {
    let Ok((path, body)) = request(&mut Unstructured::new(input)) else { return };
    let answer = send(path, &body);
    let text = String::from_utf8_lossy(&answer);
    let status = text.split(' ').nth(1).and_then(|status| status.parse::<u16>().ok());
    let status = status.unwrap_or_else(|| panic!("{path}: no status in {text:?}"));
    assert!(status != 500, "{path} {}: {text}", String::from_utf8_lossy(&body));
    if status >= 400 {
        let (_, body) = text.split_once("\r\n\r\n").expect("a body");
        let error: Value =
            serde_json::from_str(body).unwrap_or_else(|e| panic!("{path}: {e} in {body:?}"));
        let message = error["error"]["message"].as_str().or(error["error"].as_str());
        assert!(message.is_some_and(|message| !message.is_empty()), "{path}: {body}");
    }
});
