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
use super::facts::{DeviceFacts, LayerSizes};
use super::front::{Cost, Costs, ParetoFront};
use super::steps::{Caps, stages, step_bytes, steps};
use super::tally::{Tally, WholeLayers};
use super::{CPU, DeviceIndex};

#[cfg(test)]
#[path = "tests/filled.rs"]
mod tests;

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
    /// Bytes of these groups, up to `both_faster`: one row for each entry of `steps`.
    step_bytes: Vec<Vec<u64>>,
    /// The least cost of each layer with up to `both_faster` groups on the device.
    least: Vec<Cost>,
    /// Each layer if it is whole.
    pub(super) whole: Vec<PlacedLayer>,
    /// Each layer if it is not whole, for each way to place such layers.
    pub(super) others: Vec<(OtherLayers, Vec<PlacedLayer>)>,
}

/// A layer in one of its places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PlacedLayer {
    /// Bytes on the device, before groups are added.
    pub(super) bytes: u64,
    /// The cost; with groups that may be added, a cost that the layer has at least.
    pub(super) least: Cost,
    /// Whether the layer is on the device.
    pub(super) is_home: bool,
    pub(super) is_split: bool,
}

/// Placement of the layers of a run that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OtherLayers {
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
    others: OtherLayers,
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
        let least = |layer: usize| {
            let all = &on_device[layer][..=both_faster[layer].unwrap_or(0)];
            all.iter().copied().reduce(Cost::least_of_each).unwrap_or_default()
        };
        let least = (0..n_layer).map(least).collect();
        let steps = steps(task, device);
        let mut filler = RunFiller {
            costs,
            device,
            on_cpu: (0..n_layer).map(on_cpu).collect(),
            on_device,
            may_be_whole: sizes.iter().enumerate().map(whole).collect(),
            further_stages: [stages(&both_faster, &tokens), stages(&both_faster, &prompts)],
            step_bytes: steps.iter().map(|step| step_bytes(step, &both_faster, sizes)).collect(),
            steps,
            least,
            both_faster,
            most_even,
            whole: Vec::new(),
            others: Vec::new(),
        };
        filler.place_layers();
        filler
    }

    /// Sets `whole` and `others`.
    fn place_layers(&mut self) {
        let stages = self.further_stages.iter().enumerate().flat_map(|(towards, stages)| {
            (0..stages.len()).map(move |stage| OtherLayers::Stage(towards, stage))
        });
        let ways: Vec<OtherLayers> =
            [OtherLayers::Split].into_iter().chain(stages).chain([OtherLayers::OnCpu]).collect();
        let layers = 0..self.on_cpu.len();
        let whole = |layer| self.placed(layer, true, OtherLayers::OnCpu);
        let whole = layers.clone().map(whole).collect();
        let others = ways.into_iter().map(|others| {
            (others, layers.clone().map(|layer| self.placed(layer, false, others)).collect())
        });
        (self.others, self.whole) = (others.collect(), whole);
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
        let mut filling = Filling::new(self, range, &wholes, room);
        for n_whole in self.whole_counts(fewest, &wholes) {
            filling.keep(n_whole, &wholes);
            filling.offer(OtherLayers::Split);
            for (towards, stages) in self.further_stages.iter().enumerate() {
                // If a stage does not fit, no later stage fits.
                let _ = (0..stages.len())
                    .all(|stage| filling.offer(OtherLayers::Stage(towards, stage)));
            }
            if !fixed || n_split == 0 {
                filling.offer(OtherLayers::OnCpu);
            }
        }
        let Filling { on_device, ends_on_cpu, .. } = filling;
        on_device.into_iter().chain(ends_on_cpu).map(|(_, filled)| filled).collect()
    }

    /// The numbers of whole layers to try, the largest first: all of them, or in a model with very
    /// many layers some, which do not separate layers that must have one home.
    fn whole_counts(&self, fewest: usize, wholes: &[usize]) -> Vec<usize> {
        let all = (fewest..=wholes.len()).rev();
        if self.costs.step == 1 || fewest > wholes.len() {
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
        let layers = WholeLayers::new(range, &wholes[..filled.n_whole.min(wholes.len())]);
        let Some(left) = Tally::new(self, filled.others, &layers).left(room, &layers) else {
            return Vec::new();
        };
        let step = self.step_within(filled.others, left, &layers, 0);
        self.spots(filled.others, step, &layers).collect()
    }

    /// Layers of `range` that may be whole, in the order of `most_even`.
    fn whole_candidates(&self, range: &Range<usize>) -> Vec<usize> {
        let may = |layer: &usize| range.contains(layer) && self.may_be_whole[*layer];
        self.most_even.iter().copied().filter(may).collect()
    }

    pub(super) fn facts(&self) -> &DeviceFacts {
        &self.costs.task.devices[self.device]
    }

    /// Whether a layer must have the home of the layer before it.
    pub(super) fn shares_home(&self, layer: usize) -> bool {
        self.costs.task.layers[layer].shares_home
    }

    /// The time of a move of the residual between this device and the CPU.
    pub(super) fn move_time(&self) -> Cost {
        self.costs.residual_move_time(self.device, CPU)
    }

    /// The place of a layer that is whole, or placed as the `others`. Split layers without all
    /// groups of a stage have the groups of entry `step` of `steps`.
    fn spot(&self, layer: usize, is_whole: bool, others: OtherLayers, step: usize) -> LayerSplit {
        let (home, cut) = (self.device, self.costs.task.cut(layer));
        if is_whole || self.is_bare(layer, others) {
            return LayerSplit { home, groups: cut.n_groups() };
        }
        let groups = match others {
            OtherLayers::Split => {
                self.both_faster[layer].map(|cap| cap.min(self.steps[step][layer].into()))
            }
            OtherLayers::Stage(towards, stage) => self.further_stages[towards][stage][layer],
            OtherLayers::OnCpu => None,
        };
        match groups {
            Some(groups) => LayerSplit { home, groups },
            None => LayerSplit { home: CPU, groups: cut.n_groups() },
        }
    }

    /// Whether a layer is whole because it has no neurons to split, beside layers that are split.
    fn is_bare(&self, layer: usize, others: OtherLayers) -> bool {
        let has_none = self.costs.task.cut(layer).n_ff == 0;
        has_none && others != OtherLayers::OnCpu && self.may_be_whole[layer]
    }

    /// The places of all layers of a run.
    fn spots(
        &self,
        others: OtherLayers,
        step: usize,
        layers: &WholeLayers,
    ) -> impl Iterator<Item = LayerSplit> {
        let range = layers.range().clone();
        range.map(move |layer| self.spot(layer, layers.contains(layer), others, step))
    }

    /// A layer that is whole, or placed as the `others`.
    fn placed(&self, layer: usize, is_whole: bool, others: OtherLayers) -> PlacedLayer {
        let spot = self.spot(layer, is_whole, others, 0);
        if spot.home == CPU {
            return PlacedLayer { least: self.on_cpu[layer], ..PlacedLayer::default() };
        }
        let (facts, sizes) = (self.facts(), &self.facts().layers[layer]);
        let is_split = !is_whole && !self.is_bare(layer, others);
        let neurons = if is_split {
            facts.hand_off + sizes.shares[spot.groups]
        } else {
            sizes.whole.unwrap_or_default()
        };
        let bytes = (sizes.frame + sizes.cache + neurons).0;
        let least = if is_split && others == OtherLayers::Split {
            self.least[layer]
        } else {
            self.on_device[layer][spot.groups]
        };
        PlacedLayer { bytes, least, is_home: true, is_split }
    }

    /// The last of `steps` whose groups fit into `left` bytes, found from the entry `near` on; the
    /// first if the other layers are not [`OtherLayers::Split`]. It stops at the first group that
    /// does not fit. If smaller groups after it were added, a larger budget could give a slower
    /// placement.
    fn step_within(
        &self,
        others: OtherLayers,
        left: u64,
        layers: &WholeLayers,
        near: usize,
    ) -> usize {
        if others != OtherLayers::Split {
            return 0;
        }
        let fits = |step: usize| layers.sum_of_others(&self.step_bytes[step]) <= left;
        // `first` fits and `end` does not. No groups always fit.
        let (mut first, mut end, mut stride) = (0, self.steps.len(), 1);
        if fits(near) {
            first = near;
            while first + stride < end {
                if fits(first + stride) {
                    (first, stride) = (first + stride, 2 * stride);
                } else {
                    end = first + stride;
                }
            }
        } else {
            end = near;
            while first + stride < end {
                if fits(end - stride) {
                    first = end - stride;
                } else {
                    (end, stride) = (end - stride, 2 * stride);
                }
            }
        }
        while first + 1 < end {
            let middle = first.midpoint(end);
            if fits(middle) { first = middle } else { end = middle }
        }
        first
    }

    /// The cost of the candidate of a tally, with the groups of entry `step` of `steps`.
    fn cost(&self, tally: &Tally<'_>, step: usize, layers: &WholeLayers) -> Cost {
        let (mut at_home, mut cost) = (true, Cost::default());
        let (moves, steps) = (self.move_time(), &self.steps[step]);
        for layer in layers.range().clone() {
            let placed = tally.placed(layer, layers);
            if placed.is_home != at_home {
                cost = cost + moves;
            }
            at_home = placed.is_home;
            let grown = self.both_faster[layer]
                .filter(|_| placed.is_split && tally.others == OtherLayers::Split);
            cost = cost
                + grown.map_or(placed.least, |cap| {
                    self.on_device[layer][cap.min(steps[layer].into())]
                });
        }
        cost
    }
}

/// The state of [`RunFiller::fill`].
struct Filling<'a> {
    filler: &'a RunFiller<'a>,
    room: Bytes,
    layers: WholeLayers,
    n_whole: usize,
    /// The ways to place the other layers that were tried.
    tallies: Vec<Tally<'a>>,
    /// The entry of `steps` that was found last.
    step: usize,
    on_device: ParetoFront<FilledRun>,
    ends_on_cpu: ParetoFront<FilledRun>,
}

impl<'a> Filling<'a> {
    fn new(
        filler: &'a RunFiller<'a>,
        range: &Range<usize>,
        wholes: &[usize],
        room: Bytes,
    ) -> Filling<'a> {
        let (on_device, ends_on_cpu) = Default::default();
        let (layers, n_whole) = (WholeLayers::new(range, wholes), wholes.len());
        let (tallies, step) = (Vec::new(), filler.steps.len() - 1);
        Filling { filler, room, layers, n_whole, tallies, step, on_device, ends_on_cpu }
    }

    /// Keeps the first `n_whole` layers of `wholes` whole.
    fn keep(&mut self, n_whole: usize, wholes: &[usize]) {
        for &layer in &wholes[n_whole..self.n_whole] {
            let tallies = self.tallies.iter_mut();
            tallies.for_each(|tally| tally.release(layer, &self.layers));
            self.layers.set(layer, false);
        }
        self.n_whole = n_whole;
    }

    /// Adds a candidate to the front that it belongs to. Returns whether it fits.
    fn offer(&mut self, others: OtherLayers) -> bool {
        let found = self.tallies.iter().position(|tally| tally.others == others);
        let found = found.unwrap_or_else(|| {
            self.tallies.push(Tally::new(self.filler, others, &self.layers));
            self.tallies.len() - 1
        });
        let (tally, layers) = (&self.tallies[found], &self.layers);
        let Some(left) = tally.left(self.room, layers) else { return false };
        let on_device = tally.ends_on_device(layers);
        let front = if on_device { &mut self.on_device } else { &mut self.ends_on_cpu };
        if front.dominates(tally.least()) {
            return true;
        }
        let step = self.filler.step_within(others, left, layers, self.step);
        if others == OtherLayers::Split {
            self.step = step;
        }
        let cost = self.filler.cost(tally, step, layers);
        let (end, n_whole) = (if on_device { self.filler.device } else { CPU }, self.n_whole);
        front.insert_unless_dominated(cost, || FilledRun { cost, end, n_whole, others });
        true
    }
}
