//! The server as a process: addresses, TLS and signals.

#![cfg(unix)]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::{Client, exchange};
use super::listen::{CERTIFICATE, KEY, tls_session};

/// Time limit for the server to exit.
const LIMIT: Duration = Duration::from_secs(60);

/// `thermocline serve` with the built-in model; killed when it is dropped.
struct Process {
    child: Child,
    errors: BufReader<ChildStderr>,
    /// The first URL of the server.
    url: String,
}

impl Process {
    /// Waits until the server is ready.
    fn start(args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thermocline"));
        command.env_clear().args(["serve", "--backend", "cpu", "--port", "0"]).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let mut process = Process { child, errors, url: String::new() };
        let line = process.line_with("ready on ");
        let (_, url) = line.split_once("ready on ").unwrap();
        process.url = url.split([';', ',']).next().unwrap().to_owned();
        process
    }

    /// The next line of standard error that contains `text`.
    fn line_with(&mut self, text: &str) -> String {
        let mut all = String::new();
        loop {
            let start = all.len();
            assert!(self.errors.read_line(&mut all).unwrap() > 0, "{text}: {all}");
            if all[start..].contains(text) {
                return all[start..].trim_end().to_owned();
            }
        }
    }

    fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }

    /// Waits for the exit and returns its code.
    fn wait(&mut self) -> Option<i32> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(since.elapsed() < LIMIT, "the server did not exit within {LIMIT:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn story(n: usize) -> Vec<u8> {
    let body = json!({
        "prompt": "Once upon a time", "n_predict": n, "ignore_eos": true, "stream": true,
    });
    body.to_string().into_bytes()
}

#[test]
fn https_is_served_until_sigterm() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = |name: &str| root.join(name).display().to_string();
    let (certificate, key) = (file(CERTIFICATE), file(KEY));
    let mut process =
        Process::start(&["--ssl-cert-file", &certificate, "--ssl-key-file", &key, "--tags", "a,b"]);
    let address = process.url.strip_prefix("https://").unwrap().to_owned();
    let answer = exchange(tls_session(&address), "/v1/models").json();
    assert_eq!(answer["data"][0]["tags"], json!(["a", "b"]));
    process.signal("-TERM");
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn sigterm_lets_streams_finish() {
    let mut process = Process::start(&[]);
    let client = Client::new(&process.url);
    let mut stream = client.open("POST", "/completion", Some(&story(300)));
    let mut text = vec![0; 2000];
    stream.read_exact(&mut text).unwrap();
    process.signal("-TERM");
    process.line_with("stopping");
    stream.read_to_end(&mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("\"stop\":true") && text.contains("\"tokens_predicted\":300"), "{text}");
    assert_eq!(process.wait(), Some(0));
}

#[test]
fn a_second_signal_exits_at_once() {
    for second in ["-TERM", "-INT"] {
        let mut process = Process::start(&["-c", "8192"]);
        let client = Client::new(&process.url);
        let mut stream = client.open("POST", "/completion", Some(&story(8000)));
        stream.read_exact(&mut [0; 500]).unwrap();
        process.signal("-TERM");
        process.line_with("stopping");
        let since = Instant::now();
        process.signal(second);
        assert_eq!(process.wait(), Some(130));
        assert!(since.elapsed() < Duration::from_secs(5), "the grace period is 10 s");
    }
}

#[test]
fn without_pooling_each_token_has_a_vector() {
    let process = Process::start(&["--pooling", "none"]);
    let client = Client::new(&process.url);
    let tokens = json!({ "content": "hello hello hello", "add_special": true });
    let n = client.post("/tokenize", &tokens).json()["tokens"].as_array().unwrap().len();
    let answer = client.post("/embedding", &json!({ "content": "hello hello hello" })).json();
    let vectors = answer[0]["embedding"].as_array().unwrap();
    assert_eq!(vectors.len(), n);
    let width = vectors[0].as_array().unwrap().len();
    for vector in vectors {
        let values = vector.as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
        let (count, squares) = values.fold((0, 0.0), |(n, sum), x| (n + 1, sum + x * x));
        assert_eq!(count, width);
        assert!((squares - 1.0f64).abs() > 1e-3, "not normalised");
    }
    client.post("/v1/embeddings", &json!({ "input": "hello" })).error(400);
    let norm = json!({ "content": "hello", "embd_normalize": 2 });
    assert_eq!(client.post("/embedding", &norm).error(400)["param"], "embd_normalize");
}

#[test]
fn a_unix_socket_is_served_and_removed_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("serve.sock");
    let mut process = Process::start(&["--host", &path.display().to_string()]);
    let answer = exchange(UnixStream::connect(&path).unwrap(), "/health");
    assert_eq!(answer.json(), json!({ "status": "ok" }));
    process.signal("-INT");
    assert_eq!(process.wait(), Some(0));
    assert!(!path.exists());
}
