//! A server that speaks the hub's HTTP, with faults on request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// The only public repository.
pub(super) const REPOSITORY: &str = "someone/tiny-GGUF";
pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The token that opens gated repositories.
pub(super) const TOKEN: &str = "hf_secretsecret";

/// What the server does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// This many times, the connection breaks after a random number of bytes.
    Breaks(u32),
    /// The data of large files does not match its checksum.
    WrongData,
    /// Large files are a byte longer than the description says.
    WrongSize,
    /// Large files arrive at 20 kB/s.
    Slow,
    /// The server ignores ranges.
    NoRanges,
    /// The description states no sizes and checksums.
    NoBlobs,
    /// Every file redirects to itself.
    Loop,
    /// Every answer is 503.
    Down,
}

#[derive(Debug)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    fault: Fault,
    rng: ChaCha8Rng,
    /// Requested paths with their queries, and whether each request had a token.
    log: Vec<(String, bool)>,
}

/// A hub on a port of this machine. It ends with the test's process.
#[derive(Clone, Debug)]
pub(super) struct TestHub {
    pub(super) url: String,
    state: Arc<Mutex<State>>,
}

/// The digest of `pieces` in a row, hexadecimal.
fn digest(algorithm: &'static ring::digest::Algorithm, pieces: &[&[u8]]) -> String {
    let mut context = ring::digest::Context::new(algorithm);
    pieces.iter().for_each(|piece| context.update(piece));
    context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(data: &[u8]) -> bool {
    data.len() > 100
}

/// SHA-256 of a large file, git's object id of a small one. Tests of the `hub` crate compare both
/// with sha256sum and git.
pub(super) fn checksum(data: &[u8]) -> String {
    if is_large(data) {
        return digest(&ring::digest::SHA256, &[data]);
    }
    let head = format!("blob {}\0", data.len());
    digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &[head.as_bytes(), data])
}

impl TestHub {
    pub(super) fn start(files: &[(&str, &[u8])], fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let files = files.iter().map(|(name, data)| ((*name).to_owned(), data.to_vec())).collect();
        let rng = ChaCha8Rng::seed_from_u64(1);
        let state = Arc::new(Mutex::new(State { files, fault, rng, log: Vec::new() }));
        let hub = Self { url, state };
        let served = hub.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let hub = served.clone();
                // Some tests end the client early; the error that follows here is expected.
                thread::spawn(move || drop(hub.answer(&stream)));
            }
        });
        hub
    }

    pub(super) fn set_fault(&self, fault: Fault) {
        self.state.lock().unwrap().fault = fault;
    }

    pub(super) fn set_file(&self, name: &str, data: &[u8]) {
        self.state.lock().unwrap().files.insert(name.to_owned(), data.to_vec());
    }

    /// The requests so far whose path contains `text`.
    pub(super) fn requests(&self, text: &str) -> Vec<(String, bool)> {
        let state = self.state.lock().unwrap();
        state.log.iter().filter(|(line, _)| line.contains(text)).cloned().collect()
    }

    fn answer(&self, stream: &TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let (mut from, mut token) = (None, None);
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header == "\r\n" {
                break;
            }
            let header = header.trim().to_owned();
            let lower = header.to_ascii_lowercase();
            if let Some(range) = lower.strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse::<usize>().ok();
            }
            if lower.starts_with("authorization: bearer ") {
                token = header.split(' ').next_back().map(str::to_owned);
            }
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        self.state.lock().unwrap().log.push((path.clone(), token.is_some()));
        let fault = self.state.lock().unwrap().fault;
        let path = path.split('?').next().unwrap_or_default();
        if fault == Fault::Down {
            return send(stream, "503 Service Unavailable", &[], b"");
        }
        if let Some(rest) = path.strip_prefix("/api/models/") {
            return self.describe(stream, rest.split("/revision/").next().unwrap_or(rest), fault);
        }
        if let Some(file) = path.strip_prefix("/cdn/") {
            return self.send_file(stream, file, from, fault);
        }
        let Some((repository, file)) = path[1..].split_once(&format!("/resolve/{COMMIT}/")) else {
            return send(stream, "404 Not Found", &[], b"");
        };
        if repository == "someone/gated" && token.as_deref() != Some(TOKEN) {
            let status = if token.is_some() { "403 Forbidden" } else { "401 Unauthorized" };
            return send(stream, status, &["X-Error-Code: GatedRepo"], b"");
        }
        let data = self.state.lock().unwrap().files.get(file).cloned().unwrap_or_default();
        let target =
            if fault == Fault::Loop { path.to_owned() } else { format!("/cdn/{file}?sig=1") };
        let headers = [
            format!("Location: {target}"),
            format!("X-Repo-Commit: {COMMIT}"),
            format!("X-Linked-Etag: \"{}\"", checksum(&data)),
            format!("X-Linked-Size: {}", data.len()),
        ];
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        send(stream, "302 Found", &headers, b"")
    }

    fn describe(&self, stream: &TcpStream, repository: &str, fault: Fault) -> std::io::Result<()> {
        if repository != REPOSITORY && repository != "someone/gated" {
            return send(stream, "401 Unauthorized", &["X-Error-Code: RepoNotFound"], b"{}");
        }
        let state = self.state.lock().unwrap();
        let entry = |(name, data): (&String, &Vec<u8>)| {
            let size = data.len();
            if fault == Fault::NoBlobs {
                return json!({ "rfilename": name });
            }
            let mut entry = json!({ "rfilename": name, "size": size, "blobId": checksum(b"") });
            if is_large(data) {
                entry["lfs"] =
                    json!({ "sha256": checksum(data), "size": size, "pointerSize": 130 });
            } else {
                entry["blobId"] = checksum(data).into();
            }
            entry
        };
        let siblings: Vec<Value> = state.files.iter().map(entry).collect();
        let body = json!({ "id": repository, "sha": COMMIT, "siblings": siblings }).to_string();
        drop(state);
        send(stream, "200 OK", &["Content-Type: application/json"], body.as_bytes())
    }

    fn send_file(
        &self,
        mut stream: &TcpStream,
        file: &str,
        from: Option<usize>,
        fault: Fault,
    ) -> std::io::Result<()> {
        let found = self.state.lock().unwrap().files.get(file).cloned();
        let Some(mut data) = found else { return send(stream, "404 Not Found", &[], b"") };
        let large = is_large(&data);
        if fault == Fault::WrongData && large {
            data[57] ^= 1;
        }
        if fault == Fault::WrongSize && large {
            data.push(0);
        }
        let from = from.filter(|_| fault != Fault::NoRanges);
        let total = data.len();
        let (status, range) = match from {
            Some(from) if from >= total => {
                return send(stream, "416 Range Not Satisfiable", &[], b"");
            }
            Some(from) => {
                data.drain(..from);
                (
                    "206 Partial Content",
                    format!("Content-Range: bytes {from}-{}/{total}\r\n", total - 1),
                )
            }
            None => ("200 OK", String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}ETag: \"v1-{total}\"\r\nConnection: close\r\n\r\n",
            data.len()
        );
        stream.write_all(head.as_bytes())?;
        let mut end = data.len();
        if large {
            let mut state = self.state.lock().unwrap();
            if let Fault::Breaks(left @ 1..) = state.fault {
                state.fault = Fault::Breaks(left - 1);
                end = state.rng.random_range(1..data.len() / 2);
            }
        }
        if fault == Fault::Slow && large {
            for piece in data.chunks(1000) {
                stream.write_all(piece)?;
                thread::sleep(Duration::from_millis(50));
            }
            return Ok(());
        }
        stream.write_all(&data[..end])
    }
}

fn send(
    mut stream: &TcpStream,
    status: &str,
    headers: &[&str],
    body: &[u8],
) -> std::io::Result<()> {
    let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += "Connection: close\r\n\r\n";
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    // Wait until the client closes the connection, so that it has read everything.
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut rest = [0; 64];
    while stream.read(&mut rest)? > 0 {}
    Ok(())
}
