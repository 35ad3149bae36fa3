//! Thermocline's own endpoints: the placement of neurons, and how many are active.

use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::Response;
use engine::{Engine, FiredNeurons, LayerActivity, StepStats};
use hal::{Bytes, Device, DeviceKind};
use model::Mixer;
use placement::{CPU, DeviceBytes, Forecast, LayerPlacement, Neurons, Task};
use scheduler::{SlotPhase, Status};
use serde_json::{Value, json};

use crate::error::Result;
use crate::state::App;
use crate::stream::{self, Disconnected, Events};
use crate::{json, served::ServedModel};

/// Minimum time between two events.
const EVENT_PERIOD: Duration = Duration::from_millis(100);
/// Number of groups of a layer's neurons whose mean use is reported.
const N_GROUPS: usize = 32;
/// Number of memory budgets for which alternative plans are computed.
const N_BUDGETS: u64 = 9;

/// `GET /thermocline`: neurons of each layer by device, memory by device, and the plan.
pub(crate) async fn show(State(app): State<App>) -> Result<Response> {
    let served = app.served()?;
    let status = served.status();
    let mut body = json!({ "model": app.model_id(&served), "devices": devices(&served) });
    if let (Some(body), Some(facts)) = (body.as_object_mut(), served.facts.layers.as_object()) {
        body.extend(facts.clone());
    }
    body["density"] = density(&status.counters.neurons).into();
    Ok(json::answer(&body))
}

fn density(neurons: &StepStats) -> Option<f64> {
    (neurons.neurons > 0.0).then(|| neurons.active / neurons.neurons)
}

/// Memory of each device: the bytes in use in its ledger, without the driver's memory, and the
/// budget, which includes an estimate of the driver's memory, as in `plan`.
fn devices(served: &ServedModel) -> Vec<Value> {
    let devices = served.facts.devices.iter().enumerate().map(|(i, device)| {
        let info = device.info();
        let ledger = device.ledger();
        let budget = Some(ledger.budget().0).filter(|bytes| *bytes != u64::MAX);
        let kind = match info.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Integrated => "integrated",
            DeviceKind::Discrete | DeviceKind::Simulated => "gpu",
        };
        json!({
            "index": i,
            "name": info.name,
            "kind": kind,
            "parts": served.facts.layers["device_parts"][i],
            "used_bytes": ledger.used().0,
            "peak_bytes": ledger.peak().0,
            "budget_bytes": budget.map(|budget| budget + served.facts.reserve(i).0),
            "driver_bytes": served.facts.reserve(i).0,
        })
    });
    devices.collect()
}

/// The facts that are fixed when the model is loaded. Swaps of neurons do not change how many are
/// on each device. `reserves` is the memory of each device's driver.
pub(crate) fn layers(engine: &Engine, reserves: &[Bytes]) -> Value {
    let model = engine.model();
    let placement = engine.placement();
    let uses = engine.options().placing.uses.as_ref();
    let layers = placement.layers.iter().zip(&model.layers).enumerate();
    let layers = layers.map(|(i, (placed, weights))| {
        let n_ff = weights.n_ff();
        let mixer = match &weights.frame.mixer {
            Mixer::None => "none",
            Mixer::Attention(_) => "attention",
            Mixer::ShortConv(_) => "short_conv",
            Mixer::GatedDelta(_) => "delta_rule",
            Mixer::Mamba1(_) => "mamba",
            Mixer::Mamba2(_) => "mamba2",
            Mixer::Rwkv6(_) => "rwkv6",
            Mixer::Rwkv7(_) => "rwkv7",
            Mixer::Parallel { .. } => "attention_and_mamba2",
        };
        json!({
            "index": i,
            "home": placed.home,
            "mixer": mixer,
            "n_neurons": n_ff,
            "n_experts": weights.experts().map(|experts| experts.n),
            "n_experts_used": weights.experts().map(|experts| experts.n_used),
            "neurons": shares(placed, n_ff, engine.devices().len()),
            "use": uses.and_then(|uses| uses.get(i)).map(|uses| group_means(uses)),
        })
    });
    let parts =
        |forecast: &Forecast| -> Vec<Value> { forecast.devices.iter().map(memory_parts).collect() };
    json!({
        "layers": layers.collect::<Vec<Value>>(),
        "embedding": placement.embed,
        "head": placement.head,
        "is_sparse": engine.is_sparse(),
        "predicts": engine.predicts(),
        "plan": engine.forecast().map(plan),
        "plans": plans(engine, reserves),
        "device_parts": engine.forecast().map(parts),
    })
}

/// Bytes on a device by purpose; null if they are all 0, as for the CPU, which is not planned.
fn memory_parts(bytes: &DeviceBytes) -> Value {
    let DeviceBytes { scratch, frames, cache, neurons, hand_offs, embed_and_head, embed: _ } =
        *bytes;
    if bytes.total() == Bytes(0) {
        return Value::Null;
    }
    json!({
        "scratch": scratch.0, "frames": frames.0, "cache": cache.0, "neurons": neurons.0,
        "hand_offs": hand_offs.0, "ends": embed_and_head.0,
    })
}

/// Mean use of each of [`N_GROUPS`] equal groups of neurons, from the most to the least used.
fn group_means(uses: &[f32]) -> Vec<f32> {
    let mut sorted = uses.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let bounds = |i: usize| i * sorted.len() / N_GROUPS;
    let mean = |i: usize| {
        let stretch = &sorted[bounds(i)..bounds(i + 1)];
        if stretch.is_empty() { 0.0 } else { stretch.iter().sum::<f32>() / stretch.len() as f32 }
    };
    (0..N_GROUPS).map(mean).collect()
}

/// The plan for other budgets of the devices, from 0 to the size of the whole model; null with the
/// CPU alone. Budgets include the memory of the drivers.
fn plans(engine: &Engine, reserves: &[Bytes]) -> Value {
    let devices = engine.devices();
    let [_, others @ ..] = devices else { return Value::Null };
    if others.is_empty() {
        return Value::Null;
    }
    let task = engine::task(engine.model(), devices, engine.options());
    let reserve = |device: usize| reserves.get(device).copied().unwrap_or_default();
    let unlimited = with_budgets(&task, |_| Bytes::MAX);
    let needed =
        (1..).zip(&unlimited.devices[1..]).map(|(i, bytes)| (bytes.total() + reserve(i)).0);
    let largest = needed.max().unwrap_or(0);
    let budgets = (0..N_BUDGETS).map(|i| Bytes(largest * i / (N_BUDGETS - 1)));
    let budgets = budgets.map(|budget| {
        let forecast = with_budgets(&task, |i| Bytes(budget.0.saturating_sub(reserve(i).0)));
        let layers = || forecast.placement.layers.iter();
        let prompt = forecast.prompt.filter(|seconds| *seconds > 0.0);
        json!({
            "budget_bytes": budget.0,
            "tokens_per_second": forecast.rate(),
            "prompt_tokens_per_second": prompt.map(|seconds| forecast.n_prompt as f64 / seconds),
            "layers_on_devices": layers().filter(|l| l.home != CPU && !l.is_split()).count(),
            "layers_split": layers().filter(|layer| layer.is_split()).count(),
            "used_neurons_off_cpu": forecast.off_cpu,
        })
    });
    let budget =
        |(i, device): (usize, &Device)| device.ledger().budget().0.saturating_add(reserve(i).0);
    let current: u64 = (1..).zip(others).map(budget).max().unwrap_or(0);
    let name = match others {
        [device] => device.info().name.clone(),
        _ => "all devices".to_owned(),
    };
    json!({
        "device": name,
        "assumed": false,
        "current_bytes": Some(current).filter(|bytes| *bytes != u64::MAX),
        "budgets": budgets.collect::<Vec<Value>>(),
    })
}

/// The plan if `budget` gives the budget of each device by index.
fn with_budgets(task: &Task, budget: impl Fn(usize) -> Bytes) -> Forecast {
    let mut task = task.clone();
    task.devices.iter_mut().enumerate().for_each(|(i, device)| device.budget = budget(i));
    placement::plan(&task)
}

/// Number of a layer's neurons on each device.
fn shares(placed: &LayerPlacement, n_ff: usize, n_devices: usize) -> Vec<usize> {
    let mut counts = vec![0; n_devices];
    for share in &placed.shares {
        counts[share.device] += match &share.neurons {
            Neurons::All => n_ff,
            Neurons::List(list) => list.len(),
        };
    }
    counts
}

/// The planner's estimate for the budgets in use.
fn plan(forecast: &Forecast) -> Value {
    let on_devices = forecast.placement.layers.iter().filter(|layer| layer.home != CPU).count();
    json!({
        "tokens_per_second": forecast.rate(),
        "seconds": forecast.seconds,
        "seconds_cpu": forecast.parts.cpu,
        "seconds_devices": forecast.parts.devices,
        "seconds_hand_offs": forecast.parts.hand_offs,
        "layers_on_devices": on_devices,
        "used_neurons_off_cpu": forecast.off_cpu,
        "device_bytes": forecast.devices.iter().map(|bytes| bytes.total().0).collect::<Vec<u64>>(),
    })
}

/// `GET /thermocline/events`: changes since the previous event, while the scheduler is busy.
pub(crate) async fn events(State(app): State<App>) -> Result<Response> {
    let served = app.served()?;
    let keep_alive = Some(app.config.limits.keep_alive);
    Ok(stream::response(keep_alive, move |events| async move {
        let _watcher = served.scheduler.watch();
        let mut before = (served.status(), Instant::now());
        events.send(&event(&before.0, &before.0, Duration::ZERO)).await?;
        // End the stream at shutdown, because an open page would otherwise delay it.
        let mut stop = app.stop.subscribe();
        loop {
            let now = tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
                now = wait_for_change(&events, &served, &before.0) => now?,
            };
            let at = Instant::now();
            events.send(&event(&before.0, &now, at - before.1)).await?;
            before = (now, at);
        }
    }))
}

async fn wait_for_change(
    events: &Events,
    served: &ServedModel,
    before: &Status,
) -> std::result::Result<Status, Disconnected> {
    let changed = async {
        loop {
            tokio::time::sleep(EVENT_PERIOD).await;
            let now = served.status();
            let busy = |status: &Status| {
                status.slots.iter().filter(|slot| slot.phase != SlotPhase::Idle).count()
            };
            if now.counters != before.counters || busy(&now) != busy(before) {
                return now;
            }
        }
    };
    events.wait(changed).await
}

fn event(before: &Status, now: &Status, time: Duration) -> Value {
    let (old, new) = (&before.counters, &now.counters);
    let rate = |n: u64| if time.is_zero() { 0.0 } else { n as f64 / time.as_secs_f64() };
    let neurons = new.neurons - old.neurons;
    let waits = neurons.waits.shares();
    let busy = now.slots.iter().filter(|slot| slot.phase != SlotPhase::Idle).count();
    json!({
        "seconds": time.as_secs_f64(),
        "steps": new.n_steps - old.n_steps,
        "prompt_tokens": new.prompt_tokens - old.prompt_tokens,
        "generated_tokens": new.generated_tokens - old.generated_tokens,
        "tokens_per_second": rate(new.generated_tokens - old.generated_tokens),
        "prompt_tokens_per_second": rate(new.prompt_tokens - old.prompt_tokens),
        "density": density(&neurons),
        "active": neurons.active,
        "active_off_cpu": neurons.off_cpu,
        "neurons": neurons.neurons,
        "cpu_waited": waits.map(|[cpu, _]| cpu),
        "devices_waited": waits.map(|[_, devices]| devices),
        "running": busy,
        "queued": now.n_queued,
        "blocks_used": now.n_blocks_used,
        "blocks": now.n_blocks,
        "devices": now.devices.iter().map(|device| device.used).collect::<Vec<u64>>(),
        "layer_density": by_layer(before, now, |layer| [layer.active, layer.neurons]),
        "layer_off_cpu": by_layer(before, now, |layer| [layer.off_cpu, layer.active]),
        "fired": (now.fired.n_steps != before.fired.n_steps).then(|| fired(&now.fired)),
        "fired_refused": now.fired.refused,
    })
}

/// The neurons that fired in a step: for each layer a hexadecimal digit per cell; null for a layer
/// without neurons.
fn fired(fired: &FiredNeurons) -> Value {
    let digit = |value: &u8| char::from_digit(u32::from(*value), 16).unwrap_or('f');
    let row = |cells: &Vec<u8>| -> Option<String> {
        (!cells.is_empty()).then(|| cells.iter().map(digit).collect())
    };
    let layers: Vec<Option<String>> = fired.layers.iter().map(row).collect();
    json!({ "tokens": fired.n_tokens, "layers": layers })
}

/// For each layer, the ratio of two counts since the last event; null if the counters were not read.
fn by_layer(before: &Status, now: &Status, counts: fn(&LayerActivity) -> [f64; 2]) -> Value {
    if before.layers == now.layers {
        return Value::Null;
    }
    let layers = now.layers.iter().zip(&before.layers).map(|(new, old)| {
        let ([part, total], [old_part, old_total]) = (counts(new), counts(old));
        (total > old_total).then(|| (part - old_part) / (total - old_total))
    });
    layers.collect::<Vec<Option<f64>>>().into()
}
