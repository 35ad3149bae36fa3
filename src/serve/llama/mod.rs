//! llama-server's endpoints.

pub(crate) mod completion;
pub(crate) mod infill;
pub(crate) mod props;
pub(crate) mod slots;
pub(crate) mod tokenize;

use std::fmt::Write as _;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use scheduler::{SlotPhase, Status};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::json;
use crate::metrics::{escape_label, write_header, write_metric};
use crate::state::App;

/// `GET /health`: 503 until the model is loaded, then 200.
pub(crate) async fn health(State(app): State<App>) -> Result<Response> {
    if !app.served()?.status().healthy {
        return Err(ApiError::server("the scheduler has failed; restart the server").no_retry());
    }
    Ok(json::answer(&json!({ "status": "ok" })))
}

/// `GET /lora-adapters`: adapters are merged into the weights, so there is nothing to list.
pub(crate) async fn list_adapters() -> Response {
    json::answer(&json!([]))
}

/// `POST /lora-adapters`: scales cannot change; an empty list changes none.
pub(crate) async fn change_adapters(body: String) -> Result<Response> {
    if serde_json::from_str::<Value>(&body).is_ok_and(|body| body == json!([])) {
        return Ok(json::answer(&json!({ "success": true })));
    }
    Err(ApiError::not_supported(
        "adapters are merged when the model is loaded; start the server with --lora-scaled",
    ))
}

/// `GET /metrics`: Prometheus' text format, with llama-server's names after the prefix `thermocline:`.
pub(crate) async fn metrics(State(app): State<App>) -> Result<Response> {
    if !app.config.endpoints.metrics {
        let message = "this server has no metrics; start it with --metrics";
        return Err(ApiError::not_supported(message));
    }
    let status = app.served()?.status();
    let mut text = String::new();
    write_counters(&status, &mut text);
    write_memory(&status, &mut text);
    app.metrics.write(&mut text);
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let started = HeaderName::from_static("process-start-time-unix");
    Ok(([(header::CONTENT_TYPE, kind), (started, app.started.into())], text).into_response())
}

fn rate(n: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() }
}

fn write_counters(status: &Status, out: &mut String) {
    let totals = &status.counters;
    let busy = status.slots.iter().filter(|slot| slot.phase != SlotPhase::Idle).count();
    let per_step =
        if totals.n_steps == 0 { 0.0 } else { totals.n_busy_slots as f64 / totals.n_steps as f64 };
    #[rustfmt::skip]
    let values = [
        ("prompt_tokens_total", "counter", "Prompt tokens that were computed.", totals.prompt_tokens as f64),
        ("prompt_tokens_cached_total", "counter", "Prompt tokens that were cached.", totals.cached_tokens as f64),
        ("prompt_tokens_disk_total", "counter", "Cached prompt tokens that came from the disk cache.", totals.disk_tokens as f64),
        ("prompt_seconds_total", "counter", "Time of prefill and of embeddings.", totals.prompt_time.as_secs_f64()),
        ("tokens_predicted_total", "counter", "Generated tokens.", totals.generated_tokens as f64),
        ("tokens_predicted_seconds_total", "counter", "Time of decode.", totals.generated_time.as_secs_f64()),
        ("tokens_recomputed_total", "counter", "Tokens computed again after a pause or a lost device.", totals.recomputed_tokens as f64),
        ("n_decode_total", "counter", "Decode steps, and prefill chunks of embeddings.", totals.n_steps as f64),
        ("n_tokens_max", "counter", "Tokens of the longest sequence so far.", totals.n_tokens_max as f64),
        ("requests_total", "counter", "Requests that were accepted.", totals.n_requests as f64),
        ("requests_failed_total", "counter", "Generations that failed.", totals.n_failed as f64),
        ("generations_paused_total", "counter", "Generations paused for lack of KV blocks.", totals.n_paused as f64),
        ("sequences_evicted_total", "counter", "Idle sequences evicted from the KV cache.", totals.n_evicted as f64),
        ("sequences_spilled_total", "counter", "Sequences written to the disk cache.", totals.n_spilled as f64),
        ("sequences_restored_total", "counter", "Sequences read from the disk cache.", totals.n_restored as f64),
        ("neurons_total", "counter", "Neurons of all layers and tokens.", totals.neurons.neurons),
        ("neurons_active_total", "counter", "Neurons that were active.", totals.neurons.active),
        ("neurons_active_off_cpu_total", "counter", "Active neurons that were not on the CPU.", totals.neurons.off_cpu),
        ("prompt_tokens_seconds", "gauge", "Prompt tokens per second of prefill.", rate(totals.prompt_tokens, totals.prompt_time)),
        ("predicted_tokens_seconds", "gauge", "Generated tokens per second of decode.", rate(totals.generated_tokens, totals.generated_time)),
        ("requests_processing", "gauge", "Running generations.", busy as f64),
        ("requests_deferred", "gauge", "Waiting requests.", (status.n_queued + status.n_paused) as f64),
        ("n_busy_slots_per_decode", "gauge", "Generations per decode step.", per_step),
        ("kv_cache_usage_ratio", "gauge", "Share of the KV blocks in use.", status.n_blocks_used as f64 / status.n_blocks.max(1) as f64),
        ("kv_cache_blocks", "gauge", "KV blocks.", status.n_blocks as f64),
        ("kv_cache_blocks_used", "gauge", "KV blocks in use, by running and idle sequences.", status.n_blocks_used as f64),
        ("sequences_idle", "gauge", "Idle sequences in the KV cache.", status.n_idle as f64),
        ("disk_cache_bytes", "gauge", "Size of the disk cache.", status.disk_bytes as f64),
    ];
    for (name, kind, help, value) in values {
        write_metric(out, name, kind, help, value);
    }
}

fn write_memory(status: &Status, out: &mut String) {
    write_header(out, "device_memory_used_bytes", "gauge", "Memory allocated on a device.");
    for device in &status.devices {
        let (name, used) = (escape_label(&device.name), device.used);
        let _ = writeln!(out, "thermocline:device_memory_used_bytes{{device=\"{name}\"}} {used}");
    }
    write_header(out, "device_memory_budget_bytes", "gauge", "Memory budget of a device.");
    for device in &status.devices {
        if let Some(budget) = device.budget {
            let name = escape_label(&device.name);
            let metric = "thermocline:device_memory_budget_bytes";
            let _ = writeln!(out, "{metric}{{device=\"{name}\"}} {budget}");
        }
    }
}
