//! The estimated time of a generated token, for a placement or a part of it.
//!
//! A layer takes `(frame + cache) / dense + max(home neurons, CPU neurons) + hand-off`,
//! where neurons take `tested / dense + used / sparse`; a whole layer has no hand-off and only one
//! side. The head, the ops, and the transfers of the residual between devices are added.
//! Bandwidths and times are measured.

use super::facts::{LayerFacts, Task};
use super::{CPU, DeviceIndex};

/// Ops of the head: gather, norm, product.
const HEAD_OPS: usize = 3;

/// Location of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) home: DeviceIndex,
    /// Groups of neurons on the home device; the others are on the CPU.
    pub(super) groups: usize,
}

/// Location of everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) embed: DeviceIndex,
    pub(super) head: DeviceIndex,
    pub(super) layers: Vec<Spot>,
}

/// Estimated seconds of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTime {
    /// Attention and all else but neurons, including the overhead of ops.
    pub frame: f64,
    /// Neurons on the home device.
    pub home: f64,
    /// Neurons on the CPU, in parallel.
    pub cpu: f64,
    /// The hand-off.
    pub hand_off: f64,
}

impl LayerTime {
    /// From the layer's input to its output.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.frame + self.home.max(self.cpu) + self.hand_off
    }
}

impl Task {
    /// Everything on the CPU.
    pub(super) fn on_cpu(&self) -> Choice {
        let spot = |facts: &LayerFacts| Spot { home: CPU, groups: facts.cut.n_groups() };
        Choice { embed: CPU, head: CPU, layers: self.layers.iter().map(spot).collect() }
    }

    /// Seconds of `n` neurons of a layer, `used` of which a token uses.
    fn neurons(&self, device: DeviceIndex, layer: usize, n: usize, used: f64) -> f64 {
        let (speed, reads) = (&self.devices[device].speed, &self.layers[layer].reads);
        n as f64 * reads.tested / speed.dense + used * reads.used / speed.sparse
    }

    /// Seconds of one layer at `spot`.
    pub(super) fn layer_time(&self, layer: usize, spot: Spot) -> LayerTime {
        let (speed, facts) = (&self.devices[spot.home].speed, &self.layers[layer]);
        let cut = &facts.cut;
        let k = spot.groups.min(cut.n_groups());
        let (here, used) = (cut.neurons(k), facts.mass[k]);
        let split = here < cut.n_ff;
        let reads = &facts.reads;
        LayerTime {
            frame: (reads.frame + reads.cache) / speed.dense + reads.n_ops as f64 * speed.op,
            home: self.neurons(spot.home, layer, here, used),
            cpu: if split {
                self.neurons(CPU, layer, cut.n_ff - here, facts.n_used() - used)
            } else {
                0.0
            },
            hand_off: if split { speed.hand_off } else { 0.0 },
        }
    }

    /// Seconds of the head.
    pub(super) fn head_time(&self, device: DeviceIndex) -> f64 {
        let speed = &self.devices[device].speed;
        self.head / speed.dense + HEAD_OPS as f64 * speed.op
    }

    /// Seconds to move the residual from one device to another.
    pub(super) fn carry(&self, from: DeviceIndex, to: DeviceIndex) -> f64 {
        if from == to {
            0.0
        } else {
            self.devices[from].speed.hand_off + self.devices[to].speed.hand_off
        }
    }

    /// Seconds of all its moves between devices.
    pub(super) fn carries(&self, choice: &Choice) -> f64 {
        let stops = choice.layers.iter().map(|spot| spot.home).chain([choice.head]);
        let mut at = choice.embed;
        stops.map(|to| self.carry(std::mem::replace(&mut at, to), to)).sum()
    }

    /// Seconds of a token.
    pub(super) fn seconds(&self, choice: &Choice) -> f64 {
        let layers = choice.layers.iter().enumerate();
        let layers: f64 = layers.map(|(i, spot)| self.layer_time(i, *spot).total()).sum();
        layers + self.head_time(choice.head) + self.carries(choice)
    }
}
