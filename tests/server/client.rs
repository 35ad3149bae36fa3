//! A small HTTP client: one request per connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

#[derive(Clone, Debug)]
pub(super) struct Client {
    pub(super) address: String,
    headers: Vec<(String, String)>,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.text()))
    }

    /// The body of an error, after checking the members that clients read.
    #[track_caller]
    pub(super) fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let error = self.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
        assert!(error["type"].is_string() && error["code"] == status, "{error}");
        error
    }

    /// The JSON data of server-sent events. A `[DONE]`, which must be last, is left out.
    #[track_caller]
    pub(super) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let data: Vec<&str> =
            self.text().lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        let done = data.iter().position(|data| *data == "[DONE]");
        assert!(done.is_none_or(|at| at + 1 == data.len()), "[DONE] is not last");
        let data = data.iter().filter(|data| **data != "[DONE]");
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Client {
    pub(super) fn new(url: &str) -> Client {
        let address = url.rsplit_once("//").map_or(url, |(_, address)| address).to_owned();
        Client { address, headers: Vec::new() }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// The same client with one more header in every request.
    pub(super) fn with_header(&self, name: &str, value: &str) -> Client {
        let mut client = self.clone();
        client.headers.push((name.to_owned(), value.to_owned()));
        client
    }

    pub(super) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, Some(body.to_string().as_bytes()))
    }

    /// Sends a request and reads the whole response.
    pub(super) fn send(&self, method: &str, path: &str, body: Option<&[u8]>) -> Answer {
        read(&mut BufReader::new(self.open(method, path, body)))
    }

    /// Sends a request and leaves the response to the caller.
    pub(super) fn open(&self, method: &str, path: &str, body: Option<&[u8]>) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            if !self.headers.iter().any(|(name, _)| name == "content-type") {
                head += "content-type: application/json\r\n";
            }
            head += &format!("content-length: {}\r\n", body.len());
        }
        stream.write_all((head + "\r\n").as_bytes()).unwrap();
        // A server that rejects a body may close the connection before the client has sent all of
        // it.
        let _ = stream.write_all(body.unwrap_or_default());
        stream
    }
}

/// Sends a request without a body through any stream.
pub(super) fn exchange(mut stream: impl Read + Write, path: &str) -> Answer {
    let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.flush().unwrap();
    read(&mut BufReader::new(stream))
}

fn read(stream: &mut impl BufRead) -> Answer {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).and_then(|code| code.parse().ok());
    let status = status.unwrap_or_else(|| panic!("not a status line: {line:?}"));
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let chunked = headers.iter().any(|(_, value)| value == "chunked");
    let mut body = Vec::new();
    if chunked {
        while let Some(chunk) = chunk(stream) {
            body.extend(chunk);
        }
    } else {
        stream.read_to_end(&mut body).unwrap();
    }
    Answer { status, headers, body }
}

/// The next chunk; `None` at the end.
fn chunk(stream: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let size = usize::from_str_radix(line.trim(), 16).unwrap();
    let mut bytes = vec![0; size + 2];
    stream.read_exact(&mut bytes).unwrap();
    bytes.truncate(size);
    (size > 0).then_some(bytes)
}
