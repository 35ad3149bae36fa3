//! Placement of layers and neurons on devices. Pure data and pure functions, without access to
//! devices.

mod estimate;
pub mod exchange;
mod facts;
mod fill;
mod forecast;
mod front;
mod plan;
mod prompt;
mod search;
#[cfg(test)]
mod tests;

pub use estimate::LayerTime;
pub use facts::{
    Cut, DeviceFacts, LayerFacts, LayerReads, LayerSizes, PlanConstraints, Speed, StreamFacts,
    StreamReads, Task, Uses,
};
pub use forecast::{DeviceBytes, Forecast, LayerForecast, TimeParts};
pub use plan::{plan, plan_for_tokens, plan_whole_layers};

use std::sync::Arc;

/// Index into the engine's list of devices; 0 is the CPU.
pub type DeviceIndex = usize;

/// The device that always exists and holds everything that fits no other.
pub const CPU: DeviceIndex = 0;

/// Neurons of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Neurons {
    /// All neurons of the layer.
    All,
    /// These: strictly ascending in a new placement, in the order of their slots once some have
    /// changed sides.
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
    /// The device.
    pub device: DeviceIndex,
    /// Its neurons.
    pub neurons: Neurons,
}

/// One layer: attention and norms on `home`, neurons spread over the shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// Device of attention, its cache and the residual.
    pub home: DeviceIndex,
    /// Disjoint, together all neurons. A layer with one share on its home is *whole*, others are
    /// *split*.
    pub shares: Vec<Share>,
}

impl LayerPlacement {
    /// A layer entirely on one device.
    #[must_use]
    pub fn whole(device: DeviceIndex) -> LayerPlacement {
        LayerPlacement { home: device, shares: vec![Share { device, neurons: Neurons::All }] }
    }

    /// Whether some neurons are on another device than the home.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.shares.iter().any(|share| share.device != self.home)
    }
}

/// Location of everything, fixed at load.
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
        /// The model's number.
        expected: usize,
        /// The placement's number.
        found: usize,
    },
    /// A device that is not in the list.
    #[error("device {index} is not one of {n_devices}")]
    Device {
        /// The index.
        index: usize,
        /// Length of the list.
        n_devices: usize,
    },
    /// Neurons missing, duplicated, out of order or, if down has one row per output, not in whole
    /// blocks; or two shares of one device.
    #[error(
        "layer {layer}: each neuron must be placed exactly once, in ascending blocks of {unit}, with one share per device"
    )]
    Neurons {
        /// The layer.
        layer: usize,
        /// Neurons that must stay together.
        unit: usize,
    },
    /// A layer is not on the device of the KV cache that it uses.
    #[error("layer {layer} uses the KV cache of layer {source_layer} and must be on its device")]
    Apart {
        /// The layer.
        layer: usize,
        /// The layer with the cache.
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

    /// Checks that every neuron has exactly one place; `cuts` are the model's layers in order, and
    /// `sources` says of each whose KV cache it uses, if not its own.
    ///
    /// # Errors
    /// [`Error`].
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
                return Err(Error::Apart { layer, source_layer });
            }
        }
        Ok(())
    }

    /// Layers with neurons outside of their home.
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
