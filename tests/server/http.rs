//! Keys, origins, limits, errors, clients that disconnect, shutdown.

use std::io::Read;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::serve::{Config, Cors, Endpoints, Limits, LogFormat, LogOptions};
use scheduler::SchedulerOptions;
use serde_json::{Value, json};

use super::client::Client;
use super::{TestServer, config, shared};

fn start(config: Config) -> TestServer {
    TestServer::start(config, SchedulerOptions::default())
}

#[test]
fn health_models_and_the_page_are_served() {
    for path in ["/health", "/v1/health"] {
        assert_eq!(shared().get(path).json(), json!({ "status": "ok" }));
    }
    let models = shared().get("/v1/models").json();
    assert_eq!(models["object"], "list");
    let id = models["data"][0]["id"].as_str().unwrap();
    assert!(models["data"][0]["meta"]["n_params"].as_u64().unwrap() > 1_000_000);
    assert_eq!(shared().get(&format!("/v1/models/{id}")).json()["id"], id);
    assert_eq!(shared().get("/v1/models/gpt-9").error(404)["type"], "not_found_error");
    let page = shared().get("/");
    assert!(page.text().to_ascii_lowercase().starts_with("<!doctype html>"));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
}

#[test]
fn every_route_of_the_description_exists() {
    let document = shared().get("/openapi.json").json();
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 25);
    for (path, methods) in paths {
        let path = path.replace("{id}", "0").replace("{file}", "index.html");
        for method in methods.as_object().unwrap().keys() {
            if path == "/thermocline/events" {
                continue;
            }
            let body = (method == "post").then_some(b"[]".as_slice());
            let answer = shared().send(&method.to_uppercase(), &path, body);
            assert_ne!(answer.status, 405, "{method} {path}");
            let wrong = answer.status == 404 && answer.text().contains("no such path");
            assert!(!wrong, "{method} {path}");
        }
    }
}

#[test]
fn errors_have_their_status() {
    let client = shared();
    client.get("/nowhere").error(404);
    client.get("/v1/chat/completions").error(405);
    client.send("DELETE", "/health", None).error(405);
    client.send("POST", "/tokenize", Some(b"{")).error(400);
    client.send("POST", "/tokenize", Some(b"[1]")).error(400);
    client.send("POST", "/tokenize", Some(b"")).error(400);
    let text = client.with_header("content-type", "text/plain");
    text.send("POST", "/tokenize", Some(b"{}")).error(415);
    let large = format!("{{\"content\": \"{}\"}}", "x".repeat(1 << 20));
    client.send("POST", "/tokenize", Some(large.as_bytes())).error(413);
    let id = client.with_header("x-request-id", "my-id").get("/nowhere");
    assert_eq!(id.header("x-request-id"), Some("my-id"));
    assert!(client.get("/health").header("x-request-id").unwrap().starts_with("req_"));
}

#[test]
fn a_body_that_ends_early_is_invalid_and_not_too_large() {
    use std::io::{Read as _, Write as _};
    let broken: [&[u8]; 2] =
        [b"content-length: 99\r\n\r\n{\"content\"", b"transfer-encoding: chunked\r\n\r\nzz\r\n{}"];
    for rest in broken {
        let mut stream = std::net::TcpStream::connect(shared().address()).unwrap();
        let head = b"POST /tokenize HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n";
        stream.write_all(&[head, rest].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
}

#[test]
fn keys_guard_all_but_the_public_paths() {
    let server = start(Config { keys: vec!["one".into(), "two".into()], ..config() });
    let client = &server.client;
    for path in ["/health", "/v1/models", "/models", "/", "/openapi.json"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
    let wrong = client.with_header("authorization", "Bearer three");
    for path in ["/props", "/slots", "/metrics", "/thermocline", "/nowhere"] {
        let answer = client.get(path);
        assert_eq!(answer.error(401)["type"], "authentication_error");
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        wrong.get(path).error(401);
    }
    assert_eq!(client.with_header("authorization", "Bearer two").get("/props").status, 200);
    assert_eq!(client.with_header("x-api-key", "one").get("/props").status, 200);
    let anthropic = client.post("/v1/messages", &json!({})).json();
    assert_eq!(anthropic["error"]["type"], "authentication_error");
}

#[test]
fn origins_are_refused_unless_they_are_set() {
    let asks = |client: &Client, origin: &str| {
        let client = client
            .with_header("origin", origin)
            .with_header("access-control-request-method", "POST");
        let client = client.with_header("access-control-request-headers", "authorization");
        let answer = client.send("OPTIONS", "/v1/chat/completions", None);
        assert_eq!(answer.status, 200);
        let allowed = answer.header("access-control-allow-origin").map(str::to_owned);
        assert_eq!(answer.header("access-control-allow-headers").is_some(), allowed.is_some());
        let methods = allowed.as_ref().map(|_| "GET, POST, DELETE, OPTIONS");
        assert_eq!(answer.header("access-control-allow-methods"), methods);
        allowed
    };
    assert_eq!(asks(shared(), "http://localhost"), None);
    let foreign = shared().with_header("origin", "http://evil.com");
    let refused = foreign.post("/tokenize", &json!({ "content": "x" }));
    assert_eq!(refused.error(403)["type"], "permission_error");
    let server = start(Config { cors: Cors::Localhost, ..config() });
    let local = "http://localhost:3000";
    assert_eq!(asks(&server.client, local).as_deref(), Some(local));
    assert_eq!(asks(&server.client, "http://evil.com"), None);
    let answer = server.client.with_header("origin", local).get("/health");
    assert_eq!(answer.header("access-control-allow-origin"), Some(local));
}

#[test]
fn endpoints_can_be_off() {
    let endpoints = Endpoints { metrics: false, slots: false, props: false, page: false };
    let server = start(Config { endpoints, ..config() });
    server.client.get("/metrics").error(501);
    server.client.get("/slots").error(501);
    server.client.post("/props", &json!({})).error(501);
    server.client.get("/").error(404);
}

#[test]
fn requests_wait_for_the_model_with_503() {
    let server = TestServer::loading(config());
    let answer = server.client.get("/health");
    assert_eq!(answer.error(503)["type"], "unavailable_error");
    assert_eq!(answer.header("retry-after"), Some("1"));
    server.client.post("/v1/completions", &json!({ "prompt": "x" })).error(503);
    server.handle.failed("no memory");
    let error = server.client.get("/health").error(500);
    assert!(error["message"].as_str().unwrap().contains("no memory"));
}

/// Number of busy slots, and of waiting requests.
fn load(client: &Client) -> (usize, f64) {
    let slots = client.get("/slots").json();
    let busy =
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count();
    let metrics = client.get("/metrics");
    let line =
        metrics.text().lines().find_map(|l| l.strip_prefix("thermocline:requests_deferred "));
    (busy, line.unwrap().parse().unwrap())
}

#[track_caller]
fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Number of tokens of the answer to a [`long_request`]; four such answers fit into the context.
const LONG_ANSWER: usize = 1800;

/// The body of a request that runs for seconds unless the client disconnects.
fn long_request(stream: bool) -> Vec<u8> {
    let body = json!({
        "prompt": "Once upon a time", "n_predict": LONG_ANSWER, "ignore_eos": true, "stream": stream,
        "temperature": 1.0,
    });
    body.to_string().into_bytes()
}

#[test]
fn a_disconnect_frees_its_slot_and_a_full_queue_is_429() {
    let options = SchedulerOptions { max_queued: 2, ..SchedulerOptions::default() };
    let server = TestServer::start(config(), options);
    let client = &server.client;
    for stream in [true, false] {
        // Send one after the other, because a request counts as waiting until the next step.
        let mut open = Vec::new();
        for n in 1..=4 {
            open.push(client.open("POST", "/completion", Some(&long_request(stream))));
            wait_for("one more slot is busy", || load(client).0 == n);
        }
        for n in 1..=2 {
            open.push(client.open("POST", "/completion", Some(&long_request(stream))));
            wait_for("one more request waits", || load(client).1 == f64::from(n));
        }
        let refused = client.send("POST", "/completion", Some(&long_request(false)));
        assert_eq!(refused.error(429)["type"], "rate_limit_error");
        assert_eq!(refused.header("retry-after"), Some("1"));
        if stream {
            let mut first = [0; 64];
            open[0].read_exact(&mut first).unwrap();
        }
        drop(open);
        wait_for("all slots are free", || load(client) == (0, 0.0));
    }
    let metrics = client.get("/metrics");
    let tokens = metrics.text().lines();
    let mut tokens =
        tokens.filter_map(|line| line.strip_prefix("thermocline:tokens_predicted_total "));
    let tokens: usize = tokens.next_back().unwrap().parse().unwrap();
    assert!(tokens < 4 * LONG_ANSWER, "{tokens} tokens were generated after disconnects");
    assert_eq!(client.post("/completion", &json!({ "prompt": "x", "n_predict": 1 })).status, 200);
}

#[test]
fn a_request_that_takes_too_long_ends() {
    let limits = Limits { timeout: Duration::from_millis(300), ..config().limits };
    let server = start(Config { limits, ..config() });
    let client = &server.client;
    let answer = client.send("POST", "/completion", Some(&long_request(false)));
    assert!(answer.error(503)["message"].as_str().unwrap().contains("--timeout"));
    assert_eq!(answer.header("x-should-retry"), Some("false"));
    let events = client.send("POST", "/completion", Some(&long_request(true))).events();
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["code"], 503, "{error}");
    wait_for("the slot is free", || load(client).0 == 0);
}

#[test]
fn tokens_are_limited() {
    let limits = Limits { n_predict: Some(3), ..config().limits };
    let server = start(Config { limits, ..config() });
    let body = json!({ "prompt": "Once", "n_predict": 50 });
    assert_eq!(server.client.post("/completion", &body).json()["tokens_predicted"], 3);
}

#[test]
fn idle_streams_get_comments() {
    let limits = Limits { keep_alive: Duration::from_millis(20), ..config().limits };
    let server = start(Config { limits, ..config() });
    let mut stream = server.client.open("GET", "/thermocline/events", None);
    let mut text = String::new();
    wait_for("a comment", || {
        let mut bytes = [0; 512];
        let n = stream.read(&mut bytes).unwrap();
        text += &String::from_utf8_lossy(&bytes[..n]);
        text.contains(": keep-alive\n\n")
    });
}

#[test]
fn the_live_view_has_layers_and_events() {
    let view = shared().get("/thermocline").json();
    let layers = view["layers"].as_array().unwrap();
    assert!(!layers.is_empty());
    for layer in layers {
        let on: u64 =
            layer["neurons"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).sum();
        assert_eq!(on, layer["n_neurons"].as_u64().unwrap());
    }
    assert!(view["devices"][0]["used_bytes"].as_u64().unwrap() > 0);
    let server = start(config());
    let mut stream = server.client.open("GET", "/thermocline/events", None);
    let mut text = String::new();
    let mut read = |text: &mut String| {
        let mut bytes = [0; 4096];
        let n = stream.read(&mut bytes).unwrap();
        *text += &String::from_utf8_lossy(&bytes[..n]);
    };
    // Tokens from before the first event are not in the events.
    wait_for("the first event", || {
        read(&mut text);
        text.contains("data: ")
    });
    let body = json!({ "prompt": "Once upon a time", "n_predict": 50, "ignore_eos": true });
    server.client.post("/completion", &body);
    wait_for("all tokens are reported", || {
        read(&mut text);
        let events = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
        let n: u64 = events.map(|event| event["generated_tokens"].as_u64().unwrap()).sum();
        n == 50
    });
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.filter_map(|data| serde_json::from_str(data).ok()).collect();
    assert!(events.iter().all(|event| event["fired_refused"].is_null()));
    let fired: Vec<&Value> =
        events.iter().map(|event| &event["fired"]).filter(|fired| !fired.is_null()).collect();
    assert!(!fired.is_empty(), "{text}");
    for fired in fired {
        assert_eq!(fired["tokens"], 1);
        let rows = fired["layers"].as_array().unwrap();
        assert_eq!(rows.len(), layers.len());
        for row in rows {
            let cells = row.as_str().unwrap();
            assert!(cells.len() == 128 && cells.bytes().all(|digit| digit.is_ascii_hexdigit()));
            assert!(cells.contains('0') && cells.contains(|digit| digit != '0'), "{cells}");
        }
    }
}

/// A log in JSON, and its lines.
fn json_log() -> (LogOptions, Arc<Mutex<Vec<String>>>) {
    let lines = Arc::new(Mutex::new(Vec::<String>::new()));
    let sink = Arc::clone(&lines);
    let sink = Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
    (LogOptions { format: LogFormat::Json, verbose: true, sink }, lines)
}

/// A stream is logged at its end, and a request whose client has left is logged as such.
#[test]
fn the_log_has_streams_and_lost_clients() {
    let (log, lines) = json_log();
    let server = start(Config { log, ..config() });
    let client = &server.client;
    let logged = |id: &str| {
        let mut found = None;
        wait_for("the line of the request", || {
            let lines = lines.lock().unwrap();
            let mut lines = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
            found = lines.find(|line| line["id"] == id);
            found.is_some()
        });
        found.unwrap()
    };
    let named = |id: &str| client.with_header("x-request-id", id);
    let request = |n: usize, stream: bool| json!({ "prompt": "Once", "n_predict": n, "ignore_eos": true, "stream": stream });
    named("streamed").post("/completion", &request(40, true)).events();
    let line = logged("streamed");
    assert_eq!((&line["status"], &line["complete"]), (&json!(200), &json!(true)), "{line}");
    assert!(line["ms"].as_f64() > line["head_ms"].as_f64(), "{line}");
    named("head").send("HEAD", "/health", None);
    assert_eq!(logged("head")["complete"], true);
    for (id, stream, status) in [("left", false, 499), ("cut", true, 200)] {
        let body = request(LONG_ANSWER, stream).to_string();
        let open = named(id).open("POST", "/completion", Some(body.as_bytes()));
        wait_for("the request runs", || load(client).0 == 1);
        drop(open);
        let line = logged(id);
        assert_eq!((&line["status"], &line["complete"]), (&json!(status), &json!(false)), "{line}");
        wait_for("the request ends", || load(client).0 == 0);
    }
}

#[test]
fn the_log_has_no_queries_keys_or_prompts() {
    let (log, lines) = json_log();
    let server = start(Config { log, keys: vec!["sk-secret".into()], ..config() });
    let client = server.client.with_header("authorization", "Bearer sk-secret");
    let body = json!({ "prompt": "Once upon a secret", "n_predict": 1, "odd": 1 });
    client.post("/completion?token=secret", &body);
    let lines = lines.lock().unwrap();
    let text = lines.join("\n");
    assert!(!text.contains("secret"), "{text}");
    assert!(text.contains(r#""ignored_fields":["odd"]"#), "{text}");
    let last: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    assert_eq!((&last["path"], &last["status"]), (&json!("/completion"), &json!(200)));
}

#[test]
fn stopping_lets_open_requests_finish() {
    let limits = Limits { grace_period: Duration::from_secs(20), ..config().limits };
    let mut server = start(Config { limits, ..config() });
    let client = server.client.clone();
    let body = json!({ "prompt": "Once", "n_predict": 60, "ignore_eos": true, "stream": true });
    let open = {
        let client = client.clone();
        std::thread::spawn(move || client.post("/completion", &body).events())
    };
    wait_for("a slot is busy", || load(&client).0 == 1);
    let _view = client.open("GET", "/thermocline/events", None);
    let start = Instant::now();
    assert!(server.stop());
    assert!(start.elapsed() < Duration::from_secs(15), "an open page does not delay the stop");
    let events = open.join().unwrap();
    assert_eq!(events.last().unwrap()["tokens_predicted"], 60);
    assert!(std::net::TcpStream::connect(&client.address).is_err(), "the port is closed");
}

#[test]
fn stopping_ends_requests_after_the_grace_period() {
    let limits = Limits { grace_period: Duration::from_millis(200), ..config().limits };
    let mut server = start(Config { limits, ..config() });
    let client = server.client.clone();
    let request = |stream| {
        let client = client.clone();
        std::thread::spawn(move || client.send("POST", "/completion", Some(&long_request(stream))))
    };
    let (whole, stream) = (request(false), request(true));
    wait_for("both slots are busy", || load(&client).0 == 2);
    let start = Instant::now();
    assert!(server.stop());
    assert!(start.elapsed() < Duration::from_secs(15));
    // Clients get an error rather than a closed connection.
    let whole = whole.join().unwrap();
    assert_eq!(whole.status, 503, "{}", whole.text());
    assert!(whole.text().contains("the server is shutting down"), "{}", whole.text());
    let stream = stream.join().unwrap();
    assert!(stream.text().contains("the server is shutting down"), "{}", stream.text());
}
