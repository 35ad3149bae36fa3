//! The access log: one line per request, as text or JSON. Paths are logged without the query;
//! keys, prompts and answers are never logged.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::clock::timestamp;
use crate::config::{LogFormat, LogOptions};

/// A request that was answered, or whose client has disconnected.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// The path, without the query.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    /// Time until the response was sent, or until the client disconnected.
    pub(crate) time: Duration,
    /// Time until the response began; `None` if the client disconnected before.
    pub(crate) head: Option<Duration>,
    pub(crate) end: ResponseEnd,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEnd {
    /// It was sent as a whole.
    Complete,
    /// The client disconnected.
    ClientLeft,
    /// The server stopped, and its grace period was over.
    ServerStopped,
}

pub(crate) fn access(log: &LogOptions, access: &Access<'_>) {
    let Access { id, method, path, status, time, head, end } = access;
    let at = timestamp(SystemTime::now());
    let millis = |time: &Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
    let line = match log.format {
        LogFormat::Text => {
            let time = millis(time);
            let end = match end {
                ResponseEnd::Complete => "",
                ResponseEnd::ClientLeft => ", the client disconnected",
                ResponseEnd::ServerStopped => ", cut off because the server stopped",
            };
            format!("{at} {method} {} {status} {time} ms {id}{end}", plain(path))
        }
        LogFormat::Json => json!({
            "time": at, "method": method, "path": path, "status": status, "ms": millis(time),
            "head_ms": head.as_ref().map(millis), "complete": *end == ResponseEnd::Complete, "id": id,
        })
        .to_string(),
    };
    (log.sink)(&line);
}

/// Logs the names of fields that were not read, if the log is verbose.
pub(crate) fn unknown_fields(log: &LogOptions, route: &str, names: &[&str]) {
    if !log.verbose || names.is_empty() {
        return;
    }
    let line = match log.format {
        LogFormat::Text => {
            format!("{route}: unknown fields were ignored: {}", plain(&names.join(", ")))
        }
        LogFormat::Json => {
            let at = timestamp(SystemTime::now());
            json!({ "time": at, "route": route, "ignored_fields": names }).to_string()
        }
    };
    (log.sink)(&line);
}

/// At most 256 characters of a client's text, without control characters, so that it cannot forge
/// log lines.
fn plain(text: &str) -> String {
    let safe = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(256).map(safe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn logged(format: LogFormat, write: impl Fn(&LogOptions)) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&lines);
        let sink = Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned()));
        write(&LogOptions { format, verbose: true, sink });
        let lines = lines.lock().unwrap();
        lines.clone()
    }

    #[test]
    fn a_line_has_the_facts_in_both_formats() {
        let time = Duration::from_micros(1550);
        let (path, head) = ("/a\nb", Some(Duration::from_millis(1)));
        let request = Access {
            id: "r1",
            method: "GET",
            path,
            status: 200,
            time,
            head,
            end: ResponseEnd::Complete,
        };
        let text = &logged(LogFormat::Text, |log| access(log, &request))[0];
        assert!(text.ends_with("GET /a\u{fffd}b 200 1.6 ms r1"), "{text}");
        let json = &logged(LogFormat::Json, |log| access(log, &request))[0];
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["path"], "/a\nb");
        assert_eq!([&json["ms"], &json["head_ms"]], [1.6, 1.0]);
        let lost = Access { end: ResponseEnd::ClientLeft, ..request };
        let text = &logged(LogFormat::Text, |log| access(log, &lost))[0];
        assert!(text.ends_with("r1, the client disconnected"), "{text}");
    }

    #[test]
    fn unknown_fields_are_named() {
        let lines = logged(LogFormat::Text, |log| unknown_fields(log, "/x", &["a", "b"]));
        assert_eq!(lines, ["/x: unknown fields were ignored: a, b"]);
        assert!(logged(LogFormat::Text, |log| unknown_fields(log, "/x", &[])).is_empty());
    }
}
