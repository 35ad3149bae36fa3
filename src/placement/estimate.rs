//! Estimates the decode time of a token: for a whole placement, for one layer, and for the head.
//!
//! A layer takes `(frame + cache) / dense + max(home neurons, CPU neurons) + hand-off` seconds; its
//! neurons take `tested / dense + used / sparse`. A whole layer has no hand-off, and only its home
//! computes neurons. The time of the head, of the ops, and of moving the residual between devices
//! is added. All bandwidths and times are measured or assumed.

use super::facts::{LayerFacts, Task};
use super::{CPU, DeviceIndex};

/// Number of ops of the head: gather, norm, matrix product.
const HEAD_OPS: usize = 3;

/// Where one layer is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerSplit {
    pub(super) home: DeviceIndex,
    /// Number of neuron groups on the home device; the other groups are on the CPU.
    pub(super) groups: usize,
}

/// A candidate placement: the device of the embedding, of the head, and of each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) embed: DeviceIndex,
    pub(super) head: DeviceIndex,
    pub(super) layers: Vec<LayerSplit>,
}

/// Estimated seconds of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTime {
    /// Everything except the neurons, including the overhead of ops.
    pub frame: f64,
    /// The neurons on the home device.
    pub home: f64,
    /// The neurons on the CPU, computed while the home device computes its own.
    pub cpu: f64,
    /// Hand-off to the CPU and back; 0 in a whole layer.
    pub hand_off: f64,
}

impl LayerTime {
    /// Seconds from the layer's input to its output.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.frame + self.home.max(self.cpu) + self.hand_off
    }
}

impl Task {
    /// The placement with everything on the CPU.
    pub(super) fn on_cpu(&self) -> Choice {
        let spot = |facts: &LayerFacts| LayerSplit { home: CPU, groups: facts.cut.n_groups() };
        Choice { embed: CPU, head: CPU, layers: self.layers.iter().map(spot).collect() }
    }

    /// Seconds to compute `n` neurons of a layer on `device`, if a token uses `used` of them.
    fn neuron_time(&self, device: DeviceIndex, layer: usize, n: usize, used: f64) -> f64 {
        let (speed, reads) = (&self.devices[device].speed, &self.layers[layer].reads);
        n as f64 * reads.tested / speed.dense + used * reads.used / speed.sparse
    }

    /// Seconds of one layer placed as in `spot`.
    pub(super) fn layer_time(&self, layer: usize, spot: LayerSplit) -> LayerTime {
        let (speed, facts) = (&self.devices[spot.home].speed, &self.layers[layer]);
        let cut = &facts.cut;
        let k = spot.groups.min(cut.n_groups());
        let (n_home, used) = (cut.neurons(k), facts.mass[k]);
        let split = n_home < cut.n_ff;
        let reads = &facts.reads;
        LayerTime {
            frame: (reads.frame + reads.cache) / speed.dense + reads.n_ops as f64 * speed.op,
            home: self.neuron_time(spot.home, layer, n_home, used),
            cpu: if split {
                self.neuron_time(CPU, layer, cut.n_ff - n_home, facts.n_used() - used)
            } else {
                0.0
            },
            hand_off: if split { speed.hand_off } else { 0.0 },
        }
    }

    pub(super) fn head_time(&self, device: DeviceIndex) -> f64 {
        let speed = &self.devices[device].speed;
        self.head / speed.dense + HEAD_OPS as f64 * speed.op
    }

    /// Seconds to move the residual from one device to another.
    pub(super) fn residual_move_time(&self, from: DeviceIndex, to: DeviceIndex) -> f64 {
        if from == to {
            0.0
        } else {
            self.devices[from].speed.hand_off + self.devices[to].speed.hand_off
        }
    }

    /// Seconds to move the residual between devices, summed over a placement.
    pub(super) fn residual_moves(&self, choice: &Choice) -> f64 {
        let stops = choice.layers.iter().map(|spot| spot.home).chain([choice.head]);
        let mut at = choice.embed;
        stops.map(|to| self.residual_move_time(std::mem::replace(&mut at, to), to)).sum()
    }

    /// Decode seconds of one token.
    pub(super) fn seconds(&self, choice: &Choice) -> f64 {
        let layers = choice.layers.iter().enumerate();
        let layers: f64 = layers.map(|(i, spot)| self.layer_time(i, *spot).total()).sum();
        layers + self.head_time(choice.head) + self.residual_moves(choice)
    }
}
