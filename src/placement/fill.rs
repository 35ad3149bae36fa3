//! Places a run of layers on one device within a budget: decides which layers are whole, which are
//! split, and how many neurons of a split layer are on the device.
//!
//! Up to some number of groups, each additional group of a layer on the device makes both decode
//! and prefill faster. Beyond that number, at most one of the two becomes faster. Up to the number,
//! groups are added one by one while they fit. Beyond it, all layers gain groups together, in even
//! stages, and a stage is a candidate only if it fits completely. So more memory never removes a
//! candidate, unless another candidate is better in both times.

use std::ops::Range;

use hal::Bytes;

use super::estimate::LayerSplit;
use super::facts::{LayerSizes, Task};
use super::front::{Cost, Costs, EXHAUSTIVE, ParetoFront};
use super::{CPU, DeviceIndex};

/// Maximum number of entries of [`RunFiller::steps`] if the model has more layers than
/// [`EXHAUSTIVE`].
const MAX_STEPS: usize = 1024;

/// Maximum number of stages beyond the groups that make both decode and prefill faster.
const STAGES: usize = 16;

/// Data shared by all runs of layers on one device.
#[derive(Debug)]
pub(super) struct RunFiller<'a> {
    costs: &'a Costs<'a>,
    device: DeviceIndex,
    /// Cost of each layer on the CPU.
    on_cpu: Vec<Cost>,
    /// Cost of each layer on this device, by its number of groups on the device.
    on_device: Vec<Vec<Cost>>,
    /// Whether a layer may be whole on this device.
    may_be_whole: Vec<bool>,
    /// For each layer, the number of groups up to which both decode and prefill become faster.
    both_faster: Caps,
    /// Stages from `both_faster` to the optimum for decode (index 0) and for prefill (index 1).
    further_stages: [Vec<Caps>; 2],
    /// Layers sorted by the use of their less used half of neurons, highest first: a layer with
    /// evenly used neurons loses least by being whole. Layers that must have one home are adjacent,
    /// and layers that a rule demands on a device come first.
    most_even: Vec<usize>,
    /// `steps[i]` has the number of groups of each layer after `i` additions, in the order
    /// of decode time saved per byte.
    steps: Vec<Vec<u16>>,
}

/// Number of groups of each split layer; `None` if the device cannot split the layer.
type Caps = Vec<Option<usize>>;

/// Placement of the layers of a run that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplitLayers {
    /// Split, with the groups that make both decode and prefill faster, as far as they fit.
    Split,
    /// Split, with all groups of a stage: the first field is 0 for stages towards the optimum of
    /// decode and 1 for prefill, the second is the index of the stage.
    Stage(usize, usize),
    OnCpu,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct FilledRun {
    /// Cost from the input of the first layer, on this device, to the output of the last layer.
    pub(super) cost: Cost,
    /// Device of the residual after the run.
    pub(super) end: DeviceIndex,
    n_whole: usize,
    others: SplitLayers,
}

impl<'a> RunFiller<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, device: DeviceIndex) -> RunFiller<'a> {
        let task = costs.task;
        let n_layer = task.layers.len();
        let n_groups = |layer: usize| task.cut(layer).n_groups();
        let sizes = &task.devices[device].layers;
        let on_device = |layer: usize| -> Vec<Cost> {
            let spot = |groups| LayerSplit { home: device, groups };
            (0..=n_groups(layer)).map(|groups| costs.layer(layer, spot(groups))).collect()
        };
        let on_device: Vec<Vec<Cost>> = (0..n_layer).map(on_device).collect();
        let constraints = &task.constraints;
        let best = |layer: usize, seconds: fn(&Cost) -> f64| {
            let most = match (constraints.whole_layers, constraints.neurons_on_cpu) {
                // Of the requested layers, only those whose neurons stay on the CPU are split.
                (Some(_), _) if !task.layers[layer].neurons_on_cpu => return None,
                (Some(_), _) => sizes[layer].shares.len().min(1),
                (None, true) => sizes[layer].shares.len().min(1).min(n_groups(layer)),
                (None, false) => sizes[layer].shares.len().min(n_groups(layer)),
            };
            // If this device takes longer than the CPU, more neurons on it make the layer slower.
            let each = on_device[layer][..most].iter().map(seconds).enumerate();
            each.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(k, _)| k)
        };
        let best = |seconds| (0..n_layer).map(|layer| best(layer, seconds)).collect::<Caps>();
        let tokens = best(|cost| cost.token);
        let prompts = costs.n_prompt.map_or_else(|| tokens.clone(), |_| best(|cost| cost.prompt));
        let both_faster: Caps = tokens.iter().zip(&prompts).map(|(a, b)| *a.min(b)).collect();
        let tail = |layer: usize| {
            let facts = &task.layers[layer];
            facts.n_used() - facts.mass[n_groups(layer) / 2]
        };
        let groups: Vec<Range<usize>> = (0..n_layer).map(|layer| task.home_group(layer)).collect();
        let tails = groups.iter().map(|group| {
            let sum: f64 = group.clone().map(tail).sum();
            sum / group.len() as f64
        });
        let tails: Vec<f64> = tails.collect();
        let first = |layer: usize| groups[layer].start;
        let mut most_even: Vec<usize> = (0..n_layer).collect();
        let demanded = |layer: usize| groups[layer].clone().any(|l| task.layers[l].leaves_cpu);
        most_even.sort_by(|&a, &b| {
            let by_use = tails[b].total_cmp(&tails[a]);
            demanded(b).cmp(&demanded(a)).then(by_use).then(first(b).cmp(&first(a))).then(b.cmp(&a))
        });
        let whole = |(layer, sizes): (usize, &LayerSizes)| {
            sizes.whole.is_some() && (!constraints.neurons_on_cpu || n_groups(layer) == 0)
        };
        let on_cpu = |layer| costs.layer(layer, LayerSplit { home: CPU, groups: n_groups(layer) });
        RunFiller {
            costs,
            device,
            on_cpu: (0..n_layer).map(on_cpu).collect(),
            on_device,
            may_be_whole: sizes.iter().enumerate().map(whole).collect(),
            further_stages: [stages(&both_faster, &tokens), stages(&both_faster, &prompts)],
            both_faster,
            most_even,
            steps: steps(task, device),
        }
    }

    /// The Pareto fronts of placements of the layers of `range` within `room` bytes, with the first
    /// layer on this device: first the placements that end on this device, then those that end on
    /// the CPU. Each of [`RunFiller::whole_counts`] is tried; the other layers are split or on the CPU. So
    /// no placement with whole layers only is faster than the result.
    pub(super) fn fill(&self, range: &Range<usize>, room: Bytes) -> Vec<FilledRun> {
        let wholes = self.whole_candidates(range);
        // Layers that the user requested on this device stay on it, even if it is slow.
        let task = self.costs.task;
        let is_split = |layer: &usize| self.both_faster[*layer].is_some();
        let n_split = range.clone().filter(is_split).count();
        let n_on_cpu = range.clone().filter(|&layer| task.layers[layer].stays_on_cpu).count();
        let fixed = task.constraints.whole_layers.is_some();
        let fewest = if fixed { range.len() - n_split - n_on_cpu } else { 0 };
        let (mut on_device, mut ends_on_cpu) = (ParetoFront::default(), ParetoFront::default());
        for n_whole in self.whole_counts(fewest, &wholes) {
            let mut offer = |others: SplitLayers| {
                let wholes = &wholes[..n_whole];
                let Some(spots) = self.layer_splits(range, wholes, others, room) else {
                    return false;
                };
                let end = spots.last().map_or(CPU, |spot| spot.home);
                let cost = self.cost(range, &spots);
                let front = if end == self.device { &mut on_device } else { &mut ends_on_cpu };
                front.insert_unless_dominated(cost, || FilledRun { cost, end, n_whole, others });
                true
            };
            offer(SplitLayers::Split);
            for (towards, stages) in self.further_stages.iter().enumerate() {
                // If a stage does not fit, no later stage fits.
                let _ = (0..stages.len()).all(|stage| offer(SplitLayers::Stage(towards, stage)));
            }
            if !fixed || n_split == 0 {
                offer(SplitLayers::OnCpu);
            }
        }
        on_device.into_iter().chain(ends_on_cpu).map(|(_, filled)| filled).collect()
    }

    /// The numbers of whole layers to try, the largest first: all of them, or in a model with very
    /// many layers some, which do not separate layers that must have one home.
    fn whole_counts(&self, fewest: usize, wholes: &[usize]) -> Vec<usize> {
        let all = (fewest..=wholes.len()).rev();
        if self.costs.step == 1 {
            return all.collect();
        }
        let may_end = |n: &usize| {
            let next = wholes.get(*n).zip(wholes[..*n].last());
            next.is_none_or(|(next, last)| !self.costs.task.home_group(*last).contains(next))
        };
        let mut counts: Vec<usize> = all.clone().step_by(self.costs.step).collect();
        counts.iter_mut().for_each(|n| *n = (fewest..=*n).rev().find(may_end).unwrap_or(fewest));
        counts.push(fewest);
        counts.dedup();
        counts
    }

    /// The split of each layer, for a result of [`RunFiller::fill`].
    pub(super) fn place(
        &self,
        range: &Range<usize>,
        room: Bytes,
        filled: &FilledRun,
    ) -> Vec<LayerSplit> {
        let wholes = self.whole_candidates(range);
        let wholes = &wholes[..filled.n_whole.min(wholes.len())];
        self.layer_splits(range, wholes, filled.others, room).unwrap_or_default()
    }

    /// Layers of `range` that may be whole, in the order of `most_even`.
    fn whole_candidates(&self, range: &Range<usize>) -> Vec<usize> {
        let may = |layer: &usize| range.contains(layer) && self.may_be_whole[*layer];
        self.most_even.iter().copied().filter(may).collect()
    }

    /// The split of each layer with exactly `wholes` as whole layers; `None` if that does not fit.
    fn layer_splits(
        &self,
        range: &Range<usize>,
        wholes: &[usize],
        others: SplitLayers,
        room: Bytes,
    ) -> Option<Vec<LayerSplit>> {
        let (device, task) = (self.device, self.costs.task);
        let facts = &task.devices[device];
        let caps = match others {
            SplitLayers::Split => Some(&self.both_faster),
            SplitLayers::Stage(towards, stage) => Some(&self.further_stages[towards][stage]),
            SplitLayers::OnCpu => None,
        };
        let cap = |layer: usize| caps.and_then(|caps| caps[layer]);
        let on_cpu = |layer| LayerSplit { home: CPU, groups: task.cut(layer).n_groups() };
        let mut spots: Vec<LayerSplit> = range.clone().map(on_cpu).collect();
        // A layer without neurons cannot be split. If the other layers are split, it is whole.
        let bare = range.clone().filter(|&layer| task.cut(layer).n_ff == 0);
        let bare = bare.filter(|&layer| others != SplitLayers::OnCpu && self.may_be_whole[layer]);
        for layer in wholes.iter().copied().chain(bare) {
            spots[layer - range.start].home = device;
        }
        let (mut used, mut is_split) = (Bytes(0), false);
        for (spot, layer) in spots.iter_mut().zip(range.clone()) {
            let sizes = &facts.layers[layer];
            used += match (spot.home == device, cap(layer)) {
                (true, _) => sizes.frame + sizes.cache + sizes.whole?,
                (false, Some(cap)) => {
                    let groups = if others == SplitLayers::Split { 0 } else { cap };
                    *spot = LayerSplit { home: device, groups };
                    is_split = true;
                    sizes.frame + sizes.cache + facts.hand_off + sizes.shares[groups]
                }
                (false, None) => Bytes(0),
            };
        }
        let mut pairs = spots.windows(2).zip(range.start + 1..);
        if pairs.any(|(pair, layer)| task.layers[layer].shares_home && pair[0].home != pair[1].home)
        {
            return None;
        }
        used += if is_split { facts.hand_offs } else { Bytes(0) };
        let left = room.0.checked_sub(used.0)?;
        (spots.first()?.home == device).then_some(())?;
        if others == SplitLayers::Split {
            let split = range.clone().zip(&spots).filter(|(_, spot)| spot.groups == 0);
            let split: Vec<(usize, usize)> =
                split.filter_map(|(layer, _)| Some((layer, self.both_faster[layer]?))).collect();
            // Stops at the first group that does not fit. If smaller groups after it were added, a
            // larger budget could give a slower placement.
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

    fn cost(&self, range: &Range<usize>, spots: &[LayerSplit]) -> Cost {
        let (mut at, mut cost) = (self.device, Cost::default());
        for (layer, &spot) in range.clone().zip(spots) {
            cost = cost + self.costs.residual_move_time(at, spot.home);
            at = spot.home;
            cost = cost
                + if spot.home == self.device {
                    self.on_device[layer][spot.groups]
                } else {
                    self.on_cpu[layer]
                };
        }
        cost
    }
}

/// At most [`STAGES`] even steps from `both` (excluded) to `best` (included), each with the number
/// of groups of every layer; empty if the two are equal.
fn stages(both: &Caps, best: &Caps) -> Vec<Caps> {
    let pairs: Vec<_> = both.iter().zip(best).map(|(from, to)| from.zip(*to)).collect();
    let most = pairs.iter().flatten().map(|(from, to)| to - from).max().unwrap_or(0);
    let n = most.min(STAGES);
    let stage = |i: usize| {
        pairs.iter().map(|pair| pair.map(|(from, to)| from + (to - from) * i / n)).collect()
    };
    (1..=n).map(stage).collect()
}

/// Entry `i` has the number of groups of each layer after `i` additions, in the order of
/// decode time saved per byte on `device`. Prefill does not influence the order: all neurons of one
/// format save the same prefill time.
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
    // Ties are spread evenly over the layers, so that the device and the CPU both have work in each
    // layer.
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut steps = vec![vec![0; task.layers.len()]];
    // With very many layers, several groups at a time: the list grows with the square.
    let at_once = match task.layers.len() {
        ..=EXHAUSTIVE => 1,
        _ => order.len().div_ceil(MAX_STEPS).max(1),
    };
    for groups in order.chunks(at_once) {
        let mut step = steps[steps.len() - 1].clone();
        groups.iter().for_each(|(_, _, layer)| step[*layer] += 1);
        steps.push(step);
    }
    steps
}
