//! Memory that each device would use, and why part of a budget stays unused.

use super::Report;
use crate::engine::HostBytes;
use crate::placement::{
    CPU, DeviceBytes, DeviceIndex, Forecast, LayerSizes, PlacementPolicy, PlanConstraints, Task,
};
use hal::Bytes;

/// Planned memory in bytes, itemised.
#[derive(Debug)]
pub(super) struct ItemizedMemory {
    pub(super) devices: Vec<DeviceBytes>,
    /// Layers in order.
    pub(super) layers: Vec<LayerBytes>,
    /// Per device, the bytes of the smallest addition (a group of neurons, a layer, the embedding
    /// or the head); `None` if nothing can be added.
    least_addition: Vec<Option<Bytes>>,
}

/// Bytes of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LayerBytes {
    /// Norms, attention and predictor, on the home device.
    pub(super) frame: Bytes,
    /// Keys and values, on the home device.
    pub(super) cache: Bytes,
    /// Neurons on the home device.
    pub(super) neurons: Bytes,
    /// Neurons on the CPU, if the home is another device.
    pub(super) neurons_on_cpu: Bytes,
}

impl ItemizedMemory {
    pub(super) fn new(task: &Task, forecast: &Forecast, host: HostBytes) -> ItemizedMemory {
        let mut devices = forecast.devices.clone();
        devices[CPU] = host.total;
        let all = forecast.placement.layers.iter().zip(&forecast.layers).zip(&host.layers);
        let layers = all.map(|((placed, layer), host)| match placed.home {
            CPU => LayerBytes {
                frame: host.frame,
                cache: host.cache,
                neurons: host.neurons,
                neurons_on_cpu: Bytes(0),
            },
            _ => LayerBytes {
                frame: layer.frame,
                cache: layer.cache,
                neurons: layer.neurons,
                neurons_on_cpu: host.neurons,
            },
        });
        let least_addition =
            (0..devices.len()).map(|device| least_addition(task, forecast, device)).collect();
        ItemizedMemory { layers: layers.collect(), devices, least_addition }
    }
}

/// As [`ItemizedMemory::least_addition`], for one device.
fn least_addition(task: &Task, forecast: &Forecast, device: DeviceIndex) -> Option<Bytes> {
    let facts = &task.devices[device];
    let placement = &forecast.placement;
    let layer = |(i, sizes): (usize, &LayerSizes)| {
        let (placed, here) = (&placement.layers[i], &forecast.layers[i]);
        if placed.home == CPU {
            let split = sizes.shares.first().map(|share| *share + facts.hand_off);
            let least = sizes.whole.into_iter().chain(split).min()?;
            return Some(sizes.frame + sizes.cache + least);
        }
        let is_here = placed.home == device && placed.is_split();
        let groups = here.n_home.div_ceil(task.cut(i).group);
        let more = sizes.shares.get(groups + 1).copied().or(sizes.whole)?;
        is_here.then(|| more - here.neurons)
    };
    let ends = [(placement.embed, facts.embed), (placement.head, facts.head)];
    let ends = ends.into_iter().filter(|(home, _)| *home == CPU).filter_map(|(_, size)| size);
    facts.layers.iter().enumerate().filter_map(layer).chain(ends).min()
}

impl Report {
    /// Bytes that would be used on a device, including the driver's reserve.
    pub(super) fn used(&self, device: DeviceIndex) -> Bytes {
        self.memory.devices[device].total() + self.devices[device].reserve
    }

    /// The unused bytes of a device's budget, and why they stay unused; `None` if there are none,
    /// without a budget, or if nothing is on the device.
    pub(super) fn unused_budget(&self, device: DeviceIndex) -> Option<(Bytes, String)> {
        let left = self.devices[device].budget? - self.used(device);
        if left == Bytes(0) || self.memory.devices[device].total() == Bytes(0) {
            return None;
        }
        let PlanConstraints { policy, whole_layers, neurons_on_cpu, .. } = self.constraints;
        Some((
            left,
            match self.memory.least_addition[device] {
                None if self.memory.devices[CPU].total() == Bytes(0) => {
                    "all of the model is on devices".to_owned()
                }
                None => "nothing more of the model can be placed on it".to_owned(),
                Some(_) if policy == PlacementPolicy::Layers && whole_layers.is_none() => {
                    "no further layer fits".to_owned()
                }
                Some(_) if policy != PlacementPolicy::Fill && whole_layers.is_some() => {
                    "-ngl is reached, or no further layer fits".to_owned()
                }
                Some(_) if neurons_on_cpu => {
                    "--disable-gpu-index keeps the neurons on the CPU".to_owned()
                }
                Some(_) if policy == PlacementPolicy::Fill => {
                    "the next neurons, head or embedding do not fit, or -ngl is reached".to_owned()
                }
                Some(next) if next > left => {
                    format!("the smallest addition would take {next}")
                }
                Some(_) => {
                    "placing more of the model on it would slow down decode or prefill".to_owned()
                }
            },
        ))
    }
}
