//! A run of layers on one device: which are whole, which are split and with how many neurons, within a budget.

use std::ops::Range;

use hal::Bytes;

use super::estimate::Spot;
use super::facts::Task;
use super::{CPU, DeviceIndex};

/// What is the same for all runs of layers on one device.
#[derive(Debug)]
pub(super) struct Filler<'a> {
    task: &'a Task,
    device: DeviceIndex,
    /// Most groups of a split layer that make it faster; `None` where the device cannot split it.
    caps: Vec<Option<usize>>,
    /// Seconds of each layer: on the CPU, and whole here.
    on_cpu: Vec<f64>,
    whole: Vec<Option<f64>>,
    /// Layers, those first in which the least used neurons are used most: they lose least by being whole.
    flattest: Vec<usize>,
    /// Groups of all layers (layer, number), by time saved per byte.
    order: Vec<(usize, usize)>,
}

/// What happens to the layers of a run that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Split,
    OnCpu,
}

/// A run of layers, placed.
#[derive(Clone, Debug)]
pub(super) struct Filled {
    pub(super) seconds: f64,
    pub(super) spots: Vec<Spot>,
}

impl Filled {
    /// Where the residual is after the last layer.
    pub(super) fn end(&self) -> DeviceIndex {
        self.spots.last().map_or(CPU, |spot| spot.home)
    }
}

impl<'a> Filler<'a> {
    pub(super) fn new(task: &'a Task, device: DeviceIndex) -> Filler<'a> {
        let (n_groups, n_layer) = (task.cut.n_groups(), task.layers.len());
        let sizes = &task.devices[device].layers;
        let time = |layer: usize, home, groups| task.layer_time(layer, Spot { home, groups });
        let wishes = &task.wishes;
        let cap = |layer: usize| {
            let most = match (wishes.whole_layers, wishes.neurons_on_cpu) {
                (Some(_), _) => return None,
                (None, true) => sizes[layer].shares.len().min(1),
                (None, false) => sizes[layer].shares.len().min(n_groups),
            };
            // Past the point where both sides take equally long, more neurons here make it slower.
            let best = (0..most).map(|k| (time(layer, device, k).total(), k));
            best.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, k)| k)
        };
        let whole = |layer: usize| {
            let may = sizes[layer].whole.filter(|_| !wishes.neurons_on_cpu);
            may.map(|_| time(layer, device, n_groups).total())
        };
        let mut order: Vec<(f64, usize, usize)> = Vec::new();
        for (layer, facts) in task.layers.iter().enumerate() {
            let bytes = sizes[layer].shares.last().map_or(0, |bytes| bytes.0).max(1) as f64;
            let cpu = &task.devices[CPU].speed;
            let mut last = f64::INFINITY;
            for k in 0..n_groups.min(sizes[layer].shares.len().saturating_sub(1)) {
                let saved =
                    facts.reads.tested / cpu.dense + facts.mean[k] * facts.reads.used / cpu.sparse;
                last = (saved / bytes).min(last);
                order.push((last, k, layer));
            }
        }
        // Ties are dealt out evenly, so that both sides of every layer have work.
        order.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        let tail =
            |layer: usize| task.layers[layer].n_used() - task.layers[layer].mass[n_groups / 2];
        let mut flattest: Vec<usize> = (0..n_layer).collect();
        flattest.sort_by(|&a, &b| tail(b).total_cmp(&tail(a)).then(b.cmp(&a)));
        Filler {
            task,
            device,
            caps: (0..n_layer).map(cap).collect(),
            on_cpu: (0..n_layer).map(|layer| time(layer, CPU, n_groups).total()).collect(),
            whole: (0..n_layer).map(whole).collect(),
            flattest,
            order: order.into_iter().map(|(_, k, layer)| (layer, k)).collect(),
        }
    }

    /// The fastest ways to place the layers of `range` within `room`, the first of them here: one that ends here and
    /// one that ends on the CPU, as far as there are such. For each number of whole layers, the others are split and
    /// filled, or on the CPU, so that no placement by layers is faster than what is found.
    pub(super) fn fill(&self, range: Range<usize>, room: Bytes) -> Vec<Filled> {
        let wholes: Vec<usize> = self
            .flattest
            .iter()
            .copied()
            .filter(|&layer| range.contains(&layer) && self.whole[layer].is_some())
            .collect();
        // Layers that the user wants here are here, however slow that is.
        let fewest = if self.task.wishes.whole_layers.is_some() { range.len() } else { 0 };
        let mut best: Vec<Filled> = Vec::new();
        for n_whole in (fewest..=wholes.len()).rev() {
            for others in [Others::Split, Others::OnCpu] {
                let wholes = &wholes[..n_whole];
                let Some(spots) = self.fill_with(&range, wholes, others, room) else { continue };
                let filled = Filled { seconds: self.seconds(&range, &spots), spots };
                match best.iter_mut().find(|best| best.end() == filled.end()) {
                    Some(best) if best.seconds <= filled.seconds => {}
                    Some(best) => *best = filled,
                    None => best.push(filled),
                }
            }
        }
        best
    }

    /// The same with exactly these layers whole.
    fn fill_with(
        &self,
        range: &Range<usize>,
        wholes: &[usize],
        others: Others,
        room: Bytes,
    ) -> Option<Vec<Spot>> {
        let Filler { task, device, .. } = *self;
        let (facts, n_groups) = (&task.devices[device], task.cut.n_groups());
        let mut spots = vec![Spot { home: CPU, groups: n_groups }; range.len()];
        for &layer in wholes {
            spots[layer - range.start].home = device;
        }
        let (mut used, mut is_split) = (Bytes(0), false);
        for (spot, layer) in spots.iter_mut().zip(range.clone()) {
            let sizes = &facts.layers[layer];
            used +=
                match (spot.home == device, self.caps[layer].filter(|_| others == Others::Split)) {
                    (true, _) => sizes.frame + sizes.cache + sizes.whole?,
                    (false, Some(_)) => {
                        *spot = Spot { home: device, groups: 0 };
                        is_split = true;
                        sizes.frame + sizes.cache + facts.hand_off
                    }
                    (false, None) => Bytes(0),
                };
        }
        used += if is_split { facts.hand_offs } else { Bytes(0) };
        let mut left = room.0.checked_sub(used.0)?;
        (spots.first()?.home == device).then_some(())?;
        if others == Others::OnCpu {
            return Some(spots);
        }
        for &(layer, k) in &self.order {
            let Some(spot) = layer.checked_sub(range.start).and_then(|i| spots.get_mut(i)) else {
                continue;
            };
            let cap = self.caps[layer].unwrap_or(0);
            if spot.home != device || spot.groups != k || k >= cap {
                continue;
            }
            let shares = &facts.layers[layer].shares;
            let more = (shares[k + 1] - shares[k]).0;
            // Going on with smaller groups would make more memory give a slower placement now and then.
            if more > left {
                break;
            }
            left -= more;
            spot.groups = k + 1;
        }
        Some(spots)
    }

    /// Seconds from the input of the first layer, on this device, to the output of the last, where that is.
    fn seconds(&self, range: &Range<usize>, spots: &[Spot]) -> f64 {
        let (mut at, mut seconds) = (self.device, 0.0);
        for (layer, &spot) in range.clone().zip(spots) {
            seconds += self.task.carry(at, spot.home);
            at = spot.home;
            seconds += match (spot.home == self.device, self.whole[layer]) {
                (true, Some(whole)) if spot.groups == self.task.cut.n_groups() => whole,
                (true, _) => self.task.layer_time(layer, spot).total(),
                (false, _) => self.on_cpu[layer],
            };
        }
        seconds
    }
}
