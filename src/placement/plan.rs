//! Plans a placement from sizes, uses, speeds and budgets: by default, the placement with the least
//! estimated decode time among those whose prefill is no slower than that of the best placement
//! with whole layers only. `hottest.rs` has the policy that fills the budget.
//!
//! A larger budget never makes both decode and prefill slower: if decode becomes slower than with a
//! smaller budget, prefill becomes faster. The reason: the placement for the smaller budget, or one
//! that dominates it, is still a candidate (`search.rs`). It is rejected only if its prefill is
//! slower than allowed, and therefore slower than the prefill of the chosen placement. If prefill
//! is not considered, decode never becomes slower.

use super::DeviceIndex;
use super::estimate::Choice;
use super::facts::{PlacementPolicy, PlanConstraints, Task};
use super::forecast::Forecast;
use super::front::{Cost, Costs, ParetoFront};
use super::hottest::plan_hottest;
use super::search::{Candidate, Search, devices};

/// Plans the placement of a model by the policy of the task's constraints.
#[must_use]
pub fn plan(task: &Task) -> Forecast {
    let constraints = &task.constraints;
    match constraints.policy {
        PlacementPolicy::Fastest => plan_fastest(task),
        PlacementPolicy::Fill => plan_hottest(task),
        PlacementPolicy::Layers => {
            let whole_layers = constraints.whole_layers.or(Some(usize::MAX));
            let constraints = PlanConstraints { whole_layers, ..*constraints };
            plan_fastest(&Task { constraints, ..task.clone() })
        }
    }
}

/// The fastest placement within the constraints, whatever their policy.
fn plan_fastest(task: &Task) -> Forecast {
    let costs = Costs::new(task, &[]);
    if costs.n_prompt.is_none() {
        let plain = plan_for_decode(task);
        return plan_with_streaming(task, &plain).unwrap_or(plain);
    }
    let whole = plan_whole_layers(task);
    let mut search = Search::new(&costs);
    let candidates = search.candidates();
    // The candidates include almost all placements with whole layers only (see `fastest`).
    let faster = whole.prompt.and_then(|bound| candidates.within(bound));
    let Some((cost, best)) = faster.filter(|(cost, _)| cost.token <= whole.seconds) else {
        return forecast_without_streaming(task, &fastest(&without_shares(task)));
    };
    let slowest = cost.token.max(whole.seconds);
    plan_streaming(task, &candidates, *cost, slowest)
        .unwrap_or_else(|| forecast_without_streaming(task, &search.choice(best)))
}

/// The placement with the fastest decode, whatever its prefill time. It shows how much decode time
/// the prefill constraint costs.
#[must_use]
pub fn plan_for_decode(task: &Task) -> Forecast {
    forecast_without_streaming(task, &fastest(task))
}

/// The choice with the fastest decode.
fn fastest(task: &Task) -> Choice {
    let best = search_fastest(task);
    if task.constraints.whole_layers.is_some() || task.layers.iter().any(|layer| layer.leaves_cpu) {
        return best;
    }
    // The search fills a run of layers with shares of neurons first, so in rare cases of little
    // memory it misses the best placement with whole layers only.
    let whole = search_fastest(&without_shares(task));
    if task.seconds(&whole) < task.seconds(&best) { whole } else { best }
}

fn search_fastest(task: &Task) -> Choice {
    let costs = Costs::of_decode(task);
    let mut search = Search::new(&costs);
    let n_layer = task.layers.len();
    let candidates = match task.constraints.whole_layers {
        None => search.candidates(),
        // Tries the requested number of layers, then fewer until they fit. With none, only a
        // requested head is on the device.
        Some(wanted) => {
            let firsts = n_layer.saturating_sub(wanted)..=n_layer;
            let mut tried = firsts.map(|first| search.candidates_from(first, wanted > n_layer));
            tried.find(|candidates| candidates.fastest().is_some()).unwrap_or_default()
        }
    };
    let choice = candidates.fastest().map(|(_, best)| search.choice(best));
    choice.unwrap_or_else(|| task.on_cpu())
}

/// The placement with the fastest decode among those with whole layers only: the baseline of a
/// plan.
#[must_use]
pub fn plan_whole_layers(task: &Task) -> Forecast {
    plan_for_decode(&without_shares(task))
}

/// The task without streaming, and with whole layers only.
fn without_shares(task: &Task) -> Task {
    let mut task = task.clone();
    for device in &mut task.devices {
        device.stream = None;
        device.layers.iter_mut().for_each(|layer| layer.shares = [].into());
    }
    task
}

/// The best placement with slots for streaming the CPU's neurons to devices in prefill. `None`
/// unless it saves more prefill time than the slots' memory costs in decode time, decode takes no
/// longer than `slowest`, and no candidate without slots (`candidates`) is as good. `baseline`
/// is the cost of the best of `candidates`.
fn plan_streaming(
    task: &Task,
    candidates: &ParetoFront<Candidate>,
    baseline: Cost,
    slowest: f64,
) -> Option<Forecast> {
    let n = task.n_prompt() as f64;
    let text = |cost: Cost| cost.prompt + n * cost.token;
    let pays = |cost: Cost| {
        let faster = cost.prompt <= baseline.prompt && text(cost) < text(baseline);
        let dominated =
            || candidates.within(cost.prompt).is_some_and(|(other, _)| other.token <= cost.token);
        faster && cost.token <= slowest && !dominated()
    };
    let mut targets: Vec<DeviceIndex> = devices(task).filter(|&d| task.may_stream(d)).collect();
    while !targets.is_empty() {
        let task = task.with_slots(&targets);
        let costs = Costs::new(&task, &targets);
        let mut search = Search::new(&costs);
        let streamed = search.candidates();
        let (_, best) = streamed.iter().find(|(cost, _)| pays(*cost))?;
        let choice = search.choice(best);
        let from = task.stream_from(&choice, &targets);
        let n_before = targets.len();
        targets.retain(|&device| from[device].is_some());
        if targets.len() == n_before {
            return Some(Forecast::new(&task, &choice, from));
        }
    }
    None
}

/// The placement that the user requested, with slots for streaming neurons of CPU layers to a
/// device in prefill. `None` without such a request, if the slots do not fit, or if prefill does
/// not become faster.
fn plan_with_streaming(task: &Task, plain: &Forecast) -> Option<Forecast> {
    task.constraints.whole_layers?;
    let streamed = |device: DeviceIndex| {
        let task = task.with_slots(&[device]);
        let choice = fastest(&task);
        let from = task.stream_from(&choice, &[device]);
        let streams = from[device].is_some();
        Some(Forecast::new(&task, &choice, from)).filter(|_| streams)
    };
    let all = devices(task).filter(|&device| task.may_stream(device)).filter_map(streamed);
    let mut same = all.filter(|forecast| forecast.placement == plain.placement);
    same.find(|forecast| {
        forecast.prompt.zip(plain.prompt).is_some_and(|(with, without)| with < without)
    })
}

fn forecast_without_streaming(task: &Task, choice: &Choice) -> Forecast {
    Forecast::new(task, choice, vec![None; task.devices.len()])
}
