//! Inputs of the planner: sizes on each device, bytes read per token, speed of each device.

use std::ops::Range;
use std::sync::Arc;

use hal::Bytes;

/// Maximum number of groups that the neurons of a layer are split into. Neurons of a group are
/// placed together: few enough groups to try thousands of placements, enough that less than 2 % of
/// one layer stays unused.
const MOST_GROUPS: usize = 64;

/// Measured speeds of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Bytes per second for weights read sequentially.
    pub dense: f64,
    /// Bytes per second for scattered single rows.
    pub sparse: f64,
    /// Seconds of a hand-off to the CPU and back; 0 for the CPU.
    pub hand_off: f64,
    /// Overhead of an op in seconds.
    pub op: f64,
    /// Seconds to write a neuron's row of one matrix to a slot of this device, repacked.
    pub refill: f64,
    /// Prefill speed: bytes of neurons times tokens, per second; 0 if unknown.
    pub prompt: f64,
    /// Bytes of neurons per second that are packed and uploaded to this device; 0 if neurons are
    /// not streamed.
    pub upload: f64,
}

/// How the neurons of a layer are divided: into units that stay together, and units into groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Neurons of a layer.
    pub n_ff: usize,
    /// Neurons that stay together: 1, a block of a format, an expert.
    pub unit: usize,
    /// Neurons of a group, whole units; the last group may have fewer.
    pub group: usize,
}

impl Cut {
    /// The cut of a layer of `n_ff` neurons in units of `unit`; no groups where there are no
    /// neurons.
    #[must_use]
    pub fn new(n_ff: usize, unit: usize) -> Cut {
        let unit = unit.max(1);
        let group = n_ff.div_ceil(unit).div_ceil(MOST_GROUPS).max(1) * unit;
        Cut { n_ff, unit, group }
    }

    /// Groups of a layer.
    #[must_use]
    pub fn n_groups(&self) -> usize {
        self.n_ff.div_ceil(self.group)
    }

    /// Neurons of the first `k` groups.
    #[must_use]
    pub fn neurons(&self, k: usize) -> usize {
        (k * self.group).min(self.n_ff)
    }
}

/// How often neurons are used.
#[derive(Clone, Copy, Debug)]
pub enum Uses<'a> {
    /// All equally often: the share that a token uses.
    Uniform(f64),
    /// The share of tokens that use each.
    Each(&'a [f32]),
}

/// Bytes read per token for one layer, on any device; and the use of its neurons.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReads {
    /// Norms, attention, predictor, router.
    pub frame: f64,
    /// Keys and values, or the recurrent state.
    pub cache: f64,
    /// Per neuron, whether it is used or not.
    pub tested: f64,
    /// Additionally per used neuron.
    pub used: f64,
    /// Per neuron in prefill, where nearly every neuron is used by some token; for experts the
    /// share that a token uses.
    pub prompt: f64,
    /// Costs of streaming the neurons to another device in prefill; `None` if they cannot be
    /// streamed.
    pub streams: Option<StreamReads>,
    /// Ops of the layer.
    pub n_ops: usize,
}

/// Costs in bytes of streaming neurons to a device that computes them in prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamReads {
    /// Uploaded per neuron.
    pub brought: f64,
    /// Bytes per neuron multiplied per token on that device.
    pub multiplied: f64,
    /// Bytes per chunk multiplied per token besides its neurons: the first matrix of a predictor.
    pub per_piece: f64,
    /// Per token, the upload of x and the download of y if the layer itself is on the CPU; `None`
    /// if only neurons of layers whose home is the device are streamed.
    pub carried: Option<f64>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFacts {
    /// Bytes read per token.
    pub reads: LayerReads,
    /// How its neurons are cut.
    pub cut: Cut,
    /// Whether its home must be that of the layer before it, because a layer's KV cache is shared
    /// across both.
    pub joined: bool,
    /// First neurons of the units, the most used unit first.
    pub(super) order: Arc<[u32]>,
    /// The expected number of used neurons per token among the first `k` groups, for each `k` from
    /// 0 to all.
    pub(super) mass: Vec<f64>,
    /// Mean use per neuron of each group, not increasing.
    pub(super) mean: Vec<f64>,
}

impl LayerFacts {
    /// A layer whose neurons are used as in `uses`, and that may have any home. Values outside
    /// 0..=1 are clamped.
    #[must_use]
    pub fn new(reads: LayerReads, uses: Uses<'_>, cut: &Cut) -> LayerFacts {
        let firsts = (0..cut.n_ff).step_by(cut.unit);
        let share = |p: f32| if p > 0.0 { f64::from(p.min(1.0)) } else { 0.0 };
        let of_unit = |first: usize| match uses {
            Uses::Uniform(p) => p.clamp(0.0, 1.0),
            Uses::Each(list) => {
                let end = (first + cut.unit).min(cut.n_ff);
                let sum: f64 = (first..end).map(|n| list.get(n).map_or(0.0, |p| share(*p))).sum();
                sum / (end - first) as f64
            }
        };
        let mut units: Vec<(u32, f64)> = firsts.map(|n| (n as u32, of_unit(n))).collect();
        units.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let neurons = |first: u32| cut.unit.min(cut.n_ff - first as usize) as f64;
        let (mut mass, mut mean) = (vec![0.0], Vec::new());
        for group in units.chunks(cut.group / cut.unit) {
            let n: f64 = group.iter().map(|(first, _)| neurons(*first)).sum();
            let used: f64 = group.iter().map(|(first, p)| p * neurons(*first)).sum();
            mass.push(mass[mass.len() - 1] + used);
            // Rounding may increase sums; sorting by this must still begin with a layer's first
            // group.
            mean.push(mean.last().map_or(used / n, |last: &f64| last.min(used / n)));
        }
        let order = units.into_iter().map(|(first, _)| first).collect();
        LayerFacts { reads, cut: *cut, joined: false, order, mass, mean }
    }

    /// Expected number of neurons that a token uses.
    #[must_use]
    pub fn n_used(&self) -> f64 {
        self.mass[self.mass.len() - 1]
    }

    /// The neurons of the first `k` groups, ascending.
    pub(super) fn first(&self, k: usize) -> Vec<u32> {
        let cut = &self.cut;
        let n_units = cut.neurons(k).div_ceil(cut.unit);
        let mut firsts = self.order[..n_units.min(self.order.len())].to_vec();
        firsts.sort_unstable();
        let unit = |&first: &u32| first..(first + cut.unit as u32).min(cut.n_ff as u32);
        firsts.iter().flat_map(unit).collect()
    }
}

/// Sizes of one layer on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSizes {
    /// Norms, attention, predictor.
    pub frame: Bytes,
    /// Keys and values of the whole context, or the recurrent state of all sequences.
    pub cache: Bytes,
    /// Size of the first `k` groups of neurons as a share of a split layer, for each `k` from 0 to
    /// the most that the device can run; empty if it cannot split the layer.
    pub shares: Arc<[Bytes]>,
    /// All neurons; `None` if the device cannot run the whole layer.
    pub whole: Option<Bytes>,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFacts {
    /// Memory budget; ignored for the CPU.
    pub budget: Bytes,
    /// Memory needed besides weights: batch, scratch, staging.
    pub fixed: Bytes,
    /// Memory that the hand-offs of all split layers share.
    pub hand_offs: Bytes,
    /// Memory of a split layer's hand-off.
    pub hand_off: Bytes,
    /// Size of the embedding; `None` if the device cannot run it.
    pub embed: Option<Bytes>,
    /// Output norm, matrix and logits; `None` if the device cannot run them.
    pub head: Option<Bytes>,
    /// Size that embedding and head share if both are on this device.
    pub shared: Bytes,
    /// Layers in order.
    pub layers: Vec<LayerSizes>,
    /// Its speeds.
    pub speed: Speed,
    /// Memory for streaming; `None` if nothing is streamed, or if it is included in `fixed`.
    pub stream: Option<StreamFacts>,
    /// Parts that cannot be placed on this device whatever the budget, with the reason: messages,
    /// not used for planning.
    pub refused: Vec<String>,
}

/// Memory for streaming the CPU's neurons to a device in prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Two sets of slots, and their staging memory.
    pub bytes: Bytes,
    /// Neurons per chunk.
    pub piece: usize,
}

/// User options that override the planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanConstraints {
    /// Number of whole layers on devices, with no split ones; one more than the number of layers
    /// includes the head.
    pub whole_layers: Option<usize>,
    /// Keys and values, and so attention, stay on the CPU.
    pub cache_on_cpu: bool,
    /// All neurons stay on the CPU.
    pub neurons_on_cpu: bool,
}

/// All inputs of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Layers in order.
    pub layers: Vec<LayerFacts>,
    /// Devices, the CPU first.
    pub devices: Vec<DeviceFacts>,
    /// Bytes of the head read per token.
    pub head: f64,
    /// Numbers of tokens of prefill steps, ascending.
    pub rungs: Vec<usize>,
    /// User options.
    pub constraints: PlanConstraints,
}

impl Task {
    /// The layers that must have the same home as `layer`, including `layer`.
    pub(super) fn group(&self, layer: usize) -> Range<usize> {
        let joined = |layer: usize| self.layers.get(layer).is_some_and(|facts| facts.joined);
        let first = (0..=layer).rev().find(|&layer| !joined(layer)).unwrap_or(0);
        let end = (layer + 1..self.layers.len()).find(|&layer| !joined(layer));
        first..end.unwrap_or(self.layers.len())
    }

    /// Whether a run of layers may begin with `layer`, or end before it.
    pub(super) fn may_cut(&self, layer: usize) -> bool {
        layer == 0 || self.layers.get(layer).is_none_or(|facts| !facts.joined)
    }

    /// How the neurons of a layer are cut.
    #[must_use]
    pub fn cut(&self, layer: usize) -> &Cut {
        &self.layers[layer].cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: LayerReads = LayerReads {
        frame: 0.0,
        cache: 0.0,
        tested: 0.0,
        used: 0.0,
        prompt: 0.0,
        streams: None,
        n_ops: 0,
    };

    #[test]
    fn the_most_used_come_first_and_units_stay_together() {
        let cut = Cut { n_ff: 10, unit: 2, group: 4 };
        let uses = [0.1, 0.1, 0.9, 0.7, f32::NAN, -1.0, 0.5, 0.5, 2.0, 0.0];
        let layer = LayerFacts::new(READS, Uses::Each(&uses), &cut);
        assert_eq!(*layer.order, [2, 6, 8, 0, 4]);
        assert_eq!(layer.first(1), [2, 3, 6, 7]);
        assert_eq!(layer.first(3), (0..10).collect::<Vec<u32>>());
        assert!(layer.first(0).is_empty());
        assert!((layer.mass[1] - 2.6).abs() < 1e-6 && (layer.n_used() - 3.8).abs() < 1e-6);
        assert!(layer.mean.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn groups_are_whole_units_and_few() {
        let all = [(11008, 1, 172), (96, 1, 2), (96, 32, 32), (98304, 768, 1536), (0, 32, 32)];
        for (n_ff, unit, group) in all {
            let cut = Cut::new(n_ff, unit);
            assert_eq!(cut.group, group);
            assert!(cut.n_groups() <= MOST_GROUPS);
            assert_eq!(cut.neurons(cut.n_groups()), n_ff);
        }
    }
}
