//! Loads a model onto devices by a placement and records the programs.

use std::ops::Range;

use hal::format::Format;
use hal::{Device, KvCache, Mailbox, MailboxShape, Operand, Tensor};

use model::{Affine, Ffn, Frame, LayerWeights, Model};
use placement::{CPU, DeviceIndex, Forecast, LayerPlacement, Neurons, Placement, Share};

use super::adapt::Adapt;
use super::counters::Deferred;
use super::ffn::{FfnMode, FfnTensors};
use super::lane::{HeadScratch, Lane, ScratchShape};
use super::mixer::{self, Memory};
use super::observe::Observers;
use super::predict::Predictor;
use super::record::{self, Ladder, Segment};
use super::stream::Stream;
use super::{EngineOptions, Result};

/// One layer on its home device.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) frame: Frame<Tensor>,
    /// Frequencies of its RoPE.
    pub(super) freqs: Option<Tensor>,
    pub(super) memory: Memory<Tensor>,
    /// Chooses the active neurons.
    pub(super) predictor: Option<Predictor<Tensor>>,
    /// Resident neurons; `None` if none is on the home device.
    pub(super) own: Option<FfnTensors>,
    /// Present if some neurons are on other devices.
    pub(super) mailbox: Option<Mailbox>,
    /// Neurons on other devices.
    pub(super) remotes: Vec<Remote>,
}

/// Neurons of a layer on a device other than its home.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) device: DeviceIndex,
    pub(super) ffn: FfnTensors,
    /// Its rows in the numbering over all remotes of the layer.
    pub(super) rows: Range<u32>,
    pub(super) programs: Ladder,
}

/// Token embedding and positions.
#[derive(Debug)]
pub(super) struct Embedding {
    pub(super) tokens: Tensor,
    /// Learned positions, and the row of the first position.
    pub(super) positions: Option<(Tensor, usize)>,
}

/// The output norm and matrix.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) device: DeviceIndex,
    pub(super) norm: Affine<Tensor>,
    pub(super) output: Tensor,
    pub(super) scratch: HeadScratch,
    pub(super) programs: Ladder,
}

/// A model on its devices, ready to step.
#[derive(Debug)]
pub(super) struct Loaded {
    /// One per device of the engine; `None` for an unused device.
    pub(super) lanes: Vec<Option<Lane>>,
    pub(super) layers: Vec<Layer>,
    pub(super) segments: Vec<Segment>,
    /// Per device: streams absent weights there during prefill.
    pub(super) streams: Vec<Option<Stream>>,
    pub(super) embed: Embedding,
    pub(super) head: Head,
    /// Per rung of the ladder: steps whose counters are still on the devices.
    pub(super) deferred: Vec<Deferred>,
    /// Made at the first observed step.
    pub(super) observers: Option<Observers>,
    /// Exchanges neurons between devices, if that is on.
    pub(super) adapt: Option<Adapt>,
    /// Slow paths and their reasons, each reported once.
    pub(super) slow: Vec<String>,
}

/// Everything that sizing, loading and recording read.
#[derive(Clone, Copy)]
pub(super) struct Plan<'a> {
    pub(super) model: &'a Model,
    pub(super) devices: &'a [Device],
    pub(super) options: &'a EngineOptions,
    pub(super) mode: FfnMode,
    pub(super) progress: &'a dyn Fn(u64, u64),
}

impl<'a> Plan<'a> {
    /// Loads by `placement`, whose `forecast` is known if it was planned here.
    pub(super) fn build(
        &self,
        placement: &Placement,
        forecast: Option<&Forecast>,
    ) -> Result<Loaded> {
        let seconds = forecast.map(|forecast| forecast.seconds);
        let shape = self.scratch();
        let rungs = self.options.ladder();
        let mut lanes = Vec::new();
        for (index, device) in self.devices.iter().enumerate() {
            let lane = match uses(placement, index) {
                true => Some(Lane::new(device, &shape, &rungs)?),
                false => None,
            };
            if lane.is_some() && index != CPU {
                device.reserve_workspace(self.workspace(index))?;
            }
            lanes.push(lane);
        }
        let mut mailboxes = self.mailboxes(placement)?;
        // Packs are made one by one: packing uses all threads, and memory read for one pack is
        // released before the next.
        let (mut layers, mut done) = (Vec::new(), 0);
        let total = (0..placement.layers.len()).map(|i| self.layer_bytes(i)).sum();
        for (i, placed) in placement.layers.iter().enumerate() {
            layers.push(self.layer(i, placed, &mut mailboxes)?);
            done += self.layer_bytes(i);
            (self.progress)(done, total);
        }
        let embed = self.embedding(&self.devices[placement.embed])?;
        let mut head = self.head(placement, &mut lanes, &shape, &embed.tokens)?;
        let recorder = record::Recording { plan: *self, rungs: &rungs, embed: &embed };
        let mut slow = Vec::new();
        let from = self.streams_from(placement, forecast, &mut slow);
        let streams = self.streams_by(&recorder, &from, (placement, &layers), &lanes, &mut slow)?;
        let segments = recorder.segments(placement, &lanes, &layers, &streams)?;
        for (i, layer) in layers.iter_mut().enumerate() {
            let listed = layer.predictor.is_some();
            for remote in &mut layer.remotes {
                remote.programs = recorder.remote(&lanes, i, remote, listed)?;
            }
        }
        head.programs = recorder.head(&lanes, &head)?;
        let observers = None;
        let deferred = vec![Deferred::default(); rungs.len()];
        let (adapt, refused) = match self.adapt(&layers, placement, seconds) {
            Ok(adapt) => (adapt, None),
            Err(refused) => (None, Some(refused)),
        };
        let mut loaded = Loaded {
            lanes,
            layers,
            segments,
            streams,
            embed,
            head,
            deferred,
            observers,
            adapt,
            slow,
        };
        loaded.ready_to_exchange(self, placement)?;
        loaded.slow.splice(0..0, loaded.slow_ops());
        loaded.slow.extend(refused);
        Ok(loaded)
    }

    /// Per home device, one mailbox for each layer that is split there, in order.
    fn mailboxes(&self, placement: &Placement) -> Result<Vec<Vec<Mailbox>>> {
        let by_home = |(home, device): (DeviceIndex, &Device)| {
            let layers = placement.layers.iter().zip(&self.model.layers);
            let split = |(placed, layer): &(&LayerPlacement, &LayerWeights)| {
                placed.home == home && self.is_split(placed, layer.n_ff())
            };
            match layers.filter(split).count() {
                0 => Ok(Vec::new()),
                n => Ok(device.mailboxes(self.mailbox_shape(), n)?),
            }
        };
        self.devices.iter().enumerate().map(by_home).collect()
    }

    /// Whether some neurons of a layer are on another device than its home.
    fn is_split(&self, placed: &LayerPlacement, n_ff: usize) -> bool {
        placed.shares.iter().any(|share| share.device != placed.home && share.neurons.len(n_ff) > 0)
    }

    /// The feed-forward block of a layer that has neurons.
    pub(super) fn block(&self, index: usize) -> &'a Ffn {
        self.model.layers[index].ffn.as_ref().expect("the layer has a feed-forward block")
    }

    fn layer(
        &self,
        index: usize,
        placed: &LayerPlacement,
        mailboxes: &mut [Vec<Mailbox>],
    ) -> Result<Layer> {
        let weights: &LayerWeights = &self.model.layers[index];
        let device = &self.devices[placed.home];
        let import = |part: &str, rows: &hal::HostRows| {
            let label = format!("blk.{index}.{part}");
            self.whole(device, &label, rows)
        };
        let n_ff = weights.n_ff();
        let is_empty = |share: &Share| share.neurons.len(n_ff) == 0;
        // `bias_down` is added by the home device where it has neurons: it does not move when
        // neurons are exchanged.
        let there: Vec<_> = placed.shares.iter().filter(|share| !is_empty(share)).collect();
        let at_home = there.iter().find(|share| share.device == placed.home);
        let adding = at_home.or(there.first()).map(|share| share.device);
        let mut own = None;
        let mut remotes = Vec::new();
        let mut n_remote = 0;
        for share in &placed.shares {
            let on = &self.devices[share.device];
            if is_empty(share) {
                continue;
            }
            let adds = Some(share.device) == adding;
            let ffn = self.mode.import(self, on, index, &share.neurons, adds)?;
            match share.device == placed.home {
                true => own = Some(ffn),
                false => {
                    let rows = n_remote..n_remote + share.neurons.len(n_ff) as u32;
                    n_remote = rows.end;
                    let (device, programs) = (share.device, Ladder::default());
                    remotes.push(Remote { device, ffn, rows, programs });
                }
            }
        }
        let mailbox = match remotes.is_empty() {
            true => None,
            false => mailboxes[placed.home].pop(),
        };
        let chosen = self.mode.chosen(self.model, self.options, index);
        let predictor = chosen.map(|chosen| Predictor::import(device, index, chosen, placed));
        let predictor = predictor.transpose()?;
        Ok(Layer {
            frame: weights.frame.try_map(&mut |part, rows| import(part, rows))?,
            freqs: match weights.attention().and_then(|by| by.rope.as_ref()) {
                Some(rope) => Some(import("rope_freqs", &freqs(rope.freqs(self.options.n_ctx)))?),
                None => None,
            },
            memory: self.memory(device, index)?,
            predictor,
            own,
            mailbox,
            remotes,
        })
    }

    /// Allocates the KV cache or recurrent state of layer `index`.
    fn memory(&self, device: &Device, index: usize) -> Result<Memory<Tensor>> {
        Ok(match mixer::memory(&mixer::shapes(&self.model.layers[index]), self.options) {
            Memory::None => Memory::None,
            Memory::Kv(KvCache { k, v }) => {
                let n_cols = KvCache { k: k.n_cols, v: v.n_cols };
                let formats = self.options.kv_formats;
                Memory::Kv(device.kv_cache(self.options.n_blocks(), n_cols, formats)?)
            }
            Memory::Recurrent(shapes) => {
                let states = shapes.into_iter().map(|shape| device.alloc("state", shape));
                Memory::Recurrent(states.collect::<hal::Result<_>>()?)
            }
        })
    }

    pub(super) fn mailbox_shape(&self) -> MailboxShape {
        let n_embd = self.model.hyper.n_embd;
        let max_rows = if self.mode.predicts() { self.model.max_n_ff() } else { 0 };
        MailboxShape {
            max_tokens: self.options.n_ubatch,
            n_in: n_embd,
            n_weights: self.model.max_experts(),
            n_out: n_embd,
            max_rows,
        }
    }

    pub(super) fn scratch(&self) -> ScratchShape {
        ScratchShape::new(self.model, self.options, self.devices.len(), self.counts())
    }

    fn embedding(&self, device: &Device) -> Result<Embedding> {
        let Model { token_embd, positions, .. } = self.model;
        let positions = positions.as_ref().map(|table| {
            Ok::<_, super::Error>((self.whole(device, "position_embd", &table.rows)?, table.offset))
        });
        let tokens = self.whole(device, "token_embd", token_embd)?;
        Ok(Embedding { tokens, positions: positions.transpose()? })
    }

    fn head(
        &self,
        placement: &Placement,
        lanes: &mut [Option<Lane>],
        shape: &ScratchShape,
        embed: &Tensor,
    ) -> Result<Head> {
        let device = &self.devices[placement.head];
        let import = |label: &str, rows: &hal::HostRows| self.whole(device, label, rows);
        let tied = self.model.file.tensor("output.weight").is_none();
        let output = match tied && placement.head == placement.embed {
            true => embed.clone(),
            false => import("output", &self.model.output)?,
        };
        let lane = lanes[placement.head].as_mut().expect("a used device has a lane");
        Ok(Head {
            device: placement.head,
            norm: self
                .model
                .output_norm
                .try_map("output_norm", &mut |label, rows| import(label, rows))?,
            output,
            scratch: lane.head_scratch(shape)?,
            programs: Ladder::default(),
        })
    }
}

fn freqs(values: &[f32]) -> hal::HostRows {
    let bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
    let source = hal::Source::Owned(std::sync::Arc::new(bytes));
    hal::HostRows::new(source, 1, values.len(), Format::F32).expect("as many bytes as values")
}

/// Whether anything is placed on `device`.
pub(super) fn uses(placement: &Placement, device: DeviceIndex) -> bool {
    placement.embed == device
        || placement.head == device
        || placement.layers.iter().any(|layer| {
            layer.home == device || layer.shares.iter().any(|share| share.device == device)
        })
}

impl Loaded {
    /// Clears the row counters and books the memory that an exchange writes with, so that an
    /// exchange cannot run out of memory.
    fn ready_to_exchange(&mut self, plan: &Plan<'_>, placement: &Placement) -> Result<()> {
        for lane in self.lanes.iter_mut().flatten() {
            (0..self.layers.len()).try_for_each(|layer| lane.clear_hits(layer))?;
        }
        if self.adapt.is_none() {
            return Ok(());
        }
        for (index, (layer, placed)) in self.layers.iter().zip(&placement.layers).enumerate() {
            let own = layer.own.iter().map(|own| (placed.home, own));
            let all = own.chain(layer.remotes.iter().map(|remote| (remote.device, &remote.ffn)));
            for (device, ffn) in all {
                let n = ffn.up.desc().n_rows;
                let none = Neurons::List([].into());
                let lane = self.lanes[device].as_mut().expect("a used device has a lane");
                if !ffn.vectors(plan, index, &none).is_empty() {
                    lane.queue.reserve(4 * n)?;
                }
            }
        }
        Ok(())
    }

    fn slow_ops(&self) -> Vec<String> {
        let remotes = self.layers.iter().flat_map(|l| l.remotes.iter().map(|r| &r.programs));
        let pieces = self.streams.iter().flatten().flat_map(Stream::ladders);
        let remotes = remotes.chain(pieces);
        let ladders = self.segments.iter().map(|s| &s.programs).chain([&self.head.programs]);
        let mut slow: Vec<String> = Vec::new();
        let legs = self.segments.iter().flat_map(|s| s.legs.iter().flat_map(|(_, legs)| legs));
        let legs = legs.flat_map(|leg| leg.program.slow());
        for text in ladders.chain(remotes).flat_map(Ladder::slow).chain(legs) {
            if !slow.contains(text) {
                slow.push(text.clone());
            }
        }
        slow
    }
}
