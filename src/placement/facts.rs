//! What the planner is told: what things take on each device, what a token reads, how fast each device is.

use std::sync::Arc;

use hal::Bytes;

/// Most groups that the neurons of a layer are cut into. Neurons of a group are placed together: few enough to try
/// thousands of placements, many enough that less than 2 % of one layer stays unused.
const MOST_GROUPS: usize = 64;

/// What a device does, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Speed {
    /// Bytes a second of weights that are read one after the other.
    pub dense: f64,
    /// Bytes a second of single rows, here and there.
    pub sparse: f64,
    /// Seconds of a hand-off to the CPU and back; 0 for the CPU.
    pub hand_off: f64,
    /// Seconds that an op takes beside its bytes.
    pub op: f64,
    /// Seconds in which a neuron's row of one matrix gets into a slot here, laid out anew.
    pub refill: f64,
    /// Bytes of neurons, times tokens, a second in prompts; 0 where that is not known.
    pub prompt: f64,
    /// Bytes of neurons a second that are packed for this device and brought to it; 0 where none are.
    pub upload: f64,
}

/// How the neurons of all layers are cut: into units that stay together, those into groups.
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
    /// The cut of layers of `n_ff` neurons in units of `unit`.
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
    /// All equally often: the share of them that a token uses.
    Uniform(f64),
    /// The share of tokens that uses each.
    Each(&'a [f32]),
}

/// What a token reads of one layer, in bytes, wherever the layer is; and how its neurons are used.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerReads {
    /// Norms, attention, predictor, router.
    pub frame: f64,
    /// Keys and values.
    pub cache: f64,
    /// Of each neuron, whether it is used or not.
    pub tested: f64,
    /// Of each neuron that is used, besides.
    pub used: f64,
    /// Of each neuron in a prompt, in which nearly every one is used by some token; of experts the share that a token
    /// uses.
    pub prompt: f64,
    /// What it takes that the neurons come to another device for a prompt; `None` where they cannot.
    pub streams: Option<StreamReads>,
    /// Ops of the layer.
    pub n_ops: usize,
}

/// Neurons on their way to a device that computes them for a prompt, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamReads {
    /// Of each neuron that comes.
    pub brought: f64,
    /// Of each, what every token is multiplied with there.
    pub multiplied: f64,
    /// The same, of a piece, besides its neurons: what a predictor begins with.
    pub per_piece: f64,
    /// Of each token, what goes there and back where the layer itself is on the CPU; `None` where only neurons of layers at
    /// home on the device come.
    pub carried: Option<f64>,
}

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerFacts {
    /// What a token reads.
    pub reads: LayerReads,
    /// First neurons of the units, the most used unit first.
    pub(super) order: Arc<[u32]>,
    /// How many of the first `k` groups' neurons a token uses, for each `k` from 0 to all.
    pub(super) mass: Vec<f64>,
    /// The same for one neuron of each group, not growing.
    pub(super) mean: Vec<f64>,
}

impl LayerFacts {
    /// A layer whose neurons are used as `uses` says. What is not a probability there counts as 0 or 1.
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
            // Sums may round up; an order by it must still begin with a layer's first group.
            mean.push(mean.last().map_or(used / n, |last: &f64| last.min(used / n)));
        }
        LayerFacts { reads, order: units.into_iter().map(|(first, _)| first).collect(), mass, mean }
    }

    /// Neurons that a token uses.
    #[must_use]
    pub fn n_used(&self) -> f64 {
        self.mass[self.mass.len() - 1]
    }

    /// The neurons of the first `k` groups, ascending.
    pub(super) fn first(&self, k: usize, cut: &Cut) -> Vec<u32> {
        let n_units = cut.neurons(k).div_ceil(cut.unit);
        let mut firsts = self.order[..n_units.min(self.order.len())].to_vec();
        firsts.sort_unstable();
        let unit = |&first: &u32| first..(first + cut.unit as u32).min(cut.n_ff as u32);
        firsts.iter().flat_map(unit).collect()
    }
}

/// What one layer takes on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSizes {
    /// Norms, attention, predictor.
    pub frame: Bytes,
    /// Keys and values of the whole context.
    pub cache: Bytes,
    /// The first `k` groups of neurons as a share of a split, for each `k` from 0 up to the most that the device can
    /// run; empty where it cannot split the layer.
    pub shares: Arc<[Bytes]>,
    /// All neurons; `None` where the device cannot run the whole layer.
    pub whole: Option<Bytes>,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFacts {
    /// What may be used; not read of the CPU.
    pub budget: Bytes,
    /// What it needs before the first weight: batch, scratch, staging.
    pub fixed: Bytes,
    /// What the hand-offs of all split layers share.
    pub hand_offs: Bytes,
    /// The hand-off of a split layer.
    pub hand_off: Bytes,
    /// The embedding; `None` where the device cannot look tokens up.
    pub embed: Option<Bytes>,
    /// Output norm, matrix and logits; `None` where the device cannot run them.
    pub head: Option<Bytes>,
    /// What embedding and head take once where both are here.
    pub shared: Bytes,
    /// Layers in order.
    pub layers: Vec<LayerSizes>,
    /// How fast it is.
    pub speed: Speed,
    /// What streaming takes beside all that; `None` where nothing streams, or what it takes is in `fixed`.
    pub stream: Option<StreamFacts>,
    /// What cannot be here whatever the budget, and why: sentences, which nothing is planned from.
    pub refused: Vec<String>,
}

/// What it takes to bring the CPU's neurons to a device for prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamFacts {
    /// Two sets of slots, and the host memory that they are filled from.
    pub bytes: Bytes,
    /// Neurons of a piece.
    pub piece: usize,
}

/// What the user wants otherwise than the planner would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// So many whole layers on devices, and no split ones; one more than there are layers: the head too.
    pub whole_layers: Option<usize>,
    /// Keys and values, and so attention, stay on the CPU.
    pub cache_on_cpu: bool,
    /// All neurons stay on the CPU.
    pub neurons_on_cpu: bool,
}

/// Everything that a placement is planned from.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// How neurons are cut.
    pub cut: Cut,
    /// Layers in order.
    pub layers: Vec<LayerFacts>,
    /// Devices, the CPU first.
    pub devices: Vec<DeviceFacts>,
    /// Bytes that a token reads of the head.
    pub head: f64,
    /// Numbers of tokens in which prompts are done, ascending.
    pub rungs: Vec<usize>,
    /// What the user wants.
    pub wishes: Wishes,
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
        assert_eq!(layer.first(1, &cut), [2, 3, 6, 7]);
        assert_eq!(layer.first(3, &cut), (0..10).collect::<Vec<u32>>());
        assert!(layer.first(0, &cut).is_empty());
        assert!((layer.mass[1] - 2.6).abs() < 1e-6 && (layer.n_used() - 3.8).abs() < 1e-6);
        assert!(layer.mean.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn groups_are_whole_units_and_few() {
        for (n_ff, unit, group) in [(11008, 1, 172), (96, 1, 2), (96, 32, 32), (98304, 768, 1536)] {
            let cut = Cut::new(n_ff, unit);
            assert_eq!(cut.group, group);
            assert!(cut.n_groups() <= MOST_GROUPS);
            assert_eq!(cut.neurons(cut.n_groups()), n_ff);
        }
    }
}
