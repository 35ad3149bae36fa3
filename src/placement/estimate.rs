//! The estimated time of a generated token, of a placement or a part of it.
//!
//! A layer takes `(frame + cache) / dense + max(neurons at home, neurons on the CPU) + hand-off`, where neurons take
//! `tested / dense + used / sparse`; a whole layer has no hand-off and one part. To that come the head, the ops, and
//! the residual carried from one device to the next. Bandwidths and times are measured ones.

use super::facts::Task;
use super::{CPU, DeviceIndex};

/// Ops of the head: chosen tokens, norm, product.
const HEAD_OPS: usize = 3;

/// Where one layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) home: DeviceIndex,
    /// Groups of neurons at home; the others are on the CPU.
    pub(super) groups: usize,
}

/// Where everything is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) embed: DeviceIndex,
    pub(super) head: DeviceIndex,
    pub(super) layers: Vec<Spot>,
}

/// Seconds of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTime {
    /// Attention and all else but neurons, with the time that ops take beside their bytes.
    pub frame: f64,
    /// Neurons at home.
    pub home: f64,
    /// Neurons on the CPU, at the same time.
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
        let spot = Spot { home: CPU, groups: self.cut.n_groups() };
        Choice { embed: CPU, head: CPU, layers: vec![spot; self.layers.len()] }
    }

    /// Seconds of `n` neurons of a layer, `used` of which a token uses.
    fn neurons(&self, device: DeviceIndex, layer: usize, n: usize, used: f64) -> f64 {
        let (speed, reads) = (&self.devices[device].speed, &self.layers[layer].reads);
        n as f64 * reads.tested / speed.dense + used * reads.used / speed.sparse
    }

    /// Seconds of one layer at `spot`.
    pub(super) fn layer_time(&self, layer: usize, spot: Spot) -> LayerTime {
        let (speed, facts) = (&self.devices[spot.home].speed, &self.layers[layer]);
        let k = spot.groups.min(self.cut.n_groups());
        let (here, used) = (self.cut.neurons(k), facts.mass[k]);
        let split = here < self.cut.n_ff;
        let reads = &facts.reads;
        LayerTime {
            frame: (reads.frame + reads.cache) / speed.dense + reads.n_ops as f64 * speed.op,
            home: self.neurons(spot.home, layer, here, used),
            cpu: match split {
                true => self.neurons(CPU, layer, self.cut.n_ff - here, facts.n_used() - used),
                false => 0.0,
            },
            hand_off: if split { speed.hand_off } else { 0.0 },
        }
    }

    /// Seconds of the head.
    pub(super) fn head_time(&self, device: DeviceIndex) -> f64 {
        let speed = &self.devices[device].speed;
        self.head / speed.dense + HEAD_OPS as f64 * speed.op
    }

    /// Seconds in which the residual goes from one device to another.
    pub(super) fn carry(&self, from: DeviceIndex, to: DeviceIndex) -> f64 {
        match from == to {
            true => 0.0,
            false => self.devices[from].speed.hand_off + self.devices[to].speed.hand_off,
        }
    }

    /// Seconds in which it goes from device to device.
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
