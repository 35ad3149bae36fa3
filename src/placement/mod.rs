//! Where each layer and each neuron lives. Pure data and pure functions: no device is seen here.

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
    Cut, DeviceFacts, LayerFacts, LayerReads, LayerSizes, Speed, StreamFacts, StreamReads, Task,
    Uses, Wishes,
};
pub use forecast::{DeviceBytes, Forecast, LayerForecast, Parts};
pub use plan::{plan, plan_for_tokens, plan_whole_layers};

use std::sync::Arc;

/// Index into the engine's list of devices; 0 is the CPU.
pub type DeviceIndex = usize;

/// The device that always exists and holds what fits nowhere else.
pub const CPU: DeviceIndex = 0;

/// Neurons of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Neurons {
    /// All of them.
    All,
    /// These: strictly ascending where a placement is made, in the order of their slots once some have changed sides.
    List(Arc<[u32]>),
}

impl Neurons {
    /// How many of a layer's `n_ff`.
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
    /// Where attention, its cache and the residual are.
    pub home: DeviceIndex,
    /// Disjoint, together all neurons. A layer with one share on its home is *whole*, others are *split*.
    pub shares: Vec<Share>,
}

impl LayerPlacement {
    /// A layer that is wholly on one device.
    #[must_use]
    pub fn whole(device: DeviceIndex) -> LayerPlacement {
        LayerPlacement { home: device, shares: vec![Share { device, neurons: Neurons::All }] }
    }

    /// Whether some neurons are computed elsewhere than at home.
    #[must_use]
    pub fn is_split(&self) -> bool {
        self.shares.iter().any(|share| share.device != self.home)
    }
}

/// Where everything is, fixed at load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Device of the embedding table.
    pub embed: DeviceIndex,
    /// Device of the output norm and matrix.
    pub head: DeviceIndex,
    /// Layers in order.
    pub layers: Vec<LayerPlacement>,
}

/// A placement that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another number of layers than the model has.
    #[error("{found} layers are placed, the model has {expected}")]
    Layers {
        /// The model's.
        expected: usize,
        /// The placement's.
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
    /// Neurons lost, doubled, out of order or, where down lies across neurons, not in whole blocks; or two
    /// shares of one device.
    #[error(
        "layer {layer}: neurons are not each placed once, in ascending blocks of {unit}, one share a device"
    )]
    Neurons {
        /// The layer.
        layer: usize,
        /// Neurons that must stay together.
        unit: usize,
    },
}

impl Placement {
    /// Everything on one device.
    #[must_use]
    pub fn all_on(device: DeviceIndex, n_layer: usize) -> Placement {
        let layers = vec![LayerPlacement::whole(device); n_layer];
        Placement { embed: device, head: device, layers }
    }

    /// Checks that every neuron has exactly one place. `unit` is the number of neurons that stay together.
    ///
    /// # Errors
    /// [`Error`].
    pub fn check(
        &self,
        n_layer: usize,
        n_ff: usize,
        n_devices: usize,
        unit: usize,
    ) -> Result<(), Error> {
        if self.layers.len() != n_layer {
            return Err(Error::Layers { expected: n_layer, found: self.layers.len() });
        }
        let homes = self.layers.iter().map(|layer| layer.home);
        let shares = self.layers.iter().flat_map(|layer| layer.shares.iter().map(|s| s.device));
        for index in homes.chain(shares).chain([self.embed, self.head]) {
            if index >= n_devices {
                return Err(Error::Device { index, n_devices });
            }
        }
        for (layer, placed) in self.layers.iter().enumerate() {
            if !covers_once(&placed.shares, n_ff, unit) {
                return Err(Error::Neurons { layer, unit });
            }
        }
        Ok(())
    }

    /// Layers whose neurons are on more than their home.
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
