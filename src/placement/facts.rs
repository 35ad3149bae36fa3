//! Inputs of the planner: sizes on each device, bytes read per token, speed of each device.

use std::ops::Range;
use std::sync::Arc;

use hal::Bytes;

/// Maximum number of groups that the neurons of a layer are divided into. Neurons of a group are
/// placed together. 64 groups are few enough to try thousands of placements, and a group is less
/// than 2 % of a layer.
const MAX_GROUPS: usize = 64;

/// Speeds of a device, measured or assumed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Bytes per second for weights read sequentially.
    pub dense: f64,
    /// Bytes per second for scattered single rows.
    pub sparse: f64,
    /// Seconds of a hand-off to the CPU and back; 0 for the CPU.
    pub hand_off: f64,
    /// Seconds of overhead per op.
    pub op: f64,
    /// Seconds to repack one row of a matrix and write it to a slot of this device.
    pub refill: f64,
    /// Prefill speed, in bytes of weights times tokens per second; 0 if unknown.
    pub prompt: f64,
    /// Bytes of weights per second that the host packs and uploads to this device; 0 if neurons are
    /// not streamed.
    pub upload: f64,
}

/// How the neurons of a layer are divided: into units whose neurons stay together, and into groups
/// of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of neurons of the layer.
    pub n_ff: usize,
    /// Number of neurons of a unit: 1, a block of a quantised format, or an expert.
    pub unit: usize,
    /// Number of neurons of a group, a multiple of `unit`; the last group may have fewer.
    pub group: usize,
}

impl Cut {
    /// The cut of a layer of `n_ff` neurons in units of `unit`. A layer without neurons has no
    /// groups.
    #[must_use]
    pub fn new(n_ff: usize, unit: usize) -> Cut {
        let unit = unit.max(1);
        let group = n_ff.div_ceil(unit).div_ceil(MAX_GROUPS).max(1) * unit;
        Cut { n_ff, unit, group }
    }

    /// Number of groups.
    #[must_use]
    pub fn n_groups(&self) -> usize {
        self.n_ff.div_ceil(self.group)
    }

    /// Number of neurons of the first `k` groups.
    #[must_use]
    pub fn neurons(&self, k: usize) -> usize {
        (k * self.group).min(self.n_ff)
    }
}

/// How often neurons are used.
#[derive(Clone, Copy, Debug)]
pub enum Uses<'a> {
    /// All neurons equally often: the share of them that a token uses.
    Uniform(f64),
    /// For each neuron, the share of tokens that use it.
    Each(&'a [f32]),
}

/// Bytes of one layer that are read per token, on any device.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReads {
    /// Norms, mixer, router, shared expert and predictor.
    pub frame: f64,
    /// KV cache or recurrent state.
    pub cache: f64,
    /// Bytes per neuron that are read whether the neuron is used or not.
    pub tested: f64,
    /// Additional bytes per used neuron.
    pub used: f64,
    /// Bytes per neuron in prefill, where almost all neurons are used by at least one token. With
    /// experts, the bytes are multiplied by the share of experts that a token uses.
    pub prompt: f64,
    /// Costs of streaming the neurons to another device in prefill; `None` if they cannot be
    /// streamed.
    pub streams: Option<StreamReads>,
    /// Number of ops of the layer.
    pub n_ops: usize,
}

/// Bytes that streaming moves and multiplies, when a device computes streamed neurons in prefill.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamReads {
    /// Bytes uploaded per neuron.
    pub uploaded: f64,
    /// Bytes of weights per neuron that the device multiplies with each token.
    pub multiplied: f64,
    /// Bytes of other weights per chunk that the device multiplies with each token: the first
    /// matrix of a predictor.
    pub per_chunk: f64,
    /// Bytes per token for the upload of x and the download of y, for a layer whose home is the
    /// CPU; `None` if such a layer cannot be streamed.
    pub carried: Option<f64>,
}

/// The planner's input for one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFacts {
    /// Bytes of the layer that are read per token.
    pub reads: LayerReads,
    /// How the neurons of the layer are divided.
    pub cut: Cut,
    /// Whether the layer must have the same home as the layer before it, because of a shared KV
    /// cache.
    pub shares_home: bool,
    /// Whether a rule keeps all neurons of the layer on the CPU.
    pub(super) neurons_on_cpu: bool,
    /// Whether a rule demands that the layer is on a device other than the CPU.
    pub(super) leaves_cpu: bool,
    /// Whether a rule keeps the layer on the CPU.
    pub(super) stays_on_cpu: bool,
    /// First neuron of each unit, sorted by use: the most used unit comes first.
    pub(super) order: Arc<[u32]>,
    /// `mass[k]` is the expected number of neurons of the first `k` groups that a token uses.
    pub(super) mass: Vec<f64>,
    /// Mean share of tokens that use a neuron, for each group. It never increases from group to
    /// group.
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
            // Rounding may lift a mean above the mean before it. The minimum restores the order,
            // since sorting by these means must keep the groups of a layer in order.
            mean.push(mean.last().map_or(used / n, |last: &f64| last.min(used / n)));
        }
        let order = units.into_iter().map(|(first, _)| first).collect();
        LayerFacts {
            reads,
            cut: *cut,
            shares_home: false,
            neurons_on_cpu: false,
            leaves_cpu: false,
            stays_on_cpu: false,
            order,
            mass,
            mean,
        }
    }

    /// Expected number of neurons that a token uses.
    #[must_use]
    pub fn n_used(&self) -> f64 {
        self.mass[self.mass.len() - 1]
    }

    /// The neurons of the first `k` groups, ascending.
    pub(super) fn first_groups(&self, k: usize) -> Vec<u32> {
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
    /// Bytes of norms, mixer, router, shared expert and predictor.
    pub frame: Bytes,
    /// Bytes of keys and values of the whole context, or of the recurrent state of all sequences.
    pub cache: Bytes,
    /// `shares[k]` is the size of the first `k` groups of neurons in a split layer. The list ends
    /// with the largest `k` that the device can run, and is empty if the device cannot split the
    /// layer.
    pub shares: Arc<[Bytes]>,
    /// Bytes of all neurons; `None` if the device cannot run the whole layer.
    pub whole: Option<Bytes>,
}

/// The planner's input for one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFacts {
    /// Memory budget; ignored for the CPU.
    pub budget: Bytes,
    /// Memory needed in addition to the weights: batch, scratch, staging.
    pub fixed: Bytes,
    /// Memory that the hand-offs of all split layers share.
    pub hand_offs: Bytes,
    /// Additional memory for the hand-off of each split layer.
    pub hand_off: Bytes,
    /// Size of the embedding; `None` if the device cannot run it.
    pub embed: Option<Bytes>,
    /// Size of output norm, output matrix and logits; `None` if the device cannot run them.
    pub head: Option<Bytes>,
    /// Bytes of a tied embedding that the head uses too, if both are on this device.
    pub shared: Bytes,
    /// Layers in order.
    pub layers: Vec<LayerSizes>,
    /// Measured or assumed speeds of the device.
    pub speed: Speed,
    /// Memory for streaming; `None` if neurons are not streamed, or if `fixed` includes that
    /// memory.
    pub stream: Option<StreamFacts>,
    /// Messages about layers, embedding or head that this device cannot run whatever its budget,
    /// with the reasons. The planner does not read them.
    pub refused: Vec<String>,
}

/// Memory for streaming the CPU's neurons to a device in prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Bytes of two sets of slots and of their staging memory.
    pub bytes: Bytes,
    /// Number of neurons per chunk.
    pub chunk_neurons: usize,
}

/// What the planner aims for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PlacementPolicy {
    /// The fastest decode whose prefill is no slower than with whole layers only, by the estimate.
    #[default]
    Fastest,
    /// The hottest neurons on devices until the budget is spent, as in PowerInfer, even if that is
    /// slower.
    Fill,
    /// Whole layers on devices, the last layers first, as in llama.cpp, even if that is slower.
    Layers,
}

/// User options that override the planner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanConstraints {
    /// What the planner aims for.
    pub policy: PlacementPolicy,
    /// Number of layers that are whole on devices, with no split layers (`-ngl`). A number above
    /// the number of layers includes the head. `None` lets the planner decide. With
    /// [`PlacementPolicy::Fill`], the number of layers that may be on devices, split or whole.
    pub whole_layers: Option<usize>,
    /// Whether keys and values, and so attention, stay on the CPU.
    pub cache_on_cpu: bool,
    /// Whether all neurons stay on the CPU.
    pub neurons_on_cpu: bool,
}

/// All inputs of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Layers in order.
    pub layers: Vec<LayerFacts>,
    /// Devices, the CPU first.
    pub devices: Vec<DeviceFacts>,
    /// Bytes of the head that are read per token.
    pub head: f64,
    /// Token counts for which programs are recorded, ascending.
    pub buckets: Vec<usize>,
    /// User options.
    pub constraints: PlanConstraints,
}

impl Task {
    /// The layers that must have the same home as `layer`, including `layer`.
    pub(super) fn home_group(&self, layer: usize) -> Range<usize> {
        let shares_home =
            |layer: usize| self.layers.get(layer).is_some_and(|facts| facts.shares_home);
        let first = (0..=layer).rev().find(|&layer| !shares_home(layer)).unwrap_or(0);
        let end = (layer + 1..self.layers.len()).find(|&layer| !shares_home(layer));
        first..end.unwrap_or(self.layers.len())
    }

    /// Whether a run of layers may begin with `layer`, or end before it.
    pub(super) fn may_cut(&self, layer: usize) -> bool {
        layer == 0 || self.layers.get(layer).is_none_or(|facts| !facts.shares_home)
    }

    /// How the neurons of a layer are divided.
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
    fn the_most_used_units_come_first_and_stay_whole() {
        let cut = Cut { n_ff: 10, unit: 2, group: 4 };
        let uses = [0.1, 0.1, 0.9, 0.7, f32::NAN, -1.0, 0.5, 0.5, 2.0, 0.0];
        let layer = LayerFacts::new(READS, Uses::Each(&uses), &cut);
        assert_eq!(*layer.order, [2, 6, 8, 0, 4]);
        assert_eq!(layer.first_groups(1), [2, 3, 6, 7]);
        assert_eq!(layer.first_groups(3), (0..10).collect::<Vec<u32>>());
        assert!(layer.first_groups(0).is_empty());
        assert!((layer.mass[1] - 2.6).abs() < 1e-6 && (layer.n_used() - 3.8).abs() < 1e-6);
        assert!(layer.mean.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn layers_have_at_most_64_groups_of_whole_units() {
        let all = [(11008, 1, 172), (96, 1, 2), (96, 32, 32), (98304, 768, 1536), (0, 32, 32)];
        for (n_ff, unit, group) in all {
            let cut = Cut::new(n_ff, unit);
            assert_eq!(cut.group, group);
            assert!(cut.n_groups() <= MAX_GROUPS);
            assert_eq!(cut.neurons(cut.n_groups()), n_ff);
        }
    }
}
