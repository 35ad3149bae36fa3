//! Statistics of weights on disk, for people and for programs.

use std::time::Duration;

use crate::generate::Report;
use hal::Bytes;
use serde_json::{Value, json};

/// How many of the needed weights were in memory, what was read, and how long that took; empty if
/// all weights are in memory.
pub(super) fn summary(report: &Report) -> String {
    let disk = &report.neurons.disk;
    let Some(hits) = hit_share(report) else { return String::new() };
    let n_tokens = (report.n_computed + report.n_steps).max(1) as u64;
    let per_token = Bytes(disk.read.0 / n_tokens);
    let waited = 100.0 * waited_share(report);
    format!(
        " | disk: {:.1} % of the needed weights in memory, {per_token} read per token, waiting {waited:.0} % of the time",
        100.0 * hits
    )
}

/// The statistics as fields; `null` if all weights are in memory.
pub(super) fn fields(report: &Report) -> Value {
    let disk = &report.neurons.disk;
    hit_share(report).map_or(Value::Null, |hits| {
        json!({
            "hit_share": hits,
            "hits": disk.hits,
            "read_ahead": disk.ahead,
            "misses": disk.misses,
            "needed_bytes": disk.needed.0,
            "read_bytes": disk.read.0,
            "wasted_bytes": disk.wasted.0,
            "waited_share": waited_share(report),
        })
    })
}

fn hit_share(report: &Report) -> Option<f64> {
    let disk = &report.neurons.disk;
    let needed = disk.hits + disk.ahead + disk.misses;
    (needed > 0).then(|| disk.hits as f64 / needed as f64)
}

fn waited_share(report: &Report) -> f64 {
    let time: Duration = report.prompt + report.generated;
    report.neurons.disk.waited.as_secs_f64() / time.as_secs_f64().max(1e-9)
}
