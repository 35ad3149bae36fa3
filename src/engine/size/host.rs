//! Host memory of a placement, itemised in the same way as the memory of a device.

use hal::{Bytes, Device, Source};

use model::{Ffn, Model};
use placement::{CPU, DeviceBytes, Neurons, Placement};

use super::{Sizing, is_used};
use crate::ops::ffn::PackedFfn;
use crate::options::EngineOptions;

/// Host memory that the CPU uses for a model: its allocations, and the bytes of the file that it
/// reads in place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostBytes {
    /// Sum over layers, embedding, head and scratch.
    pub total: DeviceBytes,
    /// Layers in order.
    pub layers: Vec<HostLayer>,
}

/// Host memory of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostLayer {
    /// Norms, mixer, router, shared expert and predictor, if the CPU is the layer's home.
    pub frame: Bytes,
    /// KV cache or recurrent state, if the CPU is the layer's home.
    pub cache: Bytes,
    /// The neurons on the CPU, whatever the home of the layer.
    pub neurons: Bytes,
}

/// Host memory of `placement` of `model`; the first of `devices` is the CPU.
#[must_use]
pub fn host_bytes(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    placement: &Placement,
) -> HostBytes {
    let sizing = Sizing::new(model, devices, options);
    sizing.host_bytes(placement)
}

impl Sizing<'_> {
    fn host_bytes(&self, placement: &Placement) -> HostBytes {
        let layers = placement.layers.iter().enumerate().map(|(index, placed)| {
            let (frame, cache) = match placed.home {
                CPU => self.frame_size(CPU, index),
                _ => Default::default(),
            };
            let here = placed.shares.iter().find(|share| share.device == CPU);
            let ffn = self.model.layers[index].ffn.as_ref();
            let neurons = here.zip(ffn).map(|(share, ffn)| self.share_bytes(ffn, &share.neurons));
            let neurons = neurons.unwrap_or_default();
            HostLayer { frame, cache, neurons }
        });
        let layers: Vec<HostLayer> = layers.collect();
        let sum = |part: fn(&HostLayer) -> Bytes| layers.iter().map(part).sum();
        let (embed, head) = (placement.embed == CPU, placement.head == CPU);
        let tied = self.model.is_tied();
        let embed_size = if embed { self.embed_size(CPU) } else { Bytes(0) };
        let head_size = if head { self.head_size(CPU) } else { Bytes(0) };
        let shared = if tied && embed && head {
            self.model.output.desc().bytes().unwrap_or_default()
        } else {
            Bytes(0)
        };
        let scratch = if is_used(placement, CPU) {
            self.scratch().size(&self.devices[CPU], &self.options.buckets())
        } else {
            Bytes(0)
        };
        let total = DeviceBytes {
            scratch,
            frames: sum(|layer| layer.frame),
            cache: sum(|layer| layer.cache),
            neurons: sum(|layer| layer.neurons),
            hand_offs: Bytes(0),
            embed: embed_size,
            embed_and_head: embed_size + head_size - shared,
        };
        HostBytes { total, layers }
    }

    /// Bytes of a share of a block on the CPU, including bytes that are read in place from the
    /// file.
    fn share_bytes(&self, ffn: &Ffn, neurons: &Neurons) -> Bytes {
        let cpu = &self.devices[CPU];
        let n = neurons.len(ffn.n_ff());
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
    use crate::{Engine, NoticeCallback};
    use model::ModelOptions;
    use std::sync::Arc;

    /// The total is at least the number of allocated bytes, and exceeds it by at most the size of
    /// the file.
    #[test]
    fn host_bytes_match_the_allocations_of_an_engine_plus_its_file() {
        let file = runtime::embedded::file().unwrap();
        let size = file.size_bytes();
        let model = Arc::new(Model::from_file(file, &ModelOptions::default()).unwrap());
        let options = EngineOptions { n_ctx: 96, n_ubatch: 8, ..EngineOptions::default() };
        let devices = vec![runtime::devices::cpu(Some(1))];
        let quiet: NoticeCallback = Arc::new(|_: &str| {});
        let engine = Engine::load(model, devices, options, None, quiet, &|_, _| {}).unwrap();
        let host =
            host_bytes(engine.model(), engine.devices(), engine.options(), engine.placement());
        let allocated = engine.devices()[0].ledger().used();
        let in_file = host.total.total() - allocated;
        assert!(host.total.total() >= allocated && in_file.0 > size / 2 && in_file.0 < size);
        assert!(host.layers.iter().all(|layer| layer.frame.0.min(layer.neurons.0) > 0));
        assert!(host.total.embed > Bytes(0) && host.total.embed_and_head > host.total.embed);
    }
}
