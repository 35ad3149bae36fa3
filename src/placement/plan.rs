//! From sizes, uses, speeds and budgets to a placement: the one with the least estimated time of a token.
//!
//! The CPU takes the first layers, so that the residual changes sides once; each device takes a run of layers after
//! it, in the order of the list; the head goes to the last of them if that is faster. Every length of these runs is
//! tried (on several devices, a grid of them), and for each every number of whole layers (`fill.rs`). Nothing here is
//! random, and more budget never makes the estimate worse: every placement that fitted still fits.

use std::collections::HashMap;
use std::ops::Range;

use hal::Bytes;

use super::estimate::Choice;
use super::facts::{DeviceFacts, Task};
use super::fill::{Filled, Filler};
use super::forecast::Forecast;
use super::{CPU, DeviceIndex};

/// Borders between the runs of several devices that are tried.
const BORDERS: usize = 24;

/// Places a model.
#[must_use]
pub fn plan(task: &Task) -> Forecast {
    let choice = choose(task);
    let without = Forecast::new(task, &choice, vec![None; task.devices.len()]);
    streaming(task, &without).unwrap_or(without)
}

/// The best placement beside slots in which the CPU's neurons come to devices for prompts, if prompts gain more by it than
/// generated tokens lose by what the slots take, and these are no slower than with whole layers only.
fn streaming(task: &Task, without: &Forecast) -> Option<Forecast> {
    let mut there: Vec<DeviceIndex> = devices(task).filter(|&d| task.may_stream(d)).collect();
    while !there.is_empty() {
        let with = task.with_slots(&there);
        let choice = choose(&with);
        let mut from = with.stream_from(&choice);
        from.iter_mut()
            .enumerate()
            .filter(|(d, _)| !there.contains(d))
            .for_each(|(_, f)| *f = None);
        let n_before = there.len();
        there.retain(|&device| from[device].is_some());
        if there.len() < n_before {
            continue;
        }
        let forecast = Forecast::new(&with, &choice, from);
        let faster = forecast.prompt? < without.prompt? && forecast.text()? < without.text()?;
        let plain = || plan_whole_layers(task).seconds;
        let slower = || forecast.seconds > without.seconds && forecast.seconds > plain();
        return (faster && !slower()).then_some(forecast);
    }
    None
}

/// The placement of whole layers only with the least estimated time: what a plan is compared with.
#[must_use]
pub fn plan_whole_layers(task: &Task) -> Forecast {
    let mut task = task.clone();
    for device in &mut task.devices {
        device.stream = None;
        device.layers.iter_mut().for_each(|layer| layer.shares = [].into());
    }
    plan(&task)
}

fn choose(task: &Task) -> Choice {
    let n_layer = task.layers.len();
    let mut search = Search::new(task);
    match task.wishes.whole_layers {
        None => search.best(0),
        // As many as fit, and the head where none does.
        Some(wanted) => {
            let first = n_layer.saturating_sub(wanted);
            let fits = |from: usize| search.best_from(from, wanted > n_layer);
            (first..=n_layer).find_map(fits).unwrap_or_else(|| task.on_cpu())
        }
    }
}

/// Devices beside which the CPU is not named.
fn devices(task: &Task) -> Range<DeviceIndex> {
    CPU + 1..task.devices.len()
}

struct Search<'a> {
    task: &'a Task,
    fillers: Vec<Filler<'a>>,
    /// Ends of runs that are tried, ascending, 0 and all among them.
    borders: Vec<usize>,
    /// Runs of a device within a room: (device, first, end, room).
    filled: HashMap<(DeviceIndex, usize, usize, u64), Vec<Filled>>,
}

/// What the best way to place the first layers is looked for by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stop {
    /// Device of the last run of layers.
    run: DeviceIndex,
    /// Where the residual is: there, or on the CPU if the last layer of the run is.
    at: DeviceIndex,
    /// Layers placed.
    end: usize,
}

/// The best way to a stop.
#[derive(Clone, Debug)]
struct Run {
    seconds: f64,
    /// Device and first layer of each run of layers, in order, and where the residual is after it.
    runs: Vec<(DeviceIndex, usize, DeviceIndex)>,
}

impl<'a> Search<'a> {
    fn new(task: &'a Task) -> Search<'a> {
        let n_layer = task.layers.len();
        let step = match devices(task).len() {
            0 | 1 => 1,
            _ => n_layer.div_ceil(BORDERS).max(1),
        };
        let mut borders: Vec<usize> = (0..n_layer).step_by(step).collect();
        borders.push(n_layer);
        let fillers = devices(task).map(|device| Filler::new(task, device)).collect();
        Search { task, fillers, borders, filled: HashMap::new() }
    }

    fn best(&mut self, first: usize) -> Choice {
        let mut best = self.task.on_cpu();
        let mut least = self.task.seconds(&best);
        for head in CPU..self.task.devices.len() {
            for embed in CPU..self.task.devices.len() {
                if let Some(choice) = self.with_ends(embed, head, first..=self.task.layers.len()) {
                    let seconds = self.task.seconds(&choice);
                    if seconds < least {
                        (best, least) = (choice, seconds);
                    }
                }
            }
        }
        best
    }

    /// The best placement with exactly the layers from `first` on on devices, if they fit; the head too if `with_head`
    /// and it fits.
    fn best_from(&mut self, first: usize, with_head: bool) -> Option<Choice> {
        if !self.borders.contains(&first) {
            self.borders.push(first);
            self.borders.sort_unstable();
        }
        let heads = devices(self.task).rev().filter(|_| with_head).chain([CPU]);
        for head in heads {
            let embeds = CPU..self.task.devices.len();
            let choices = embeds.filter_map(|embed| self.with_ends(embed, head, first..=first));
            let all: Vec<Choice> = choices.collect();
            let best = all
                .into_iter()
                .min_by(|a, b| self.task.seconds(a).total_cmp(&self.task.seconds(b)));
            if best.is_some() {
                return best;
            }
        }
        None
    }

    /// The best placement with the embedding and the head on these devices and the first of the other devices'
    /// layers in `firsts`.
    fn with_ends(
        &mut self,
        embed: DeviceIndex,
        head: DeviceIndex,
        firsts: std::ops::RangeInclusive<usize>,
    ) -> Option<Choice> {
        let n_layer = self.task.layers.len();
        let rooms = self.rooms(embed, head)?;
        let mut ways: HashMap<Stop, Run> = HashMap::new();
        if embed == CPU {
            let mut seconds = 0.0;
            for layer in 0..=n_layer {
                let stop = Stop { run: CPU, at: CPU, end: layer };
                ways.insert(stop, Run { seconds, runs: vec![(CPU, 0, CPU)] });
                if layer < n_layer {
                    seconds +=
                        self.task.layer_time(layer, self.task.on_cpu().layers[layer]).total();
                }
            }
        } else {
            let stop = Stop { run: CPU, at: embed, end: 0 };
            ways.insert(stop, Run { seconds: 0.0, runs: vec![(embed, 0, embed)] });
        }
        if !self.task.wishes.cache_on_cpu {
            for device in devices(self.task) {
                self.extend(&mut ways, device, &rooms, &firsts);
            }
        }
        // On one device, only what ends with the last layer matters.
        let ends = ways.into_iter().filter(|(Stop { run, end, .. }, _)| {
            let is_head = head == CPU || *run == head || (*run == CPU && embed == CPU);
            let whole_cpu = *run != CPU || firsts.contains(&n_layer);
            *end == n_layer && is_head && whole_cpu
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(stop, _)| (stop.run, stop.at));
        let total = |(stop, way): &(Stop, Run)| way.seconds + self.task.carry(stop.at, head);
        let (_, run) = ends.into_iter().min_by(|a, b| total(a).total_cmp(&total(b)))?;
        Some(self.choice(embed, head, &rooms, &run))
    }

    /// What each device has left for layers; `None` if an end does not fit.
    fn rooms(&self, embed: DeviceIndex, head: DeviceIndex) -> Option<Vec<Bytes>> {
        let room = |(device, facts): (DeviceIndex, &DeviceFacts)| {
            if device == CPU {
                return Some(Bytes(0));
            }
            let mut taken = facts.fixed;
            if embed == device {
                taken += facts.embed?;
            }
            if head == device {
                taken += facts.head?;
            }
            if embed == device && head == device {
                taken = taken - facts.shared;
            }
            let ends = embed == device || head == device;
            match facts.budget.0.checked_sub(taken.0) {
                // What is too small for its scratch holds nothing.
                None => (!ends).then_some(Bytes(0)),
                Some(left) => Some(Bytes(left)),
            }
        };
        self.task.devices.iter().enumerate().map(room).collect()
    }

    /// Adds runs of layers on `device` to the ways that end on earlier devices.
    fn extend(
        &mut self,
        ways: &mut HashMap<Stop, Run>,
        device: DeviceIndex,
        rooms: &[Bytes],
        firsts: &std::ops::RangeInclusive<usize>,
    ) {
        let n_layer = self.task.layers.len();
        let borders = self.borders.clone();
        let is_last = device + 1 == self.task.devices.len();
        let n_devices = self.task.devices.len();
        let befores = (CPU..device).flat_map(|run| (CPU..n_devices).map(move |at| (run, at)));
        let befores: Vec<_> = befores.collect();
        for &end in borders.iter().filter(|&&end| end > 0 && (end == n_layer || !is_last)) {
            for &from in borders.iter().filter(|&&from| from < end) {
                for &(run, at) in &befores {
                    let Some(way) = ways.get(&Stop { run, at, end: from }).cloned() else {
                        continue;
                    };
                    // What is embedded on a device goes on there.
                    let elsewhere = run == CPU && at != CPU && at != device;
                    if elsewhere || (run == CPU && !firsts.contains(&from)) {
                        continue;
                    }
                    let entry = way.seconds + self.task.carry(at, device);
                    for filled in self.fill(device, from..end, rooms[device]) {
                        let stop = Stop { run: device, at: filled.end(), end };
                        let seconds = entry + filled.seconds;
                        if ways.get(&stop).is_none_or(|best| seconds < best.seconds) {
                            let runs = [&way.runs[..], &[(device, from, stop.at)]].concat();
                            ways.insert(stop, Run { seconds, runs });
                        }
                    }
                }
            }
        }
    }

    fn fill(&mut self, device: DeviceIndex, range: Range<usize>, room: Bytes) -> Vec<Filled> {
        let filler = &self.fillers[device - CPU - 1];
        let key = (device, range.start, range.end, room.0);
        self.filled.entry(key).or_insert_with(|| filler.fill(range, room)).clone()
    }

    fn choice(
        &mut self,
        embed: DeviceIndex,
        head: DeviceIndex,
        rooms: &[Bytes],
        run: &Run,
    ) -> Choice {
        let mut choice = Choice { embed, head, ..self.task.on_cpu() };
        for (i, &(device, from, at)) in run.runs.iter().enumerate() {
            let end = run.runs.get(i + 1).map_or(choice.layers.len(), |(_, next, _)| *next);
            if device == CPU || from == end {
                continue;
            }
            let filled = self.fill(device, from..end, rooms[device]);
            if let Some(filled) = filled.into_iter().find(|filled| filled.end() == at) {
                choice.layers.splice(from..end, filled.spots);
            }
        }
        choice
    }
}
