//! What a placement takes in the host's memory, by the parts that a device's memory is told by.

use hal::{Bytes, Device, Source};

use crate::model::{Ffn, Model};
use crate::placement::{CPU, DeviceBytes, Neurons, Placement};

use super::EngineOptions;
use super::build::{Plan, uses};
use super::ffn::{FfnMode, PackedFfn};

/// What the CPU holds of a model: what it allocates, and of the file what it reads where it lies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostBytes {
    /// All together.
    pub all: DeviceBytes,
    /// Layers in order.
    pub layers: Vec<HostLayer>,
}

/// What the CPU holds of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLayer {
    /// Norms, attention and predictor, if the CPU is its home.
    pub frame: Bytes,
    /// Keys and values, if it is.
    pub cache: Bytes,
    /// The neurons here, wherever the layer is at home.
    pub neurons: Bytes,
}

/// What `placement` of `model` takes in the host's memory; `devices` are the CPU and those beside it.
#[must_use]
pub fn host_bytes(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    placement: &Placement,
) -> HostBytes {
    let mode = FfnMode::new(model, options);
    let plan = Plan { model, devices, options, mode, progress: &|_, _| {} };
    plan.host_bytes(placement)
}

impl Plan<'_> {
    fn host_bytes(&self, placement: &Placement) -> HostBytes {
        let layers = placement.layers.iter().enumerate().map(|(index, placed)| {
            let (frame, cache) = match placed.home {
                CPU => self.frame_size(CPU, index),
                _ => Default::default(),
            };
            let here = placed.shares.iter().find(|share| share.device == CPU);
            let ffn = &self.model.layers[index].ffn;
            let neurons = here.map_or(Bytes(0), |share| self.held(ffn, &share.neurons));
            HostLayer { frame, cache, neurons }
        });
        let layers: Vec<HostLayer> = layers.collect();
        let sum = |part: fn(&HostLayer) -> Bytes| layers.iter().map(part).sum();
        let (embed, head) = (placement.embed == CPU, placement.head == CPU);
        let tied = self.model.file.tensor("output.weight").is_none();
        let embed_size = if embed { self.embed_size(CPU) } else { Bytes(0) };
        let head_size = if head { self.head_size(CPU) } else { Bytes(0) };
        let shared = match tied && embed && head {
            true => self.model.output.desc().bytes().unwrap_or_default(),
            false => Bytes(0),
        };
        let scratch = match uses(placement, CPU) {
            true => self.scratch().size(&self.devices[CPU], &self.options.ladder()),
            false => Bytes(0),
        };
        let all = DeviceBytes {
            scratch,
            frames: sum(|layer| layer.frame),
            cache: sum(|layer| layer.cache),
            neurons: sum(|layer| layer.neurons),
            hand_offs: Bytes(0),
            embed: embed_size,
            ends: embed_size + head_size - shared,
        };
        HostBytes { all, layers }
    }

    /// A share of a block on the CPU, with what it reads of the file where it lies.
    fn held(&self, ffn: &Ffn, neurons: &Neurons) -> Bytes {
        let cpu = &self.devices[CPU];
        let n = neurons.len(self.model.hyper.n_ff);
        let in_place = |PackedFfn { rows, pack, .. }: &PackedFfn| {
            let mapped = matches!(rows.source(), Source::Mapped(_));
            match cpu.pack_size(pack, mapped) {
                Bytes(0) => rows.desc().bytes().unwrap_or_default(),
                _ => Bytes(0),
            }
        };
        let packs = self.mode.packs(cpu, ffn, neurons);
        self.mode.size(cpu, ffn, neurons, n) + packs.iter().map(in_place).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, Notice};
    use crate::model::ModelOptions;
    use std::sync::Arc;

    /// What is allocated is among it, and besides no more than the file.
    #[test]
    fn it_is_what_an_engine_allocates_and_the_file() {
        let file = crate::embedded::file().unwrap();
        let size = file.size_bytes();
        let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
        let options = EngineOptions { n_ctx: 96, n_ubatch: 8, ..EngineOptions::default() };
        let devices = vec![crate::devices::cpu(Some(1))];
        let quiet: Notice = Arc::new(|_: &str| {});
        let engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
        let host =
            host_bytes(engine.model(), engine.devices(), engine.options(), engine.placement());
        let allocated = engine.devices()[0].ledger().used();
        let in_file = host.all.total() - allocated;
        assert!(host.all.total() >= allocated && in_file.0 > size / 2 && in_file.0 < size);
        assert!(host.layers.iter().all(|layer| layer.frame.0.min(layer.neurons.0) > 0));
        assert!(host.all.embed > Bytes(0) && host.all.ends > host.all.embed);
    }
}
