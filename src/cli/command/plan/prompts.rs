//! The prefill part of the plan: its speed, and whether weights on the CPU are streamed to
//! devices.

use super::{Report, shown_rate};
use crate::placement::{CPU, Forecast, PlacementPolicy, StreamFacts, Task};
use serde_json::{Value, json};

/// Facts, in addition to the forecast, that decide whether weights are streamed.
#[derive(Debug, Default)]
pub(super) struct StreamingInfo {
    /// Per device, the memory for streaming; `None` if nothing can be streamed to the device.
    facts: Vec<Option<StreamFacts>>,
    /// Why this model's weights are never streamed; `None` if they can be streamed.
    never: Option<&'static str>,
    /// Whether layers on the CPU can be streamed.
    from_cpu: bool,
}

impl StreamingInfo {
    pub(super) fn new(task: &Task, predicts: bool, experts: bool) -> StreamingInfo {
        let never = (predicts && experts)
            .then_some("the predictor of an MoE model needs the hand-off to the CPU");
        let mut reads = task.layers.iter().filter_map(|layer| layer.reads.streams);
        let from_cpu = reads.any(|reads| reads.carried.is_some());
        StreamingInfo {
            facts: task.devices.iter().map(|device| device.stream).collect(),
            never,
            from_cpu,
        }
    }
}

/// Why layers on the CPU are not streamed.
const NOT_STREAMED: &str = "weights on the CPU are not streamed during prefill: these layers have a predictor or a bias on the down projection";

/// Prefill rate of a forecast in tokens per second, as text.
fn rate(forecast: &Forecast) -> String {
    forecast.prompt_rate().map_or_else(|| "?".to_owned(), |rate| shown_rate(rate, 0))
}

/// Relative increase in the decode time per token that the planner accepted for faster prefill;
/// `None` below 0.1 % or if prefill is not faster.
pub(super) fn decode_cost(report: &Report) -> Option<f64> {
    let Report { forecast, for_tokens, constraints, .. } = report;
    if constraints.policy != PlacementPolicy::Fastest {
        return None;
    }
    let more = forecast.seconds / for_tokens.seconds - 1.0;
    Some(more).filter(|more| *more >= 0.001 && forecast.prompt < for_tokens.prompt)
}

/// Sentences about prefill for the report; empty if the CPU is the only device.
pub(super) fn lines(report: &Report) -> Vec<String> {
    let forecast = &report.forecast;
    let mut lines = Vec::new();
    if report.devices.len() < 2 {
        return lines;
    }
    if forecast.prompt.is_some() {
        lines.push(format!(
            "prefill of {} tokens: about {} tokens/s; with whole layers only {}, with the CPU alone {}",
            forecast.n_prompt,
            rate(forecast),
            rate(&report.whole_layers),
            rate(&report.cpu_alone)
        ));
    }
    if let Some(more) = decode_cost(report) {
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
            lines.push(format!("prefill: {}", line(report, device)));
        } else if on_cpu {
            lines.push(format!("prefill: {NOT_STREAMED}"));
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
            "from {from} tokens on, weights on the CPU are streamed to {name} in chunks of {} neurons, with {} of buffers ({speeds})",
            facts.chunk_neurons, facts.bytes
        ),
        (None, Some(never), _) => {
            format!("weights on the CPU are not streamed during prefill: {never}")
        }
        (None, None, None) => {
            format!(
                "weights on the CPU are not streamed during prefill: {name} does not support it"
            )
        }
        (None, None, Some(_)) if report.constraints.policy == PlacementPolicy::Fill => {
            "weights on the CPU are not streamed during prefill: --placement fill uses the memory for neurons".to_owned()
        }
        (None, None, Some(facts)) => format!(
            "weights on the CPU are not streamed during prefill: streaming to {name} would not be faster, or the {} for its buffers are better used for resident neurons ({speeds})",
            facts.bytes
        ),
    }
}

/// The prefill section of the JSON report.
pub(super) fn value(report: &Report) -> Value {
    let forecast = &report.forecast;
    let streams = report.streams.facts.iter().enumerate().skip(1).map(|(device, facts)| {
        json!({
            "device": report.device(device),
            "from_tokens": forecast.stream_from.get(device).copied().flatten(),
            "neurons_at_once": facts.map(|facts| facts.chunk_neurons),
            "slot_bytes": facts.map(|facts| facts.bytes.0),
        })
    });
    json!({
        "tokens": forecast.n_prompt,
        "tokens_per_second": forecast.prompt_rate(),
        "whole_layers_tokens_per_second": report.whole_layers.prompt_rate(),
        "cpu_alone_tokens_per_second": report.cpu_alone.prompt_rate(),
        "token_seconds_paid": decode_cost(report).map(|_| forecast.seconds - report.for_tokens.seconds),
        "fastest_tokens_tokens_per_second": report.for_tokens.prompt_rate(),
        "streams": streams.collect::<Vec<_>>(),
        "lines": lines(report),
    })
}
