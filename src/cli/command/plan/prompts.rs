//! The prefill part of the plan: its speed, and whether weights on the CPU are streamed to
//! devices.

use super::{Report, shown_rate};
use crate::placement::{CPU, Forecast, StreamFacts, Task};
use serde_json::{Value, json};

/// Facts that decide this besides the forecast.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// Memory for streaming per device; `None` where nothing can be streamed.
    facts: Vec<Option<StreamFacts>>,
    /// Why models like this are never streamed.
    never: Option<&'static str>,
    /// Whether layers on the CPU can be streamed.
    from_cpu: bool,
}

impl Streams {
    pub(super) fn new(task: &Task, predicts: bool, experts: bool) -> Streams {
        let never = (predicts && experts).then_some("predictors over experts need the hand-off");
        let mut reads = task.layers.iter().filter_map(|layer| layer.reads.streams);
        let from_cpu = reads.any(|reads| reads.carried.is_some());
        Streams {
            facts: task.devices.iter().map(|device| device.stream).collect(),
            never,
            from_cpu,
        }
    }
}

/// Why layers on the CPU are not streamed.
const STAYS: &str = "weights on the CPU are not streamed during prefill: its layers have a predictor or a bias on down";

/// Prefill rate of a forecast in tokens per second, as text.
fn rate(forecast: &Forecast) -> String {
    forecast.prompt_rate().map_or_else(|| "?".to_owned(), |rate| shown_rate(rate, 0))
}

/// Relative increase in the time of a token that was accepted for faster prefill, if it is
/// noticeable.
pub(super) fn paid(report: &Report) -> Option<f64> {
    let Report { forecast, for_tokens, .. } = report;
    let more = forecast.seconds / for_tokens.seconds - 1.0;
    Some(more).filter(|more| *more >= 0.001 && forecast.prompt < for_tokens.prompt)
}

/// Sentences; none if everything is on the CPU.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let forecast = &report.forecast;
    let mut lines = Vec::new();
    if report.devices.len() < 2 {
        return lines;
    }
    if forecast.prompt.is_some() {
        lines.push(format!(
            "prompts of {} tokens: about {} tokens/s; whole layers only {}, the CPU alone {}",
            forecast.n_prompt,
            rate(forecast),
            rate(&report.whole_layers),
            rate(&report.cpu_alone)
        ));
    }
    if let Some(more) = paid(report) {
        lines.push(format!(
            "decode is {:.1} % slower than possible, for faster prefill: the fastest decode, {} tokens/s, would have prefill at about {} tokens/s",
            100.0 * more,
            shown_rate(report.for_tokens.rate(), 1),
            rate(&report.for_tokens)
        ));
    }
    let layers = &forecast.placement.layers;
    for device in 1..report.devices.len() {
        let split = layers.iter().any(|layer| layer.home == device && layer.is_split());
        let ends = [forecast.placement.embed, forecast.placement.head];
        let used = ends.contains(&device) || layers.iter().any(|layer| layer.home == device);
        let on_cpu = used && layers.iter().any(|layer| layer.home == CPU);
        if split || (on_cpu && report.streams.from_cpu) {
            lines.push(format!("prompts: {}", line(report, device)));
        } else if on_cpu {
            lines.push(format!("prompts: {STAYS}"));
        }
    }
    lines
}

/// Whether weights on the CPU are streamed to `device`, and why.
fn line(report: &Report, device: usize) -> String {
    let name = report.device(device);
    let [cpu, speed] = [0, device].map(|n| report.devices[n].speed);
    let facts = report.streams.facts.get(device).copied().flatten();
    let from = report.forecast.stream_from.get(device).copied().flatten();
    let speeds = if cpu.prompt > 0.0 {
        format!(
            "speeds: {name} multiplies {:.1} times as fast as the CPU, {:.1} GB/s can be streamed to it",
            speed.prompt / cpu.prompt,
            speed.upload / 1e9
        )
    } else {
        "prefill speeds are unknown".to_owned()
    };
    match (from.zip(facts), report.streams.never, facts) {
        (Some((from, facts)), ..) => format!(
            "from {from} tokens on, weights on the CPU are streamed to {name} in chunks of {} with {} of slots ({speeds})",
            facts.piece, facts.bytes
        ),
        (None, Some(never), _) => {
            format!("weights on the CPU are not streamed during prefill: {never}")
        }
        (None, None, None) => {
            format!(
                "weights on the CPU are not streamed during prefill: {name} does not support it"
            )
        }
        (None, None, Some(facts)) => format!(
            "weights on the CPU are not streamed during prefill: streaming to {name} would not be faster, or {} of slots would cost more than they gain ({speeds})",
            facts.bytes
        ),
    }
}

/// The report as JSON.
pub(super) fn value(report: &Report) -> Value {
    let forecast = &report.forecast;
    let streams = report.streams.facts.iter().enumerate().skip(1).map(|(device, facts)| {
        json!({
            "device": report.device(device),
            "from_tokens": forecast.stream_from.get(device).copied().flatten(),
            "neurons_at_once": facts.map(|facts| facts.piece),
            "slot_bytes": facts.map(|facts| facts.bytes.0),
        })
    });
    json!({
        "tokens": forecast.n_prompt,
        "tokens_per_second": forecast.prompt_rate(),
        "whole_layers_tokens_per_second": report.whole_layers.prompt_rate(),
        "cpu_alone_tokens_per_second": report.cpu_alone.prompt_rate(),
        "token_seconds_paid": paid(report).map(|_| forecast.seconds - report.for_tokens.seconds),
        "fastest_tokens_tokens_per_second": report.for_tokens.prompt_rate(),
        "streams": streams.collect::<Vec<_>>(),
        "lines": lines(report),
    })
}
