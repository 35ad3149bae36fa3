//! The access log: one line per request, as text or JSON. Paths are logged without the query;
//! keys, prompts and answers are never logged.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::clock::timestamp;
use crate::config::{LogFormat, LogOptions};

/// An answered request.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    pub(crate) id: &'a str,
    pub(crate) method: &'a str,
    /// The path, without the query.
    pub(crate) path: &'a str,
    pub(crate) status: u16,
    /// Time until the response began. A stream continues after that.
    pub(crate) time: Duration,
}

pub(crate) fn access(log: &LogOptions, access: &Access<'_>) {
    let Access { id, method, path, status, time } = access;
    let at = timestamp(SystemTime::now());
    let millis = (time.as_secs_f64() * 1e4).round() / 10.0;
    let line = match log.format {
        LogFormat::Text => format!("{at} {method} {} {status} {millis} ms {id}", plain(path)),
        LogFormat::Json => json!({
            "time": at, "method": method, "path": path, "status": status, "ms": millis, "id": id,
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
        LogFormat::Json => json!({ "route": route, "ignored_fields": names }).to_string(),
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
        let request = Access { id: "r1", method: "GET", path: "/a\nb", status: 200, time };
        let text = &logged(LogFormat::Text, |log| access(log, &request))[0];
        assert!(text.ends_with("GET /a\u{fffd}b 200 1.6 ms r1"), "{text}");
        let json = &logged(LogFormat::Json, |log| access(log, &request))[0];
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["path"], "/a\nb");
        assert_eq!(json["ms"], 1.6);
    }

    #[test]
    fn unknown_fields_are_named() {
        let lines = logged(LogFormat::Text, |log| unknown_fields(log, "/x", &["a", "b"]));
        assert_eq!(lines, ["/x: unknown fields were ignored: a, b"]);
        assert!(logged(LogFormat::Text, |log| unknown_fields(log, "/x", &[])).is_empty());
    }
}
