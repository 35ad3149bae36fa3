//! Searches the placements of a model that no other dominates in decode and prefill time.
//!
//! The CPU takes the first layers, so that the residual moves only once; each device takes a run
//! of layers after them, in the order of the list; the head goes to the last of them if that is
//! faster. Every length of these runs is tried (with several devices, a grid of lengths), and for
//! each every number of whole layers (`fill.rs`). The search is deterministic, and a larger budget
//! never removes a candidate: every placement that fitted still fits, or one that dominates it.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use hal::Bytes;

use super::estimate::Choice;
use super::facts::{DeviceFacts, Task};
use super::fill::{Filled, Filler};
use super::front::{Cost, Costs, Front};
use super::{CPU, DeviceIndex};

/// Borders between the runs of several devices that are tried.
const BORDERS: usize = 24;

/// All devices except the CPU.
pub(super) fn devices(task: &Task) -> Range<DeviceIndex> {
    CPU + 1..task.devices.len()
}

pub(super) struct Search<'a> {
    costs: &'a Costs<'a>,
    task: &'a Task,
    fillers: Vec<Filler<'a>>,
    /// Candidate ends of runs, ascending, including 0 and all.
    borders: Vec<usize>,
    /// Runs of a device within an amount of memory: (device, first, end, bytes).
    filled: HashMap<(DeviceIndex, usize, usize, u64), Rc<[Filled]>>,
}

/// A candidate placement: layers outside of the runs are on the CPU.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    embed: DeviceIndex,
    head: DeviceIndex,
    runs: Vec<Run>,
}

/// Layers on a device with this much memory for them.
#[derive(Clone, Debug)]
struct Run {
    device: DeviceIndex,
    layers: Range<usize>,
    room: Bytes,
    filled: Filled,
}

/// State of the search after placing the first layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Stop {
    /// Device of the last run of layers.
    run: DeviceIndex,
    /// Device of the residual: that of the run, or the CPU if the run's last layer is on the CPU.
    at: DeviceIndex,
    /// Number of placed layers.
    end: usize,
}

/// The best candidates for each state.
type Ways = HashMap<Stop, Front<Vec<Run>>>;

impl<'a> Search<'a> {
    pub(super) fn new(costs: &'a Costs<'a>) -> Search<'a> {
        let task = costs.task;
        let n_layer = task.layers.len();
        let step = match devices(task).len() {
            0 | 1 => 1,
            _ => n_layer.div_ceil(BORDERS).max(1),
        };
        let borders = (0..n_layer).step_by(step).map(|layer| task.group(layer).start);
        let mut borders: Vec<usize> = borders.chain([n_layer]).collect();
        borders.dedup();
        let fillers = devices(task).map(|device| Filler::new(costs, device)).collect();
        Search { costs, task, fillers, borders, filled: HashMap::new() }
    }

    /// The best candidates, including the placement with everything on the CPU.
    pub(super) fn all(&mut self) -> Front<Candidate> {
        let mut front = Front::default();
        let cost = self.costs.of(&self.task.on_cpu());
        front.offer(cost, || Candidate { embed: CPU, head: CPU, runs: Vec::new() });
        for head in CPU..self.task.devices.len() {
            for embed in CPU..self.task.devices.len() {
                self.with_ends(embed, head, &(0..=self.task.layers.len()), &mut front);
            }
        }
        front
    }

    /// The best candidates that place exactly the layers from `first` on on the device; also the
    /// head, if `with_head` and it fits. Empty if the layers do not fit, or if `first` must share
    /// the home of the layer before it.
    pub(super) fn from(&mut self, first: usize, with_head: bool) -> Front<Candidate> {
        if !self.task.may_cut(first) {
            return Front::default();
        }
        if !self.borders.contains(&first) {
            self.borders.push(first);
            self.borders.sort_unstable();
        }
        let mut front = Front::default();
        for head in devices(self.task).rev().filter(|_| with_head).chain([CPU]) {
            for embed in CPU..self.task.devices.len() {
                self.with_ends(embed, head, &(first..=first), &mut front);
            }
            if front.fastest().is_some() {
                break;
            }
        }
        front
    }

    /// Adds the best candidates with the embedding and the head on these devices and the first of
    /// the other devices' layers in `firsts`.
    fn with_ends(
        &mut self,
        embed: DeviceIndex,
        head: DeviceIndex,
        firsts: &RangeInclusive<usize>,
        front: &mut Front<Candidate>,
    ) {
        let n_layer = self.task.layers.len();
        let Some(rooms) = self.rooms(embed, head) else { return };
        let mut ways = Ways::new();
        let mut start = |end: usize, at: DeviceIndex, cost: Cost| {
            ways.entry(Stop { run: CPU, at, end }).or_default().offer(cost, Vec::new);
        };
        start(0, embed, Cost::default());
        if embed == CPU {
            let mut cost = Cost::default();
            for (layer, spot) in self.task.on_cpu().layers.into_iter().enumerate() {
                cost = cost + self.costs.layer(layer, spot);
                start(layer + 1, CPU, cost);
            }
        }
        if !self.task.constraints.cache_on_cpu {
            for device in devices(self.task) {
                self.extend(&mut ways, device, &rooms, firsts);
            }
        }
        // With one device, only runs that end with the last layer matter.
        let ends = ways.into_iter().filter(|(Stop { run, end, .. }, _)| {
            let is_head = head == CPU || *run == head || (*run == CPU && embed == CPU);
            let whole_cpu = *run != CPU || firsts.contains(&n_layer);
            *end == n_layer && is_head && whole_cpu
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(stop, _)| *stop);
        for (stop, ways) in ends {
            let last = self.costs.carry(stop.at, head) + self.costs.head(head);
            for (cost, runs) in ways {
                front.offer(cost + last, || Candidate { embed, head, runs });
            }
        }
    }

    /// The memory that each device has left for layers; `None` if embedding or head does not fit.
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
                // A device too small for its scratch memory holds nothing.
                None => (!ends).then_some(Bytes(0)),
                Some(left) => Some(Bytes(left)),
            }
        };
        self.task.devices.iter().enumerate().map(room).collect()
    }

    /// Adds runs of layers on `device` to the candidates that end on earlier devices.
    fn extend(
        &mut self,
        ways: &mut Ways,
        device: DeviceIndex,
        rooms: &[Bytes],
        firsts: &RangeInclusive<usize>,
    ) {
        let n_layer = self.task.layers.len();
        let borders = self.borders.clone();
        let is_last = device + 1 == self.task.devices.len();
        let n_devices = self.task.devices.len();
        let befores = (CPU..device).flat_map(|run| (CPU..n_devices).map(move |at| (run, at)));
        let befores: Vec<_> = befores.collect();
        let room = rooms[device];
        for &from in borders.iter().filter(|&&from| from < n_layer) {
            for &(run, at) in &befores {
                // If the embedding is on a device, the layers continue there.
                let elsewhere = run == CPU && at != CPU && at != device;
                if elsewhere || (run == CPU && !firsts.contains(&from)) {
                    continue;
                }
                let Some(before) = ways.get(&Stop { run, at, end: from }).cloned() else {
                    continue;
                };
                let entry = self.costs.carry(at, device);
                for &end in borders.iter().filter(|&&end| end > from) {
                    if end < n_layer && is_last {
                        continue;
                    }
                    for filled in self.fill(device, &(from..end), room).iter() {
                        let stop = Stop { run: device, at: filled.end, end };
                        let front = ways.entry(stop).or_default();
                        for (cost, runs) in before.iter() {
                            let run = || Run { device, layers: from..end, room, filled: *filled };
                            let with = || runs.iter().cloned().chain([run()]).collect();
                            front.offer(*cost + entry + filled.cost, with);
                        }
                    }
                }
            }
        }
    }

    fn fill(&mut self, device: DeviceIndex, layers: &Range<usize>, room: Bytes) -> Rc<[Filled]> {
        let filler = &self.fillers[device - CPU - 1];
        let key = (device, layers.start, layers.end, room.0);
        Rc::clone(self.filled.entry(key).or_insert_with(|| filler.fill(layers, room).into()))
    }

    /// The location of everything in this candidate.
    pub(super) fn choice(&self, way: &Candidate) -> Choice {
        let mut choice = Choice { embed: way.embed, head: way.head, ..self.task.on_cpu() };
        for Run { device, layers, room, filled } in &way.runs {
            let spots = self.fillers[device - CPU - 1].place(layers, *room, filled);
            choice.layers.splice(layers.clone(), spots);
        }
        choice
    }
}
