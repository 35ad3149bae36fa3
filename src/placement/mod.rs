//! Placement of layers and neurons on devices. Pure data and pure functions, without access to
//! devices.

mod estimate;
pub mod exchange;
mod facts;
mod fill;
mod forecast;
mod front;
mod hottest;
mod plan;
mod prompt;
mod reference;
mod rules;
mod search;
mod steps;
mod tally;
#[cfg(test)]
mod tests;

pub use estimate::LayerTime;
pub use facts::{
    Cut, DeviceFacts, LayerFacts, LayerReads, LayerSizes, PlacementPolicy, PlanConstraints, Speed,
    StreamFacts, StreamReads, Task, Uses,
};
pub use forecast::{DeviceBytes, Forecast, LayerForecast, TimeParts};
pub use plan::{plan, plan_for_decode, plan_whole_layers};
pub use rules::{LayerRule, PlacementRules, UnmetRule};

use std::sync::Arc;

/// Index into the engine's list of devices; 0 is the CPU.
pub type DeviceIndex = usize;

/// The device that always exists. It holds everything that does not fit on other devices.
pub const CPU: DeviceIndex = 0;

/// A subset of the neurons of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Neurons {
    /// All neurons of the layer.
    All,
    /// The listed neurons: in strictly ascending order in a new placement, in the order of their
    /// slots after an exchange.
    List(Arc<[u32]>),
}

impl Neurons {
    /// Number of these neurons, in a layer of `n_ff`.
    #[must_use]
    pub fn len(&self, n_ff: usize) -> usize {
        match self {
            Neurons::All => n_ff,
            Neurons::List(list) => list.len(),
        }
    }
}

/// The neurons of a layer that one device computes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Index of the device.
    pub device: DeviceIndex,
    /// The neurons that the device computes.
    pub neurons: Neurons,
}

/// The placement of one layer: attention and norms on `home`, neurons distributed over the shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// Device of the mixer, of its KV cache or state, and of the residual.
    pub home: DeviceIndex,
    /// Disjoint shares that together hold all neurons. A layer is *whole* if its only share is on
    /// `home`, otherwise it is *split*.
    pub shares: Vec<Share>,
}

impl LayerPlacement {
    /// A layer entirely on one device.
    #[must_use]
    pub fn whole(device: DeviceIndex) -> LayerPlacement {
        LayerPlacement { home: device, shares: vec![Share { device, neurons: Neurons::All }] }
    }

    /// Whether some neurons are on a device other than the home.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.shares.iter().any(|share| share.device != self.home)
    }
}

/// The device of every layer, neuron and table of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Device of the embedding table.
    pub embed: DeviceIndex,
    /// Device of the output norm and matrix.
    pub head: DeviceIndex,
    /// Layers in order.
    pub layers: Vec<LayerPlacement>,
}

/// An invalid placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The number of layers differs from the model's.
    #[error("{found} layers are placed, but the model has {expected}")]
    Layers {
        /// Number of layers of the model.
        expected: usize,
        /// Number of layers in the placement.
        found: usize,
    },
    /// The placement uses a device that is not in the list.
    #[error(
        "the placement uses device {index}, but there are only {n_devices} devices, numbered from 0"
    )]
    Device {
        /// Index of the device.
        index: usize,
        /// Number of devices in the list.
        n_devices: usize,
    },
    /// Neurons are missing, listed twice or out of order; a block of neurons that must stay
    /// together is divided; or a device has two shares.
    #[error(
        "layer {layer}: each neuron must be placed exactly once, in ascending blocks of {unit}, with one share per device"
    )]
    Neurons {
        /// Index of the layer.
        layer: usize,
        /// Number of consecutive neurons that must stay together.
        unit: usize,
    },
    /// A layer and the layer whose KV cache it uses have different homes.
    #[error(
        "layer {layer} uses the KV cache of layer {source_layer} and must have the same home device"
    )]
    SharedKvCache {
        /// Index of the layer.
        layer: usize,
        /// The layer that owns the KV cache.
        source_layer: usize,
    },
}

impl Placement {
    /// Everything on one device.
    #[must_use]
    pub fn all_on(device: DeviceIndex, n_layer: usize) -> Placement {
        let layers = vec![LayerPlacement::whole(device); n_layer];
        Placement { embed: device, head: device, layers }
    }

    /// Checks that every neuron is placed exactly once, and that layers with a shared KV cache have
    /// one home. `cuts` has an entry for each layer of the model. `sources` has, for each layer,
    /// the layer whose KV cache it uses, or `None` for its own.
    ///
    /// # Errors
    /// [`Error`]: the first rule that the placement breaks.
    pub fn check(
        &self,
        cuts: &[Cut],
        sources: &[Option<usize>],
        n_devices: usize,
    ) -> Result<(), Error> {
        if self.layers.len() != cuts.len() {
            return Err(Error::Layers { expected: cuts.len(), found: self.layers.len() });
        }
        let homes = self.layers.iter().map(|layer| layer.home);
        let shares = self.layers.iter().flat_map(|layer| layer.shares.iter().map(|s| s.device));
        for index in homes.chain(shares).chain([self.embed, self.head]) {
            if index >= n_devices {
                return Err(Error::Device { index, n_devices });
            }
        }
        for (layer, (placed, cut)) in self.layers.iter().zip(cuts).enumerate() {
            let unit = cut.unit;
            if !covers_once(&placed.shares, cut.n_ff, unit) {
                return Err(Error::Neurons { layer, unit });
            }
        }
        for (layer, source) in sources.iter().enumerate() {
            let home = |layer: usize| self.layers.get(layer).map(|placed| placed.home);
            if let Some(source_layer) = source.filter(|&source| home(source) != home(layer)) {
                return Err(Error::SharedKvCache { layer, source_layer });
            }
        }
        Ok(())
    }

    /// Number of layers with neurons on devices other than their home.
    #[must_use]
    pub fn n_split(&self) -> usize {
        self.layers.iter().filter(|layer| layer.is_split()).count()
    }
}

fn covers_once(shares: &[Share], n_ff: usize, unit: usize) -> bool {
    let mut seen = vec![false; n_ff];
    let mut count = 0;
    for (index, share) in shares.iter().enumerate() {
        if shares[..index].iter().any(|other| other.device == share.device) {
            return false;
        }
        let list = match &share.neurons {
            Neurons::All => return shares.len() == 1,
            Neurons::List(list) => list,
        };
        let ascending = list.windows(2).all(|pair| pair[0] < pair[1]);
        let blocks = list.chunks(unit).all(|block| {
            (block[0] as usize).is_multiple_of(unit)
                && block.len() == unit
                && (block[unit - 1] - block[0]) as usize == unit - 1
        });
        if !ascending || !blocks {
            return false;
        }
        for &neuron in list.iter() {
            match seen.get_mut(neuron as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return false,
            }
        }
        count += list.len();
    }
    count == n_ff
}
