//! Places a run of layers on one device within a budget: which layers are whole, and which are
//! split with how many neurons.
//!
//! Each group that a layer has on the device makes both decode and prefill faster, up to some
//! number of groups; beyond it, at most one of the two becomes faster. Up to that number, groups
//! are added one by one while they fit. Beyond it, all layers grow together in even stages, and a
//! stage is a candidate only if all of it fits. So more memory never removes a candidate, unless
//! another candidate is better in both.

use std::ops::Range;

use hal::Bytes;

use super::estimate::Spot;
use super::facts::{LayerSizes, Task};
use super::front::{Cost, Costs, Front};
use super::{CPU, DeviceIndex};

/// Stages past the number of groups that both decode and prefill gain from.
const STAGES: usize = 16;

/// Data shared by all runs of layers on one device.
#[derive(Debug)]
pub(super) struct Filler<'a> {
    costs: &'a Costs<'a>,
    device: DeviceIndex,
    /// Cost of each layer: on the CPU, and on this device with each number of groups.
    on_cpu: Vec<Cost>,
    here: Vec<Vec<Cost>>,
    /// Whether a layer may be whole on this device.
    may_be_whole: Vec<bool>,
    /// Groups of split layers up to which both decode and prefill gain.
    both: Caps,
    /// Stages towards the optimum for decode, and towards that for prefill.
    further: [Vec<Caps>; 2],
    /// Layers sorted by the use of their least used neurons, highest first: these lose least by
    /// being whole. Layers with one home are adjacent.
    flattest: Vec<usize>,
    /// Groups of each layer after a number of groups were added in total, by time saved per byte.
    steps: Vec<Vec<u16>>,
}

/// Maximum number of groups of each layer if it is split; `None` if the device cannot split it.
type Caps = Vec<Option<usize>>;

/// Location of the layers of a run that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Split, with the groups that make both decode and prefill faster, as far as they fit.
    Split,
    /// Split, with all groups of a stage towards the optimum of decode (0) or of prefill (1).
    Stage(usize, usize),
    OnCpu,
}

/// A placed run of layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// From the input of the first layer, on this device, to the output of the last.
    pub(super) cost: Cost,
    /// Device of the residual after it.
    pub(super) end: DeviceIndex,
    n_whole: usize,
    others: Others,
}

impl<'a> Filler<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, device: DeviceIndex) -> Filler<'a> {
        let task = costs.task;
        let n_layer = task.layers.len();
        let n_groups = |layer: usize| task.cut(layer).n_groups();
        let sizes = &task.devices[device].layers;
        let here = |layer: usize| -> Vec<Cost> {
            let spot = |groups| Spot { home: device, groups };
            (0..=n_groups(layer)).map(|groups| costs.layer(layer, spot(groups))).collect()
        };
        let here: Vec<Vec<Cost>> = (0..n_layer).map(here).collect();
        let constraints = &task.constraints;
        let best = |layer: usize, seconds: fn(&Cost) -> f64| {
            let most = match (constraints.whole_layers, constraints.neurons_on_cpu) {
                (Some(_), _) => return None,
                (None, true) => sizes[layer].shares.len().min(1).min(n_groups(layer)),
                (None, false) => sizes[layer].shares.len().min(n_groups(layer)),
            };
            // Past the point where both sides take equally long, more neurons on this device make
            // it slower.
            let each = here[layer][..most].iter().map(seconds).enumerate();
            each.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(k, _)| k)
        };
        let best = |seconds| (0..n_layer).map(|layer| best(layer, seconds)).collect::<Caps>();
        let tokens = best(|cost| cost.token);
        let prompts = costs.n_prompt.map_or_else(|| tokens.clone(), |_| best(|cost| cost.prompt));
        let both: Caps = tokens.iter().zip(&prompts).map(|(a, b)| *a.min(b)).collect();
        let tail = |layer: usize| {
            let facts = &task.layers[layer];
            facts.n_used() - facts.mass[n_groups(layer) / 2]
        };
        let groups: Vec<Range<usize>> = (0..n_layer).map(|layer| task.group(layer)).collect();
        let tails = groups.iter().map(|group| {
            let sum: f64 = group.clone().map(tail).sum();
            sum / group.len() as f64
        });
        let tails: Vec<f64> = tails.collect();
        let first = |layer: usize| groups[layer].start;
        let mut flattest: Vec<usize> = (0..n_layer).collect();
        flattest.sort_by(|&a, &b| {
            let by_use = tails[b].total_cmp(&tails[a]);
            by_use.then(first(b).cmp(&first(a))).then(b.cmp(&a))
        });
        let whole = |(layer, sizes): (usize, &LayerSizes)| {
            sizes.whole.is_some() && (!constraints.neurons_on_cpu || n_groups(layer) == 0)
        };
        let on_cpu = |layer| costs.layer(layer, Spot { home: CPU, groups: n_groups(layer) });
        Filler {
            costs,
            device,
            on_cpu: (0..n_layer).map(on_cpu).collect(),
            here,
            may_be_whole: sizes.iter().enumerate().map(whole).collect(),
            further: [stages(&both, &tokens), stages(&both, &prompts)],
            both,
            flattest,
            steps: steps(task, device),
        }
    }

    /// The Pareto fronts of placements of the layers of `range` within `room`, the first layer on
    /// this device: one front of placements that end on this device, another of placements that
    /// end on the CPU. For each number of whole layers, the others are split and filled, or stay on
    /// the CPU, so that no placement by whole layers is faster than the result.
    pub(super) fn fill(&self, range: &Range<usize>, room: Bytes) -> Vec<Filled> {
        let wholes = self.wholes(range);
        // Layers that the user requested on this device stay there, however slow that is.
        let fewest =
            if self.costs.task.constraints.whole_layers.is_some() { range.len() } else { 0 };
        let (mut here, mut elsewhere) = (Front::default(), Front::default());
        for n_whole in (fewest..=wholes.len()).rev() {
            let mut offer = |others: Others| {
                let wholes = &wholes[..n_whole];
                let Some(spots) = self.spots(range, wholes, others, room) else {
                    return false;
                };
                let end = spots.last().map_or(CPU, |spot| spot.home);
                let cost = self.cost(range, &spots);
                let front = if end == self.device { &mut here } else { &mut elsewhere };
                front.offer(cost, || Filled { cost, end, n_whole, others });
                true
            };
            offer(Others::Split);
            for (towards, stages) in self.further.iter().enumerate() {
                // If a stage does not fit, later ones do not either.
                let _ = (0..stages.len()).all(|stage| offer(Others::Stage(towards, stage)));
            }
            offer(Others::OnCpu);
        }
        here.into_iter().chain(elsewhere).map(|(_, filled)| filled).collect()
    }

    /// Locations of the layers of a run that was filled this way.
    pub(super) fn place(&self, range: &Range<usize>, room: Bytes, filled: &Filled) -> Vec<Spot> {
        let wholes = self.wholes(range);
        let wholes = &wholes[..filled.n_whole.min(wholes.len())];
        self.spots(range, wholes, filled.others, room).unwrap_or_default()
    }

    /// Layers of `range` that may be whole, first those that lose least by it.
    fn wholes(&self, range: &Range<usize>) -> Vec<usize> {
        let may = |layer: &usize| range.contains(layer) && self.may_be_whole[*layer];
        self.flattest.iter().copied().filter(may).collect()
    }

    /// Locations with exactly `wholes` whole layers, if that fits.
    fn spots(
        &self,
        range: &Range<usize>,
        wholes: &[usize],
        others: Others,
        room: Bytes,
    ) -> Option<Vec<Spot>> {
        let (device, task) = (self.device, self.costs.task);
        let facts = &task.devices[device];
        let caps = match others {
            Others::Split => Some(&self.both),
            Others::Stage(towards, stage) => Some(&self.further[towards][stage]),
            Others::OnCpu => None,
        };
        let cap = |layer: usize| caps.and_then(|caps| caps[layer]);
        let on_cpu = |layer| Spot { home: CPU, groups: task.cut(layer).n_groups() };
        let mut spots: Vec<Spot> = range.clone().map(on_cpu).collect();
        // A layer without neurons has nothing to split: it is whole where the others are split.
        let bare = range.clone().filter(|&layer| task.cut(layer).n_ff == 0);
        let bare = bare.filter(|&layer| others != Others::OnCpu && self.may_be_whole[layer]);
        for layer in wholes.iter().copied().chain(bare) {
            spots[layer - range.start].home = device;
        }
        let (mut used, mut is_split) = (Bytes(0), false);
        for (spot, layer) in spots.iter_mut().zip(range.clone()) {
            let sizes = &facts.layers[layer];
            used += match (spot.home == device, cap(layer)) {
                (true, _) => sizes.frame + sizes.cache + sizes.whole?,
                (false, Some(cap)) => {
                    let groups = if others == Others::Split { 0 } else { cap };
                    *spot = Spot { home: device, groups };
                    is_split = true;
                    sizes.frame + sizes.cache + facts.hand_off + sizes.shares[groups]
                }
                (false, None) => Bytes(0),
            };
        }
        let mut pairs = spots.windows(2).zip(range.start + 1..);
        if pairs.any(|(pair, layer)| task.layers[layer].joined && pair[0].home != pair[1].home) {
            return None;
        }
        used += if is_split { facts.hand_offs } else { Bytes(0) };
        let left = room.0.checked_sub(used.0)?;
        (spots.first()?.home == device).then_some(())?;
        if others == Others::Split {
            let split = range.clone().zip(&spots).filter(|(_, spot)| spot.groups == 0);
            let split: Vec<(usize, usize)> =
                split.filter_map(|(layer, _)| Some((layer, self.both[layer]?))).collect();
            // Continuing with smaller groups would sometimes make a placement with more memory
            // slower.
            let fits = |step: &Vec<u16>| {
                let bytes = split.iter().map(|&(layer, cap)| {
                    let shares = &facts.layers[layer].shares;
                    (shares[cap.min(step[layer].into())] - shares[0]).0
                });
                bytes.sum::<u64>() <= left
            };
            let last = self.steps.partition_point(fits).saturating_sub(1);
            for (layer, cap) in split {
                spots[layer - range.start].groups = cap.min(self.steps[last][layer].into());
            }
        }
        Some(spots)
    }

    fn cost(&self, range: &Range<usize>, spots: &[Spot]) -> Cost {
        let (mut at, mut cost) = (self.device, Cost::default());
        for (layer, &spot) in range.clone().zip(spots) {
            cost = cost + self.costs.carry(at, spot.home);
            at = spot.home;
            cost = cost
                + if spot.home == self.device {
                    self.here[layer][spot.groups]
                } else {
                    self.on_cpu[layer]
                };
        }
        cost
    }
}

/// From `both` to `best` in even stages; empty if they are the same.
fn stages(both: &Caps, best: &Caps) -> Vec<Caps> {
    let pairs: Vec<_> = both.iter().zip(best).map(|(from, to)| from.zip(*to)).collect();
    let most = pairs.iter().flatten().map(|(from, to)| to - from).max().unwrap_or(0);
    let n = most.min(STAGES);
    let stage = |i: usize| {
        pairs.iter().map(|pair| pair.map(|(from, to)| from + (to - from) * i / n)).collect()
    };
    (1..=n).map(stage).collect()
}

/// Groups of each layer after adding none, one, two and so on in total, sorted by the decode time
/// saved per byte on `device`. For prefill all neurons of the same format save the same time.
fn steps(task: &Task, device: DeviceIndex) -> Vec<Vec<u16>> {
    let mut order: Vec<(f64, usize, usize)> = Vec::new();
    for (layer, facts) in task.layers.iter().enumerate() {
        let sizes = &task.devices[device].layers[layer];
        let bytes = sizes.shares.last().map_or(0, |bytes| bytes.0).max(1) as f64;
        let cpu = &task.devices[CPU].speed;
        let mut last = f64::INFINITY;
        for k in 0..facts.cut.n_groups().min(sizes.shares.len().saturating_sub(1)) {
            let saved =
                facts.reads.tested / cpu.dense + facts.mean[k] * facts.reads.used / cpu.sparse;
            last = (saved / bytes).min(last);
            order.push((last, k, layer));
        }
    }
    // Ties are distributed evenly, so that both sides of every layer have work.
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut steps = vec![vec![0; task.layers.len()]];
    for (_, _, layer) in order {
        let mut step = steps[steps.len() - 1].clone();
        step[layer] += 1;
        steps.push(step);
    }
    steps
}
