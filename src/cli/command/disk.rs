//! Statistics of weights on disk, for people and for programs.

use crate::engine::Tiers;
use crate::generate::Report;
use hal::Bytes;
use serde_json::{Value, json};

/// The share of the needed weights on disk that the cache in memory had, what was read, and how long
/// that took; empty if all weights are in memory.
pub(super) fn summary(report: &Report) -> String {
    let disk = &report.neurons.disk;
    let Some(hits) = hit_share(report) else { return String::new() };
    // The statistics begin after the prompt.
    let per_token = Bytes(disk.read.0 / report.n_steps.max(1) as u64);
    let waited = 100.0 * waited_share(report);
    let tiers = report.tiers.map_or(String::new(), |tiers| {
        let Tiers { devices, .. } = tiers;
        let on_devices =
            if devices > Bytes(0) { format!("{devices} on devices, ") } else { String::new() };
        let (memory, disk) = (tiers.in_memory(), tiers.on_disk());
        format!(" | weights: {on_devices}{memory} in memory, {disk} on disk")
    });
    format!(
        "{tiers} | disk: {:.1} % cache hits, {per_token} read per token, waiting {waited:.0} % of the time",
        100.0 * hits
    )
}

/// The statistics as fields; `null` if all weights are in memory.
pub(super) fn fields(report: &Report) -> Value {
    let disk = &report.neurons.disk;
    hit_share(report).map_or(Value::Null, |hits| {
        json!({
            "device_bytes": report.tiers.map(|tiers| tiers.devices.0),
            "memory_bytes": report.tiers.map(|tiers| tiers.in_memory().0),
            "disk_bytes": report.tiers.map(|tiers| tiers.on_disk().0),
            "hit_share": hits,
            "hits": disk.hits,
            "read_ahead": disk.ahead,
            "misses": disk.misses,
            "needed_bytes": disk.needed.0,
            "read_bytes": disk.read.0,
            "wasted_bytes": disk.wasted.0,
            "reused_bytes": disk.reused.0,
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
    report.neurons.disk.waited.as_secs_f64() / report.generated.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::generate::EndReason;

    /// The statistics are those of the steps after the prompt, so they are shares of these alone.
    #[test]
    fn reads_and_waits_are_those_of_generated_tokens() {
        let mut report = Report {
            ended: EndReason::Length,
            end: None,
            n_prompt: 50,
            n_reused: 0,
            n_computed: 50,
            prompt: Duration::from_secs(30),
            n_generated: 5,
            generated: Duration::from_secs(10),
            n_steps: 4,
            neurons: crate::engine::StepStats::default(),
            n_shifts: 0,
            exchanged: None,
            tiers: None,
        };
        assert_eq!(summary(&report), "");
        let disk = &mut report.neurons.disk;
        (disk.hits, disk.misses, disk.read) = (3, 1, Bytes(4 << 20));
        disk.waited = Duration::from_secs(5);
        assert_eq!(
            summary(&report),
            " | disk: 75.0 % cache hits, 1.00 MiB read per token, waiting 50 % of the time"
        );
        assert_eq!(fields(&report)["waited_share"], 0.5);
    }
}
