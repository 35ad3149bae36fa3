//! The plan as JSON. Sizes are in bytes, times in seconds.

use super::Report;
use crate::placement::{CPU, Forecast, Neurons, exchange};
use serde_json::{Value, json};

pub(super) fn report(report: &Report) -> Value {
    let forecast = &report.forecast;
    json!({
        "model": report.model.file.name(),
        "n_layer": report.model.hyper.n_layer,
        "n_ff": report.model.max_n_ff(),
        "n_ctx": report.n_ctx,
        "n_past": report.n_past,
        "density": report.density,
        "fits": report.refused.is_none(),
        "host_bytes_needed": report.needed.0,
        "tokens_per_second": forecast.rate(),
        "seconds": forecast.seconds,
        "seconds_devices": forecast.parts.devices,
        "seconds_cpu": forecast.parts.cpu,
        "seconds_hand_offs": forecast.parts.hand_offs,
        "seconds_disk": forecast.parts.disk,
        "limit": report.limit(),
        "first_token_seconds": forecast.prompt,
        "tiers": report.tiers_value(),
        "used_neurons_off_cpu": forecast.off_cpu,
        "embedding": report.device(forecast.placement.embed),
        "head": report.device(forecast.placement.head),
        "devices": devices(report),
        "layers": layers(report),
        "alternatives": {
            "whole_layers": alternative(report, &report.whole_layers),
            "fastest_tokens": alternative(report, &report.for_tokens),
            "cpu_alone": alternative(report, &report.cpu_alone),
            "no_limit": alternative(report, &report.all_fits),
        },
        "exchange": report.exchange.map(|needs| json!({
            "layers": needs.n_layers,
            "neurons_at_once": needs.max_neurons,
            "host_bytes": needs.host.0,
            "counter_bytes": needs.counters.0,
            "every_tokens": exchange::DECISION_INTERVAL,
        })),
        "prompt": super::prompts::value(report),
        "why": report.limit_reasons(),
        "notes": report.notes,
    })
}

/// An alternative plan. `device_bytes` is the budget it needs, with the drivers' reserves.
fn alternative(report: &Report, forecast: &Forecast) -> Value {
    let bytes = report.budget_of(forecast).0;
    json!({ "tokens_per_second": forecast.rate(), "device_bytes": bytes })
}

fn devices(report: &Report) -> Vec<Value> {
    let each = report.devices.iter().enumerate().map(|(number, device)| {
        let (speed, bytes) = (&device.speed, &report.memory.devices[number]);
        let unused = report.unused_budget(number);
        json!({
            "name": device.name,
            "description": device.description,
            "bytes_per_second": speed.dense,
            "row_bytes_per_second": speed.sparse,
            "hand_off_seconds": speed.hand_off,
            "op_seconds": speed.op,
            "prompt_bytes_per_second": speed.prompt,
            "upload_bytes_per_second": speed.upload,
            "budget": device.budget.map(|budget| budget.0),
            // The sum of the items down to `driver`. On the CPU, this includes mapped weights that
            // are read.
            "used": report.used(number).0,
            "attention": bytes.frames.0,
            "cache": bytes.cache.0,
            "neurons": bytes.neurons.0,
            "hand_offs": bytes.hand_offs.0,
            "embedding": bytes.embed.0,
            "head": (bytes.embed_and_head - bytes.embed).0,
            "scratch": bytes.scratch.0,
            "driver": device.reserve.0,
            "unused": unused.as_ref().map(|(left, _)| left.0),
            "unused_because": unused.map(|(_, why)| why),
        })
    });
    each.collect()
}

fn layers(report: &Report) -> Vec<Value> {
    let forecast = &report.forecast;
    let all = forecast.placement.layers.iter().zip(&forecast.layers).zip(&report.memory.layers);
    let each = all.map(|((placed, layer), bytes)| {
        let kind = match (placed.home, placed.is_split()) {
            (CPU, _) => "cpu",
            (_, true) => "split",
            (_, false) => "device",
        };
        let shares = placed.shares.iter().map(|share| match &share.neurons {
            Neurons::All => (share.device, layer.n_ff),
            Neurons::List(list) => (share.device, list.len()),
        });
        let shares: serde_json::Map<String, Value> =
            shares.map(|(device, n)| (report.device(device).to_owned(), n.into())).collect();
        json!({
            "kind": kind,
            "n_ff": layer.n_ff,
            "home": report.device(placed.home),
            "neurons": shares,
            "used_neurons_off_cpu": layer.off_cpu,
            "attention_bytes": bytes.frame.0,
            "cache_bytes": bytes.cache.0,
            "neuron_bytes": bytes.neurons.0,
            "cpu_neuron_bytes": bytes.neurons_on_cpu.0,
            "seconds": layer.time.total(),
            "seconds_attention": layer.time.frame,
            "seconds_neurons_home": layer.time.home,
            "seconds_neurons_cpu": layer.time.cpu,
            "seconds_hand_off": layer.time.hand_off,
        })
    });
    each.collect()
}
