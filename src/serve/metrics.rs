//! HTTP counters and histograms, in Prometheus' text format. The scheduler counts generations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bucket bounds of the time of a request, in seconds.
const REQUEST_BOUNDS: [f64; 12] =
    [0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0, 600.0];
/// Bucket bounds of the time to the first token, in seconds.
const FIRST_TOKEN_BOUNDS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0];
/// Bucket bounds of the time between two tokens, in seconds.
const TOKEN_GAP_BOUNDS: [f64; 12] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0];

/// A histogram: the number of values in each bucket.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One count per bucket; the last bucket is for values above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Writes the metric. `labels` has no braces and may be empty.
    fn write(&self, name: &str, labels: &str, out: &mut String) {
        let comma = if labels.is_empty() { "" } else { "," };
        let mut total = 0;
        for (i, count) in self.counts.iter().enumerate() {
            total += count;
            let bound = self.bounds.get(i).map_or("+Inf".to_owned(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {total}");
        }
        let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(out, "{name}_sum{braces} {}", self.sum);
        let _ = writeln!(out, "{name}_count{braces} {total}");
    }
}

/// Key of a counter: route pattern, method and status.
type RequestKey = (String, String, u16);

#[derive(Debug)]
struct Counts {
    requests: BTreeMap<RequestKey, u64>,
    durations: BTreeMap<String, Histogram>,
    first_token: Histogram,
    between_tokens: Histogram,
}

#[derive(Debug)]
pub(crate) struct Metrics {
    in_flight: AtomicI64,
    counts: Mutex<Counts>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            in_flight: AtomicI64::new(0),
            counts: Mutex::new(Counts {
                requests: BTreeMap::new(),
                durations: BTreeMap::new(),
                first_token: Histogram::new(&FIRST_TOKEN_BOUNDS),
                between_tokens: Histogram::new(&TOKEN_GAP_BOUNDS),
            }),
        }
    }
}

impl Metrics {
    fn update(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a request: its handler has returned or was cancelled.
    pub(crate) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an answered request. `route` is the route pattern, never the path of the request.
    pub(crate) fn record_request(&self, route: &str, method: &str, status: u16, time: Duration) {
        self.update(|counts| {
            let key = (route.to_owned(), method.to_owned(), status);
            *counts.requests.entry(key).or_default() += 1;
            let durations = counts.durations.entry(route.to_owned());
            durations.or_insert_with(|| Histogram::new(&REQUEST_BOUNDS)).add(time.as_secs_f64());
        });
    }

    pub(crate) fn first_token(&self, time: Duration) {
        self.update(|counts| counts.first_token.add(time.as_secs_f64()));
    }

    pub(crate) fn between_tokens(&self, time: Duration) {
        self.update(|counts| counts.between_tokens.add(time.as_secs_f64()));
    }

    /// Writes the HTTP part of `/metrics`.
    pub(crate) fn write(&self, out: &mut String) {
        write_header(
            out,
            "http_requests_total",
            "counter",
            "Requests by route, method and status.",
        );
        self.update(|counts| {
            for ((route, method, status), n) in &counts.requests {
                let labels = format!("route=\"{route}\",method=\"{method}\",status=\"{status}\"");
                let _ = writeln!(out, "thermocline:http_requests_total{{{labels}}} {n}");
            }
            let name = "http_request_duration_seconds";
            write_header(out, name, "histogram", "Time from the request to its response headers.");
            for (route, durations) in &counts.durations {
                durations.write(&format!("thermocline:{name}"), &format!("route=\"{route}\""), out);
            }
            let name = "time_to_first_token_seconds";
            write_header(out, name, "histogram", "Time from the request to its first token.");
            counts.first_token.write(&format!("thermocline:{name}"), "", out);
            let name = "inter_token_latency_seconds";
            write_header(out, name, "histogram", "Time between two tokens of an answer.");
            counts.between_tokens.write(&format!("thermocline:{name}"), "", out);
        });
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        write_metric(
            out,
            "http_requests_in_flight",
            "gauge",
            "Requests being served.",
            in_flight as f64,
        );
    }
}

/// Writes the `HELP` and `TYPE` lines of a metric.
pub(crate) fn write_header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP thermocline:{name} {help}");
    let _ = writeln!(out, "# TYPE thermocline:{name} {kind}");
}

pub(crate) fn write_metric(out: &mut String, name: &str, kind: &str, help: &str, value: f64) {
    write_header(out, name, kind, help);
    let _ = writeln!(out, "thermocline:{name} {value}");
}

pub(crate) fn escape_label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let metrics = Metrics::default();
        for millis in [1, 3, 3000, 900_000] {
            metrics.record_request("/x", "GET", 200, Duration::from_millis(millis));
        }
        metrics.first_token(Duration::from_millis(7));
        let mut text = String::new();
        metrics.write(&mut text);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        has("thermocline:http_requests_total{route=\"/x\",method=\"GET\",status=\"200\"} 4");
        has("thermocline:http_request_duration_seconds_bucket{route=\"/x\",le=\"0.001\"} 1");
        has("thermocline:http_request_duration_seconds_bucket{route=\"/x\",le=\"600\"} 3");
        has("thermocline:http_request_duration_seconds_bucket{route=\"/x\",le=\"+Inf\"} 4");
        has("thermocline:time_to_first_token_seconds_bucket{le=\"0.01\"} 1");
        has("thermocline:time_to_first_token_seconds_count 1");
        has("# TYPE thermocline:http_requests_in_flight gauge");
    }
}
