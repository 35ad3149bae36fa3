//! Searches for the placements of a model that no other placement dominates in decode and prefill
//! time.
//!
//! The CPU takes the first layers, so that the residual moves only once. Each device takes a run of
//! layers after them, in the order of the list; the head goes to the last of these devices if that
//! is faster. Every length of the runs is tried (with several devices or very many layers, a grid of
//! lengths), and for
//! every length each number of whole layers (`fill.rs`). The search is deterministic, and a larger
//! budget never removes a candidate: every placement that fitted still fits, or one that dominates
//! it.

use std::collections::HashMap;
use std::ops::{Range, RangeInclusive};
use std::rc::Rc;

use hal::Bytes;

use super::estimate::Choice;
use super::facts::{DeviceFacts, Task};
use super::fill::{FilledRun, RunFiller};
use super::front::{Cost, Costs, ParetoFront};
use super::{CPU, DeviceIndex};

/// Maximum number of borders between runs that are tried with several devices.
const BORDERS: usize = 24;

/// All devices except the CPU.
pub(super) fn devices(task: &Task) -> Range<DeviceIndex> {
    CPU + 1..task.devices.len()
}

pub(super) struct Search<'a> {
    costs: &'a Costs<'a>,
    task: &'a Task,
    fillers: Vec<RunFiller<'a>>,
    /// Layers before which a run may begin or end, ascending, including 0 and the number of layers.
    borders: Vec<usize>,
    /// The cost of the first layers on the CPU, by their number.
    on_cpu: Vec<Cost>,
    /// Results of [`RunFiller::fill`] by (device, first layer, end, bytes).
    filled: HashMap<(DeviceIndex, usize, usize, u64), Rc<[FilledRun]>>,
}

/// A candidate placement: layers outside of the runs are on the CPU.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    embed: DeviceIndex,
    head: DeviceIndex,
    runs: Vec<LayerRun>,
}

/// Consecutive layers on a device, with `room` bytes of memory for them.
#[derive(Clone, Debug)]
struct LayerRun {
    device: DeviceIndex,
    layers: Range<usize>,
    room: Bytes,
    filled: FilledRun,
}

/// State of the search after placing the first layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct SearchState {
    /// Device of the last run of layers.
    run: DeviceIndex,
    /// Device of the residual: the device of the run, or the CPU if the last layer of the run is on
    /// the CPU.
    at: DeviceIndex,
    /// Number of placed layers.
    end: usize,
}

/// The best candidates for each state of the search.
type FrontByState = HashMap<SearchState, ParetoFront<Vec<LayerRun>>>;

impl<'a> Search<'a> {
    pub(super) fn new(costs: &'a Costs<'a>) -> Search<'a> {
        let task = costs.task;
        let n_layer = task.layers.len();
        let step = match devices(task).len() {
            0 | 1 => costs.step,
            _ => n_layer.div_ceil(BORDERS).max(1),
        };
        let borders = (0..n_layer).step_by(step).map(|layer| task.home_group(layer).start);
        // A run begins with a layer on its device, so each demanded layer may begin one.
        let demanded = (0..n_layer).filter(|&layer| task.layers[layer].leaves_cpu);
        let demanded = demanded.map(|layer| task.home_group(layer).start);
        let mut borders: Vec<usize> = borders.chain(demanded).chain([n_layer]).collect();
        borders.sort_unstable();
        borders.dedup();
        let fillers = devices(task).map(|device| RunFiller::new(costs, device)).collect();
        let mut on_cpu = vec![Cost::default()];
        for (layer, spot) in task.on_cpu().layers.into_iter().enumerate() {
            on_cpu.push(on_cpu[layer] + costs.layer(layer, spot));
        }
        Search { costs, task, fillers, borders, on_cpu, filled: HashMap::new() }
    }

    /// The best candidates, including the placement with everything on the CPU.
    pub(super) fn candidates(&mut self) -> ParetoFront<Candidate> {
        let mut front = ParetoFront::default();
        let cost = self.costs.placement(&self.task.on_cpu());
        front.insert_unless_dominated(cost, || Candidate {
            embed: CPU,
            head: CPU,
            runs: Vec::new(),
        });
        for head in CPU..self.task.devices.len() {
            for embed in CPU..self.task.devices.len() {
                self.add_candidates(embed, head, &(0..=self.task.layers.len()), &mut front);
            }
        }
        front
    }

    /// The best candidates with exactly the layers from `first` to the last on devices; also the
    /// head, if `with_head` is set and it fits. Empty if the layers do not fit, or if `first` must
    /// have the home of the layer before it.
    pub(super) fn candidates_from(
        &mut self,
        first: usize,
        with_head: bool,
    ) -> ParetoFront<Candidate> {
        if !self.task.may_cut(first) {
            return ParetoFront::default();
        }
        if !self.borders.contains(&first) {
            self.borders.push(first);
            self.borders.sort_unstable();
        }
        let mut front = ParetoFront::default();
        for head in devices(self.task).rev().filter(|_| with_head).chain([CPU]) {
            for embed in CPU..self.task.devices.len() {
                self.add_candidates(embed, head, &(first..=first), &mut front);
            }
            if front.fastest().is_some() {
                break;
            }
        }
        front
    }

    /// Adds to `front` the best candidates with the embedding on `embed` and the head on `head`.
    /// The first layer on a device other than the CPU must be in `firsts`.
    fn add_candidates(
        &mut self,
        embed: DeviceIndex,
        head: DeviceIndex,
        firsts: &RangeInclusive<usize>,
        front: &mut ParetoFront<Candidate>,
    ) {
        let n_layer = self.task.layers.len();
        let Some(rooms) = self.memory_left(embed, head) else { return };
        let mut fronts = FrontByState::new();
        let mut start = |end: usize, at: DeviceIndex, cost: Cost| {
            fronts
                .entry(SearchState { run: CPU, at, end })
                .or_default()
                .insert_unless_dominated(cost, Vec::new);
        };
        start(0, embed, Cost::default());
        if embed == CPU {
            self.borders[1..].iter().for_each(|&end| start(end, CPU, self.on_cpu[end]));
        }
        if !self.task.constraints.cache_on_cpu {
            for device in devices(self.task) {
                self.extend(&mut fronts, device, &rooms, firsts);
            }
        }
        // Keeps complete candidates, in which all layers are placed. The head is on the CPU, on the
        // device of the last run, or on any device if all layers are on the CPU.
        let ends = fronts.into_iter().filter(|(SearchState { run, end, .. }, _)| {
            let is_head = head == CPU || *run == head || (*run == CPU && embed == CPU);
            let whole_cpu = *run != CPU || firsts.contains(&n_layer);
            *end == n_layer && is_head && whole_cpu
        });
        let mut ends: Vec<_> = ends.collect();
        ends.sort_by_key(|(stop, _)| *stop);
        for (stop, fronts) in ends {
            let last = self.costs.residual_move_time(stop.at, head) + self.costs.head(head);
            for (cost, runs) in fronts {
                front.insert_unless_dominated(cost + last, || Candidate { embed, head, runs });
            }
        }
    }

    /// The memory that each device has left for layers; `None` if the embedding or the head does
    /// not fit, or if its device does not support it.
    fn memory_left(&self, embed: DeviceIndex, head: DeviceIndex) -> Option<Vec<Bytes>> {
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

    /// Extends the candidates that end on earlier devices by runs of layers on `device`.
    fn extend(
        &mut self,
        fronts: &mut FrontByState,
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
                // If the embedding is on a device, the first layers are on that device too.
                let elsewhere = run == CPU && at != CPU && at != device;
                if elsewhere || (run == CPU && !firsts.contains(&from)) {
                    continue;
                }
                let Some(before) = fronts.get(&SearchState { run, at, end: from }).cloned() else {
                    continue;
                };
                let entry = self.costs.residual_move_time(at, device);
                for &end in borders.iter().filter(|&&end| end > from) {
                    if end < n_layer && is_last {
                        continue;
                    }
                    for filled in self.fill(device, &(from..end), room).iter() {
                        let stop = SearchState { run: device, at: filled.end, end };
                        let front = fronts.entry(stop).or_default();
                        for (cost, runs) in before.iter() {
                            let run =
                                || LayerRun { device, layers: from..end, room, filled: *filled };
                            let extended = || runs.iter().cloned().chain([run()]).collect();
                            front.insert_unless_dominated(*cost + entry + filled.cost, extended);
                        }
                    }
                }
            }
        }
    }

    fn fill(&mut self, device: DeviceIndex, layers: &Range<usize>, room: Bytes) -> Rc<[FilledRun]> {
        let filler = &self.fillers[device - CPU - 1];
        let key = (device, layers.start, layers.end, room.0);
        Rc::clone(self.filled.entry(key).or_insert_with(|| filler.fill(layers, room).into()))
    }

    pub(super) fn choice(&self, candidate: &Candidate) -> Choice {
        let mut choice =
            Choice { embed: candidate.embed, head: candidate.head, ..self.task.on_cpu() };
        for LayerRun { device, layers, room, filled } in &candidate.runs {
            let spots = self.fillers[device - CPU - 1].place(layers, *room, filled);
            choice.layers.splice(layers.clone(), spots);
        }
        choice
    }
}
