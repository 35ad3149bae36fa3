//! A run of layers on one device: which are whole, which are split and with how many neurons, within a budget.
//!
//! Up to a number of groups both a token and a prompt become faster with each; past it one of them only, if any. So groups
//! are filled in up to there one by one, as far as they fit, and past it all layers go on together in even stages, of which
//! those count that fit as a whole. That is why more room never takes a way away, but for one that is beaten in both.

use std::ops::Range;

use hal::Bytes;

use super::estimate::Spot;
use super::facts::{LayerSizes, Task};
use super::front::{Cost, Costs, Front};
use super::{CPU, DeviceIndex};

/// Stages past what both tokens and prompts gain from.
const STAGES: usize = 16;

/// What is the same for all runs of layers on one device.
#[derive(Debug)]
pub(super) struct Filler<'a> {
    costs: &'a Costs<'a>,
    device: DeviceIndex,
    /// Of each layer: on the CPU, and here with each number of groups, all of them last.
    on_cpu: Vec<Cost>,
    here: Vec<Vec<Cost>>,
    /// Whether a layer may be whole here.
    may_be_whole: Vec<bool>,
    /// Groups of split layers up to which both gain.
    both: Caps,
    /// Towards what is best for tokens, and for prompts.
    further: [Vec<Caps>; 2],
    /// Layers, those first in which the least used neurons are used most: they lose least by being whole.
    flattest: Vec<usize>,
    /// Groups of each layer after so many of all layers' groups, by time saved per byte.
    steps: Vec<Vec<u16>>,
}

/// Most groups of each layer where it is split; `None` where the device cannot split it.
type Caps = Vec<Option<usize>>;

/// What happens to the layers of a run that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// Split, with as many groups as both gain from and fit.
    Split,
    /// Split, with all groups of a stage towards one of the two.
    Stage(usize, usize),
    OnCpu,
}

/// A run of layers, placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Filled {
    /// From the input of the first layer, on this device, to the output of the last.
    pub(super) cost: Cost,
    /// Where the residual is after it.
    pub(super) end: DeviceIndex,
    n_whole: usize,
    others: Others,
}

impl<'a> Filler<'a> {
    pub(super) fn new(costs: &'a Costs<'a>, device: DeviceIndex) -> Filler<'a> {
        let task = costs.task;
        let (n_groups, n_layer) = (task.cut.n_groups(), task.layers.len());
        let sizes = &task.devices[device].layers;
        let here = |layer: usize| -> Vec<Cost> {
            let spot = |groups| Spot { home: device, groups };
            (0..=n_groups).map(|groups| costs.layer(layer, spot(groups))).collect()
        };
        let here: Vec<Vec<Cost>> = (0..n_layer).map(here).collect();
        let wishes = &task.wishes;
        let best = |layer: usize, seconds: fn(&Cost) -> f64| {
            let most = match (wishes.whole_layers, wishes.neurons_on_cpu) {
                (Some(_), _) => return None,
                (None, true) => sizes[layer].shares.len().min(1),
                (None, false) => sizes[layer].shares.len().min(n_groups),
            };
            // Past the point where both sides take equally long, more neurons here make it slower.
            let each = here[layer][..most].iter().map(seconds).enumerate();
            each.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(k, _)| k)
        };
        let best = |seconds| (0..n_layer).map(|layer| best(layer, seconds)).collect::<Caps>();
        let tokens = best(|cost| cost.token);
        let prompts = costs.n_prompt.map_or_else(|| tokens.clone(), |_| best(|cost| cost.prompt));
        let both: Caps = tokens.iter().zip(&prompts).map(|(a, b)| *a.min(b)).collect();
        let tail =
            |layer: usize| task.layers[layer].n_used() - task.layers[layer].mass[n_groups / 2];
        let mut flattest: Vec<usize> = (0..n_layer).collect();
        flattest.sort_by(|&a, &b| tail(b).total_cmp(&tail(a)).then(b.cmp(&a)));
        let whole = |sizes: &LayerSizes| sizes.whole.is_some() && !wishes.neurons_on_cpu;
        let on_cpu = |layer| costs.layer(layer, Spot { home: CPU, groups: n_groups });
        Filler {
            costs,
            device,
            on_cpu: (0..n_layer).map(on_cpu).collect(),
            here,
            may_be_whole: sizes.iter().map(whole).collect(),
            further: [stages(&both, &tokens), stages(&both, &prompts)],
            both,
            flattest,
            steps: steps(task, device),
        }
    }

    /// The ways to place the layers of `range` within `room`, the first of them here, that no other beats: of those that
    /// end here and of those that end on the CPU. For each number of whole layers, the others are split and filled, or on
    /// the CPU, so that no placement by layers is faster than what is found.
    pub(super) fn fill(&self, range: &Range<usize>, room: Bytes) -> Vec<Filled> {
        let wholes = self.wholes(range);
        // Layers that the user wants here are here, however slow that is.
        let fewest = if self.costs.task.wishes.whole_layers.is_some() { range.len() } else { 0 };
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
                // What does not fit in one stage does not in the next.
                let _ = (0..stages.len()).all(|stage| offer(Others::Stage(towards, stage)));
            }
            offer(Others::OnCpu);
        }
        here.into_iter().chain(elsewhere).map(|(_, filled)| filled).collect()
    }

    /// The layers of a run that was filled so.
    pub(super) fn place(&self, range: &Range<usize>, room: Bytes, filled: &Filled) -> Vec<Spot> {
        let wholes = self.wholes(range);
        let wholes = &wholes[..filled.n_whole.min(wholes.len())];
        self.spots(range, wholes, filled.others, room).unwrap_or_default()
    }

    /// Layers of `range` that may be whole, those first that lose least by it.
    fn wholes(&self, range: &Range<usize>) -> Vec<usize> {
        let may = |layer: &usize| range.contains(layer) && self.may_be_whole[*layer];
        self.flattest.iter().copied().filter(may).collect()
    }

    /// Where the layers are with exactly `wholes` whole, if that fits.
    fn spots(
        &self,
        range: &Range<usize>,
        wholes: &[usize],
        others: Others,
        room: Bytes,
    ) -> Option<Vec<Spot>> {
        let (device, task) = (self.device, self.costs.task);
        let (facts, n_groups) = (&task.devices[device], task.cut.n_groups());
        let caps = match others {
            Others::Split => Some(&self.both),
            Others::Stage(towards, stage) => Some(&self.further[towards][stage]),
            Others::OnCpu => None,
        };
        let cap = |layer: usize| caps.and_then(|caps| caps[layer]);
        let mut spots = vec![Spot { home: CPU, groups: n_groups }; range.len()];
        for &layer in wholes {
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
        used += if is_split { facts.hand_offs } else { Bytes(0) };
        let left = room.0.checked_sub(used.0)?;
        (spots.first()?.home == device).then_some(())?;
        if others == Others::Split {
            let split = range.clone().zip(&spots).filter(|(_, spot)| spot.groups == 0);
            let split: Vec<(usize, usize)> =
                split.filter_map(|(layer, _)| Some((layer, self.both[layer]?))).collect();
            // Going on with smaller groups would make more memory give a slower placement now and then.
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
                + match spot.home == self.device {
                    true => self.here[layer][spot.groups],
                    false => self.on_cpu[layer],
                };
        }
        cost
    }
}

/// From `both` to `best` in even stages; none where they are the same.
fn stages(both: &Caps, best: &Caps) -> Vec<Caps> {
    let pairs: Vec<_> = both.iter().zip(best).map(|(from, to)| from.zip(*to)).collect();
    let most = pairs.iter().flatten().map(|(from, to)| to - from).max().unwrap_or(0);
    let n = most.min(STAGES);
    let stage = |i: usize| {
        pairs.iter().map(|pair| pair.map(|(from, to)| from + (to - from) * i / n)).collect()
    };
    (1..=n).map(stage).collect()
}

/// Groups of each layer after none, one, two and so on of all layers' groups, by the time of a token that they save per byte
/// on `device`. Of a prompt's time all neurons of the same format save the same.
fn steps(task: &Task, device: DeviceIndex) -> Vec<Vec<u16>> {
    let n_groups = task.cut.n_groups();
    let mut order: Vec<(f64, usize, usize)> = Vec::new();
    for (layer, facts) in task.layers.iter().enumerate() {
        let sizes = &task.devices[device].layers[layer];
        let bytes = sizes.shares.last().map_or(0, |bytes| bytes.0).max(1) as f64;
        let cpu = &task.devices[CPU].speed;
        let mut last = f64::INFINITY;
        for k in 0..n_groups.min(sizes.shares.len().saturating_sub(1)) {
            let saved =
                facts.reads.tested / cpu.dense + facts.mean[k] * facts.reads.used / cpu.sparse;
            last = (saved / bytes).min(last);
            order.push((last, k, layer));
        }
    }
    // Ties are dealt out evenly, so that both sides of every layer have work.
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut steps = vec![vec![0; task.layers.len()]];
    for (_, _, layer) in order {
        let mut step = steps[steps.len() - 1].clone();
        step[layer] += 1;
        steps.push(step);
    }
    steps
}
