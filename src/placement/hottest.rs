//! The placement [`PlacementPolicy::Fill`]: the hottest neurons on devices until the budget is
//! spent, as PowerInfer places them, whatever the estimated speed.
//!
//! Devices take consecutive layers, in the order of the list and in proportion to their budgets
//! without scratch. On each device, additions follow a fixed order: attention and KV cache of the
//! layers, the last layer first; then neurons of all these layers, the most used first; then the
//! head; then the embedding. The longest prefix of that order that fits is placed, so on a single
//! device a larger budget only adds.
//!
//! [`PlacementPolicy::Fill`]: super::PlacementPolicy::Fill

use std::ops::Range;

use hal::Bytes;

use super::estimate::{Choice, LayerSplit};
use super::facts::{DeviceFacts, Task};
use super::forecast::Forecast;
use super::search::devices;
use super::{CPU, DeviceIndex};

/// Plans the placement with the hottest neurons on devices. No neurons are streamed in prefill,
/// because resident neurons use all of the memory.
pub(super) fn plan_hottest(task: &Task) -> Forecast {
    let mut choice = task.on_cpu();
    let ranges = layer_ranges(task);
    let last = ranges.iter().rposition(|range| !range.is_empty());
    let first = ranges.iter().position(|range| !range.is_empty());
    for (index, range) in ranges.iter().enumerate() {
        let ends = Ends { embed: first == Some(index), head: last == Some(index) };
        Filler { task, device: CPU + 1 + index, range, ends }.fill(&mut choice);
    }
    Forecast::new(task, &choice, vec![None; task.devices.len()])
}

/// The layers of each device other than the CPU. Only devices with room for more than their scratch
/// memory take layers.
fn layer_ranges(task: &Task) -> Vec<Range<usize>> {
    let n_layer = task.layers.len();
    let rooms = devices(task).map(|d| &task.devices[d]);
    let rooms: Vec<f64> = rooms.map(|facts| (facts.budget - facts.fixed).0 as f64).collect();
    let total: f64 = rooms.iter().sum();
    let (mut begin, mut before) = (0, 0.0);
    let range = |room: &f64| {
        before += room;
        let wanted =
            if total > 0.0 { (n_layer as f64 * before / total).round() as usize } else { 0 };
        let end = (begin..=wanted.min(n_layer)).rev().find(|&end| task.may_cut(end));
        let range = begin..end.unwrap_or(begin);
        begin = range.end;
        range
    };
    rooms.iter().map(range).collect()
}

/// Whether a device may hold the embedding and the head.
#[derive(Clone, Copy, Debug)]
struct Ends {
    embed: bool,
    head: bool,
}

/// Fills one device.
#[derive(Debug)]
struct Filler<'a> {
    task: &'a Task,
    device: DeviceIndex,
    /// The layers that the device may hold.
    range: &'a Range<usize>,
    ends: Ends,
}

/// One addition to the device.
#[derive(Clone, Debug)]
enum Addition {
    /// Attention and KV cache of layers that must have the same home; all neurons of a layer that
    /// cannot be split.
    Frames(Range<usize>),
    /// The next group of neurons of a layer.
    Group(usize),
    Head,
    Embed,
}

/// The contents of a device.
#[derive(Clone, Debug, Default)]
struct Contents {
    /// By layer of the range, the number of groups of neurons that were added, of which the device
    /// holds [`Filler::groups_of`]; `None` for a layer on the CPU.
    added: Vec<Option<usize>>,
    head: bool,
    embed: bool,
}

impl Filler<'_> {
    fn facts(&self) -> &DeviceFacts {
        &self.task.devices[self.device]
    }

    /// Writes the longest prefix of additions that fits to `choice`.
    fn fill(&self, choice: &mut Choice) {
        let empty = Contents { added: vec![None; self.range.len()], ..Contents::default() };
        let (mut contents, mut best) = (empty.clone(), empty);
        for addition in self.additions() {
            self.add(&mut contents, &addition);
            if self.bytes(&contents) <= self.facts().budget {
                best.clone_from(&contents);
            }
        }
        for (layer, groups) in self.placed(&best) {
            choice.layers[layer] = LayerSplit { home: self.device, groups };
        }
        if best.head {
            choice.head = self.device;
        }
        if best.embed {
            choice.embed = self.device;
        }
    }

    fn additions(&self) -> Vec<Addition> {
        let n_layer = self.task.layers.len();
        let n_wanted = self.task.constraints.whole_layers.unwrap_or(usize::MAX);
        let from = n_layer.saturating_sub(n_wanted).max(self.range.start);
        let mut additions = Vec::new();
        let firsts = (from..self.range.end).rev().filter(|&layer| self.task.may_cut(layer));
        let groups = firsts.map(|first| self.task.home_group(first));
        let homed: Vec<Range<usize>> = groups
            .filter(|group| group.clone().all(|layer| self.groups_of(layer, 0).is_some()))
            .collect();
        additions.extend(homed.iter().cloned().map(Addition::Frames));
        let mut hot: Vec<(f64, usize, usize)> = Vec::new();
        for layer in homed.into_iter().flatten() {
            let mean = self.task.layers[layer].mean.iter().enumerate();
            hot.extend(mean.map(|(k, mean)| (*mean, k, layer)));
        }
        // Ties are spread evenly over the layers.
        hot.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
        additions.extend(hot.into_iter().map(|(_, _, layer)| Addition::Group(layer)));
        let (embed, head) = (self.ends.embed, self.ends.head && n_wanted > n_layer);
        additions.extend(self.facts().head.filter(|_| head).map(|_| Addition::Head));
        additions.extend(self.facts().embed.filter(|_| embed).map(|_| Addition::Embed));
        additions
    }

    /// The layers on the device, each with its number of groups.
    fn placed(&self, contents: &Contents) -> Vec<(usize, usize)> {
        let layers = self.range.clone().zip(&contents.added);
        layers
            .filter_map(|(layer, added)| Some((layer, self.groups_of(layer, (*added)?)?)))
            .collect()
    }

    /// The largest number of groups up to `wanted` with which the device can run a layer; the
    /// smallest possible number if that is more. `None` if the layer must stay on the CPU.
    fn groups_of(&self, layer: usize, wanted: usize) -> Option<usize> {
        let (sizes, constraints) = (&self.facts().layers[layer], &self.task.constraints);
        let n_groups = self.task.cut(layer).n_groups();
        let may_be_whole = sizes.whole.is_some() && (!constraints.neurons_on_cpu || n_groups == 0);
        let n_shares = sizes.shares.len();
        let most = if constraints.neurons_on_cpu { n_shares.min(1) } else { n_shares };
        let split = most.min(n_groups).checked_sub(1).map(|most| wanted.min(most));
        match (constraints.cache_on_cpu, may_be_whole, split) {
            (true, ..) => None,
            (false, true, None) => Some(n_groups),
            (false, true, Some(_)) if wanted >= n_groups => Some(n_groups),
            (false, _, split) => split,
        }
    }

    /// Adds to the contents, whether or not the result fits.
    fn add(&self, contents: &mut Contents, addition: &Addition) {
        match addition {
            Addition::Frames(layers) => {
                for layer in layers.clone() {
                    contents.added[layer - self.range.start] = Some(0);
                }
            }
            Addition::Group(layer) => {
                let added = &mut contents.added[layer - self.range.start];
                *added = added.map(|added| added + 1);
            }
            Addition::Head => contents.head = true,
            Addition::Embed => contents.embed = true,
        }
    }

    /// Bytes on the device.
    fn bytes(&self, contents: &Contents) -> Bytes {
        let facts = self.facts();
        let (mut sum, mut is_split) = (facts.fixed, false);
        for (layer, groups) in self.placed(contents) {
            let sizes = &facts.layers[layer];
            sum += sizes.frame + sizes.cache;
            if groups == self.task.cut(layer).n_groups() {
                sum += sizes.whole.unwrap_or_default();
            } else {
                sum += facts.hand_off + sizes.shares[groups];
                is_split = true;
            }
        }
        sum += if is_split { facts.hand_offs } else { Bytes(0) };
        sum += facts.head.filter(|_| contents.head).unwrap_or_default();
        sum += facts.embed.filter(|_| contents.embed).unwrap_or_default();
        if contents.head && contents.embed { sum - facts.shared } else { sum }
    }
}
