//! Plans a placement from sizes, uses, speeds and budgets: the placement with the least estimated
//! decode time among those whose prefill is no slower than that of the best placement with whole
//! layers only.
//!
//! A larger budget never makes both worse: if decode becomes slower than with a smaller budget,
//! prefill becomes faster. The reason: the placement for the smaller budget, or one that dominates
//! it, is still a candidate (`search.rs`). It is rejected only if its prefill is slower than
//! allowed, and so slower than that of the chosen placement. If prefill is not considered, decode
//! never becomes slower.

use super::DeviceIndex;
use super::estimate::Choice;
use super::facts::Task;
use super::forecast::Forecast;
use super::front::{Cost, Costs, Front};
use super::search::{Candidate, Search, devices};

/// Places a model.
#[must_use]
pub fn plan(task: &Task) -> Forecast {
    let costs = Costs::new(task, &[]);
    if costs.n_prompt.is_none() {
        let plain = plan_for_tokens(task);
        return beside(task, &plain).unwrap_or(plain);
    }
    let whole = plan_whole_layers(task);
    let mut search = Search::new(&costs);
    let ways = search.all();
    // Placements with whole layers only are among the candidates.
    let Some((cost, way)) = whole.prompt.and_then(|bound| ways.within(bound)) else {
        return whole;
    };
    let slowest = cost.token.max(whole.seconds);
    streaming(task, &ways, *cost, slowest).unwrap_or_else(|| unstreamed(task, &search.choice(way)))
}

/// The placement with the fastest decode, whatever the prefill time: shows the price of the
/// prefill constraint.
#[must_use]
pub fn plan_for_tokens(task: &Task) -> Forecast {
    unstreamed(task, &fastest(task))
}

fn fastest(task: &Task) -> Choice {
    let costs = Costs::of_tokens(task);
    let mut search = Search::new(&costs);
    let n_layer = task.layers.len();
    let ways = match task.constraints.whole_layers {
        None => search.all(),
        // As many layers as fit, down to none: then the head alone, if it was requested.
        Some(wanted) => {
            let firsts = n_layer.saturating_sub(wanted)..=n_layer;
            let mut tried = firsts.map(|first| search.from(first, wanted > n_layer));
            tried.find(|ways| ways.fastest().is_some()).unwrap_or_default()
        }
    };
    let choice = ways.fastest().map(|(_, way)| search.choice(way));
    choice.unwrap_or_else(|| task.on_cpu())
}

/// The placement with the fastest decode among those with whole layers only: the baseline of a
/// plan.
#[must_use]
pub fn plan_whole_layers(task: &Task) -> Forecast {
    let mut task = task.clone();
    for device in &mut task.devices {
        device.stream = None;
        device.layers.iter_mut().for_each(|layer| layer.shares = [].into());
    }
    plan_for_tokens(&task)
}

/// The best placement with slots for streaming the CPU's neurons to devices in prefill. `None`
/// unless it saves more prefill time than the slots' memory costs in decode time, decode takes no
/// longer than `slowest`, and no candidate without slots (`ways`) is as good. `without` is the cost
/// of the candidate chosen among `ways`.
fn streaming(
    task: &Task,
    ways: &Front<Candidate>,
    without: Cost,
    slowest: f64,
) -> Option<Forecast> {
    let n = task.n_prompt() as f64;
    let text = |cost: Cost| cost.prompt + n * cost.token;
    let pays = |cost: Cost| {
        let faster = cost.prompt <= without.prompt && text(cost) < text(without);
        let beaten = || ways.within(cost.prompt).is_some_and(|(way, _)| way.token <= cost.token);
        faster && cost.token <= slowest && !beaten()
    };
    let mut there: Vec<DeviceIndex> = devices(task).filter(|&d| task.may_stream(d)).collect();
    while !there.is_empty() {
        let with = task.with_slots(&there);
        let costs = Costs::new(&with, &there);
        let mut search = Search::new(&costs);
        let streamed = search.all();
        let (_, way) = streamed.iter().find(|(cost, _)| pays(*cost))?;
        let choice = search.choice(way);
        let from = with.stream_from(&choice, &there);
        let n_before = there.len();
        there.retain(|&device| from[device].is_some());
        if there.len() == n_before {
            return Some(Forecast::new(&with, &choice, from));
        }
    }
    None
}

/// The user's choice with slots for streaming neurons of CPU layers to devices in prefill, if
/// there is memory for them and prefill gains.
fn beside(task: &Task, plain: &Forecast) -> Option<Forecast> {
    task.constraints.whole_layers?;
    let streamed = |device: DeviceIndex| {
        let with = task.with_slots(&[device]);
        let choice = fastest(&with);
        let from = with.stream_from(&choice, &[device]);
        let streams = from[device].is_some();
        Some(Forecast::new(&with, &choice, from)).filter(|_| streams)
    };
    let all = devices(task).filter(|&device| task.may_stream(device)).filter_map(streamed);
    let mut same = all.filter(|forecast| forecast.placement == plain.placement);
    same.find(|forecast| {
        forecast.prompt.zip(plain.prompt).is_some_and(|(with, without)| with < without)
    })
}

fn unstreamed(task: &Task, choice: &Choice) -> Forecast {
    Forecast::new(task, choice, vec![None; task.devices.len()])
}
