//! Host memory of a placement, itemised in the same way as the memory of a device.

use hal::{Bytes, Device, HostRows, Select, Source};

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

/// Bytes of weights in `placement` of `model` that are copied to host memory and stay there:
/// repacked ones, and neurons on the CPU of layers that are not split into whole experts.
#[must_use]
pub fn copied_bytes(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    placement: &Placement,
) -> Bytes {
    Sizing::new(model, devices, options).copied_bytes(placement, false)
}

/// Bytes of the weights of `model` that must be in memory at once in `placement`, if as many as
/// possible stay on disk, beside copies ([`copied_bytes`]): less is an error when a model is
/// loaded. The first of `devices` is the CPU.
#[must_use]
pub fn least_paged(
    model: &Model,
    devices: &[Device],
    options: &EngineOptions,
    placement: &Placement,
) -> Bytes {
    let sizing = Sizing::new(model, devices, options);
    let bytes = |rows: &HostRows| rows.desc().bytes().unwrap_or_default();
    let (mut frames, mut largest_layer, mut largest_experts) = (Bytes(0), Bytes(0), Bytes(0));
    for (index, (layer, placed)) in model.layers.iter().zip(&placement.layers).enumerate() {
        let mut frame = Bytes(0);
        if placed.home == CPU {
            layer.frame.for_each(&mut |_, rows| frame += bytes(rows));
            let data = sizing.mode.predictor(model, options, index);
            let predictor = data.iter().flat_map(|data| data.fc1.into_iter().chain([data.fc2]));
            frame += predictor.map(bytes).sum();
        }
        let n_ff = layer.n_ff();
        let paged = placed.shares.iter().filter(|share| share.device == CPU).filter(|share| {
            share.neurons == Neurons::All || sizing.holds_experts(index, placed, share)
        });
        let n: usize = paged.map(|share| share.neurons.len(n_ff)).sum();
        let ffn: Bytes =
            layer.ffn.iter().flat_map(|ffn| ffn.matrices()).map(|(_, m)| bytes(m)).sum();
        let ffn = Bytes(ffn.0 / n_ff.max(1) as u64 * n as u64);
        if layer.experts().is_some() {
            largest_experts = largest_experts.max(ffn);
            frames += frame;
        } else {
            frames += frame + ffn;
        }
        largest_layer = largest_layer.max(frame + ffn);
    }
    let layers = if largest_experts > Bytes(0) { frames + largest_experts } else { largest_layer };
    let head = model.output.as_ref().filter(|_| placement.head == CPU);
    let routers = (0..placement.layers.len()).filter_map(|at| sizing.next_router(at, placement));
    let routers: Bytes = routers.map(|next| bytes(&next.router.w)).sum();
    head.map_or(Bytes(0), bytes) + routers + layers
}

impl Sizing<'_> {
    /// See [`copied_bytes`]. `in_file` says whether whole layers' repacked weights will be in a
    /// mapped file that is not open yet.
    pub(crate) fn copied_bytes(&self, placement: &Placement, in_file: bool) -> Bytes {
        let cpu = &self.devices[CPU];
        let mut sum = Bytes(0);
        for (index, placed) in placement.layers.iter().enumerate() {
            let share = placed.shares.iter().find(|share| share.device == CPU);
            let Some((share, ffn)) = share.zip(self.model.layers[index].ffn.as_ref()) else {
                continue;
            };
            let held = self.holds_experts(index, placed, share);
            let neurons = if held { &Neurons::All } else { &share.neurons };
            let packs = self.mode.packs(cpu, ffn, neurons);
            sum += packs.iter().map(|packed| self.copied_pack(index, packed, in_file)).sum();
        }
        sum
    }

    /// Bytes of a pack of layer `index` on the CPU that are not used in place.
    fn copied_pack(&self, index: usize, packed: &PackedFfn, in_file: bool) -> Bytes {
        let (PackedFfn { matrix, rows, pack, .. }, cpu) = (packed, &self.devices[CPU]);
        let stored = cpu.stored_pack(pack, rows);
        if in_file && stored.is_some() && pack.select == Select::All {
            return Bytes(0);
        }
        let stored = stored.zip(self.options.converted.as_ref());
        let label = format!("blk.{index}.{}", matrix.label());
        let kept = stored.and_then(|(stored, packs)| packs.find(&label, pack, stored));
        match kept {
            Some(_) => Bytes(0),
            None => cpu.pack_size(pack, matches!(rows.source(), Source::Mapped(_))),
        }
    }

    /// Bytes of the weights that `placement` has on devices other than the CPU, as in the file.
    pub(crate) fn bytes_on_devices(&self, placement: &Placement) -> Bytes {
        let size = |rows: &HostRows| rows.desc().bytes().unwrap_or_default();
        let mut sum = Bytes(0);
        for (layer, placed) in self.model.layers.iter().zip(&placement.layers) {
            if placed.home != CPU {
                layer.frame.for_each(&mut |_, rows| sum += size(rows));
            }
            let n_ff = layer.n_ff().max(1) as u64;
            let others = placed.shares.iter().filter(|share| share.device != CPU);
            let n: usize = others.map(|share| share.neurons.len(layer.n_ff())).sum();
            let matrices = layer.ffn.iter().flat_map(Ffn::matrices);
            let bytes: Bytes = matrices.map(|(_, rows)| size(rows)).sum();
            sum += Bytes(bytes.0 / n_ff * n as u64);
        }
        let Model { output, token_embd, .. } = self.model;
        let shared = self.model.is_tied() && placement.head == placement.embed;
        let head = output.as_ref().filter(|_| placement.head != CPU);
        let embed = (placement.embed != CPU && !shared).then_some(token_embd);
        sum + head.into_iter().chain(embed).map(size).sum()
    }

    pub(crate) fn host_bytes(&self, placement: &Placement) -> HostBytes {
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
            self.model.token_embd.desc().bytes().unwrap_or_default()
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
    pub(crate) fn share_bytes(&self, ffn: &Ffn, neurons: &Neurons) -> Bytes {
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
