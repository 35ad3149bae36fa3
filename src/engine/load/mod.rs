//! Loads a model onto devices according to a placement: imports weights, allocates scratch and
//! caches.
//!
//! Programs are recorded later, in `record/`.

pub(crate) mod ffn;
pub(crate) mod guess;
pub(crate) mod held;
mod import;
pub(crate) mod lane;
pub(crate) mod lists;

pub use import::to_repack;

use std::ops::Range;

use hal::{Device, KV_BLOCK, KvRows, Mailbox, Operand, Tensor};

use model::{Affine, Frame, LayerWeights, Ngrams};
use placement::{CPU, DeviceIndex, LayerPlacement, Neurons, Placement, Share};

use crate::error::Result;
use crate::ops::embed::Embedding;
use crate::ops::memory::{self, Cache, Memory};
use crate::ops::predict::{Predictor, vector};
use crate::paging::{Owner, PagedWeights, Stops};
use crate::size::exchange::neurons_by_side;
use crate::size::scratch::ScratchShape;
use crate::size::{Sizing, adding_device, is_used};
use ffn::FfnTensors;
use guess::RouterCopy;
use held::HeldExperts;
use lane::{HeadScratch, Lane};

/// A loaded layer, on its home device except for `remotes`.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) frame: Frame<Tensor>,
    /// RoPE frequencies; `None` in a layer without RoPE.
    pub(crate) freqs: Option<Tensor>,
    pub(crate) memory: Memory<Tensor>,
    /// Predicts the active neurons; `None` in a layer without a predictor.
    pub(crate) predictor: Option<Predictor<Tensor>>,
    /// Resident neurons; `None` if none is on the home device.
    pub(crate) own: Option<FfnTensors>,
    /// Mailbox for hand-offs; present if some neurons are on other devices.
    pub(crate) mailbox: Option<Mailbox>,
    /// Neurons on other devices.
    pub(crate) remotes: Vec<RemoteShare>,
    /// The next layer's router on the CPU; `None` if the CPU does not guess by it.
    pub(crate) next_router: Option<RouterCopy>,
}

/// Neurons of a layer on a device other than its home.
#[derive(Debug)]
pub(crate) struct RemoteShare {
    pub(crate) device: DeviceIndex,
    pub(crate) ffn: FfnTensors,
    /// Rows of this share in the numbering of absent rows over all remotes of the layer.
    pub(crate) rows: Range<u32>,
    /// Present if `ffn` has all experts of the layer in the file's order, of which only some are
    /// computed.
    pub(crate) held: Option<HeldExperts>,
}

impl Layer {
    /// Whether the CPU has this expert, if the CPU has any.
    pub(crate) fn has_expert(&self, expert: usize) -> bool {
        self.held_on(CPU).is_none_or(|held| held.has(expert))
    }

    /// The experts of the share on `device`, if it has all rows of the layer in the file's order.
    pub(crate) fn held_on(&self, device: DeviceIndex) -> Option<&HeldExperts> {
        self.remotes.iter().find(|remote| remote.device == device)?.held.as_ref()
    }
}

/// The output norm and matrix.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) device: DeviceIndex,
    /// `None` in models without an output norm.
    pub(crate) norm: Option<Affine<Tensor>>,
    /// The output matrix; `None` in encoders.
    pub(crate) output: Option<Tensor>,
    /// Bias of the logits; `None` without one.
    pub(crate) bias: Option<Tensor>,
    pub(crate) scratch: HeadScratch,
}

/// A model's weights, caches and scratch on its devices.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    /// One lane per device of the engine; `None` for an unused device.
    pub(crate) lanes: Vec<Option<Lane>>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) embed: Embedding<Tensor>,
    pub(crate) head: Head,
    /// Where each layer's programs are cut because weights are on disk; empty without such weights.
    pub(crate) stops: Vec<Stops>,
    /// The router's weights of the next layer as guessed in the present one,
    /// `[n_ubatch, n_expert]` on the CPU; `None` unless experts may be on disk.
    pub(crate) guess: Option<Tensor>,
    /// The table of n-grams, and the device whose layer adds their embeddings; `None` in models without
    /// them.
    pub(crate) ngrams: Option<(Ngrams, DeviceIndex)>,
}

impl LoadedModel {
    pub(crate) fn lane(&self, device: DeviceIndex) -> &Lane {
        lane(&self.lanes, device)
    }

    pub(crate) fn stops(&self, layer: usize) -> Stops {
        self.stops.get(layer).copied().unwrap_or_default()
    }

    pub(crate) fn clear_hits(&mut self) -> Result<()> {
        for lane in self.lanes.iter_mut().flatten() {
            (0..self.layers.len()).try_for_each(|layer| lane.clear_hits(layer))?;
        }
        Ok(())
    }
}

/// The lane of a device in use. Panics for an unused device.
pub(crate) fn lane(lanes: &[Option<Lane>], device: DeviceIndex) -> &Lane {
    lanes[device].as_ref().expect("a used device has a lane")
}

pub(crate) fn lane_mut(lanes: &mut [Option<Lane>], device: DeviceIndex) -> &mut Lane {
    lanes[device].as_mut().expect("a used device has a lane")
}

/// Allocates and fills a model's tensors on devices.
#[derive(Clone, Copy)]
pub(crate) struct Loader<'a> {
    pub(crate) sizing: &'a Sizing<'a>,
    /// Where the CPU's weights go that are partly on disk; `None` if all of them are in memory.
    pub(crate) paged: Option<&'a PagedWeights<'a>>,
    /// Called with the bytes of weights loaded so far and in total.
    pub(crate) progress: &'a dyn Fn(u64, u64),
}

impl Loader<'_> {
    /// Loads the model as `placement` says.
    ///
    /// # Errors
    /// Device errors; [`hal::Error::OutOfMemory`] if a device has less memory than planned.
    pub(crate) fn load(&self, placement: &Placement) -> Result<LoadedModel> {
        let sizing = self.sizing;
        let shape = sizing.scratch();
        let buckets = sizing.options.buckets();
        let mut lanes = Vec::new();
        // Without a layer on two devices, no neuron can move, and rows need not be counted.
        let exchanges = placement.layers.iter().any(|placed| neurons_by_side(placed).is_some());
        for (index, device) in sizing.devices.iter().enumerate() {
            let used = is_used(placement, index);
            let lane = used.then(|| Lane::new(device, shape, exchanges, &buckets)).transpose()?;
            // What is left of the budget holds weights, so it must be known.
            if lane.is_some() && (index != CPU || self.paged.is_some()) {
                device.reserve_workspace(sizing.workspace(index))?;
            }
            lanes.push(lane);
        }
        let mut mailboxes = self.mailboxes(placement)?;
        // Packs are made one by one: packing uses all threads, and the pages read for one pack are
        // released before the next.
        let (mut layers, mut done) = (Vec::new(), 0);
        let total = (0..placement.layers.len()).map(|i| sizing.layer_bytes(i)).sum();
        for (i, placed) in placement.layers.iter().enumerate() {
            let mut layer = self.layer(placed, &layers, &mut mailboxes)?;
            layer.next_router = self.next_router(i, placement)?;
            layers.push(layer);
            done += sizing.layer_bytes(i);
            (self.progress)(done, total);
        }
        let embed = self.embedding(&sizing.devices[placement.embed])?;
        let head = self.head(placement, &mut lanes, shape, &embed.tokens)?;
        let guess = self.guess(&lanes)?;
        let ngrams = sizing.model.ngrams.as_ref();
        let ngrams = ngrams.map(|by| (by.clone(), placement.layers[by.layer].home));
        Ok(LoadedModel { lanes, layers, embed, head, stops: Vec::new(), guess, ngrams })
    }

    /// For each device, a mailbox for each split layer whose home it is.
    fn mailboxes(&self, placement: &Placement) -> Result<Vec<Vec<Mailbox>>> {
        let sizing = self.sizing;
        let mut all = Vec::new();
        for (home, device) in sizing.devices.iter().enumerate() {
            all.push(match sizing.n_mailboxes(placement, home) {
                0 => Vec::new(),
                n => device.mailboxes(sizing.mailbox_shape(), n)?,
            });
        }
        Ok(all)
    }

    /// Loads the next layer; `before` has the layers before it.
    fn layer(
        &self,
        placed: &LayerPlacement,
        before: &[Layer],
        mailboxes: &mut [Vec<Mailbox>],
    ) -> Result<Layer> {
        let index = before.len();
        let Sizing { model, devices, options, mode, .. } = *self.sizing;
        let weights: &LayerWeights = &model.layers[index];
        let device = &devices[placed.home];
        let import = |part: &str, rows: &hal::HostRows| {
            let label = format!("blk.{index}.{part}");
            self.import_whole(device, Owner::Frame(index), &label, rows)
        };
        let n_ff = weights.n_ff();
        let is_empty = |share: &Share| share.neurons.len(n_ff) == 0;
        let adding = adding_device(placed, n_ff);
        let mut own = None;
        let mut remotes = Vec::new();
        let mut n_remote = 0;
        for share in &placed.shares {
            let on = &devices[share.device];
            if is_empty(share) {
                continue;
            }
            let adds = Some(share.device) == adding;
            let held = self.held_experts(index, placed, share);
            let neurons = if held.is_some() { &Neurons::All } else { &share.neurons };
            let ffn = self.share(on, index, neurons, adds)?;
            if share.device == placed.home {
                own = Some(ffn);
            } else {
                let rows = n_remote..n_remote + share.neurons.len(n_ff) as u32;
                n_remote = rows.end;
                remotes.push(RemoteShare { device: share.device, ffn, rows, held });
            }
        }
        let mailbox = if remotes.is_empty() { None } else { mailboxes[placed.home].pop() };
        let data = mode.predictor(model, options, index);
        let predictor = data.map(|data| self.predictor(index, data, placed));
        let predictor = predictor.transpose()?;
        Ok(Layer {
            frame: weights.frame.try_map(&mut |part, rows| import(part, rows))?,
            freqs: match weights.attention().and_then(|by| by.rope.as_ref()) {
                Some(rope) => Some(import("rope_freqs", &vector(rope.freqs(options.n_ctx)))?),
                None => None,
            },
            memory: self.memory(device, before)?,
            predictor,
            own,
            mailbox,
            remotes,
            next_router: None,
        })
    }

    /// The experts of a share that the CPU uses in place; `None` for any other share.
    fn held_experts(
        &self,
        index: usize,
        placed: &LayerPlacement,
        share: &Share,
    ) -> Option<HeldExperts> {
        let Neurons::List(list) = &share.neurons else { return None };
        let ffn = self.sizing.block(index);
        let held = self.sizing.holds_experts(index, placed, share);
        held.then(|| HeldExperts::new(ffn.n_expert().unwrap_or(1), ffn.n_per_expert(), list))
    }

    /// Allocates the KV cache or recurrent state of the next layer, unless it uses the cache of one
    /// of the layers `before` it.
    fn memory(&self, device: &Device, before: &[Layer]) -> Result<Memory<Tensor>> {
        let Sizing { model, options, .. } = *self.sizing;
        let weights = &model.layers[before.len()];
        let shapes = memory::of_layer(weights, options);
        let cache = match shapes.cache {
            None => None,
            Some(Cache::Shared(_)) => {
                let source = weights.frame.mixer.kv_source().and_then(|layer| before.get(layer));
                let cache = source.and_then(|layer| layer.memory.own_kv());
                Some(Cache::Shared(cache.expect("the model reader checked the source").clone()))
            }
            Some(Cache::Own(KvRows { k, .. })) if shapes.compressed.is_some() => {
                Some(Cache::Own(KvRows {
                    k: device.alloc("keys and compressed keys", k)?,
                    v: None,
                }))
            }
            Some(Cache::Own(KvRows { k, v })) => {
                let n_cols = KvRows { k: k.n_cols, v: v.map(|v| v.n_cols) };
                let formats = options.kv_formats;
                Some(Cache::Own(device.kv_rows(options.n_blocks(), n_cols, formats)?))
            }
        };
        let index = shapes.index.map(|index| {
            let v = index.v.map(|v| device.alloc("indexer keys and gates", v)).transpose()?;
            Ok::<_, hal::Error>(KvRows { k: device.alloc("indexer keys", index.k)?, v })
        });
        let index = index.transpose()?;
        let compressed = match &cache {
            Some(Cache::Own(cache)) if shapes.compressed.is_some() => {
                // They follow the rows of positions.
                let rows = options.n_blocks() * KV_BLOCK..cache.k.desc().n_rows;
                Some(KvRows { k: cache.k.rows(rows), v: None })
            }
            Some(Cache::Own(_) | Cache::Shared(_)) | None => None,
        };
        let state = |shape| device.alloc("state", shape);
        let states = shapes.states.into_iter().map(state).collect::<hal::Result<_>>()?;
        Ok(Memory {
            cache,
            index,
            compressed,
            states,
            ngrams: shapes.ngrams.map(state).transpose()?,
        })
    }

    fn guess(&self, lanes: &[Option<Lane>]) -> Result<Option<Tensor>> {
        let weights = lanes[CPU].as_ref().and_then(|lane| lane.scratch.weights.as_ref());
        let weights = weights.filter(|_| self.paged.is_some());
        let guess = weights.map(|weights| self.sizing.devices[CPU].alloc("guess", weights.desc()));
        Ok(guess.transpose()?)
    }

    fn embedding(&self, device: &Device) -> Result<Embedding<Tensor>> {
        let model = self.sizing.model;
        Embedding::new(model, &mut |label, rows| match label {
            // The head reads all of it.
            "token_embd" if model.is_tied() => self.import_whole(device, Owner::Model, label, rows),
            _ => self.import_unpaged(device, label, rows),
        })
    }

    fn head(
        &self,
        placement: &Placement,
        lanes: &mut [Option<Lane>],
        shape: &ScratchShape,
        embed: &Tensor,
    ) -> Result<Head> {
        let Sizing { model, devices, .. } = *self.sizing;
        let device = &devices[placement.head];
        let import = |label: &str, rows: &hal::HostRows| {
            self.import_whole(device, Owner::Model, label, rows)
        };
        let output = match &model.output {
            Some(_) if model.is_tied() && placement.head == placement.embed => Some(embed.clone()),
            Some(output) => Some(import("output", output)?),
            None => None,
        };
        let lane = lane_mut(lanes, placement.head);
        Ok(Head {
            device: placement.head,
            norm: (model.output_norm.as_ref())
                .map(|norm| norm.try_map("output_norm", &mut |label, rows| import(label, rows)))
                .transpose()?,
            bias: match &model.output_bias {
                Some(bias) => Some(import("output.bias", bias)?),
                None => None,
            },
            output,
            scratch: lane.head_scratch(shape)?,
        })
    }
}
