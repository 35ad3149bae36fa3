//! Sizes of a placement on its devices: shapes and bytes of tensors, scratch, caches, workspaces
//! and mailboxes, and the ops that a device must support. They are the input of the planner.
//!
//! Devices are asked for sizes and plans; nothing is allocated.

pub(crate) mod cost;
pub(crate) mod exchange;
mod guess;
mod held;
pub(crate) mod host;
pub(crate) mod lists;
pub(crate) mod programs;
mod refused;
pub(crate) mod scratch;
pub(crate) mod stream;
pub(crate) mod tiers;
mod workspace;

use std::cell::OnceCell;

use hal::{Device, HostRows, MailboxShape};

use model::{Ffn, LayerWeights, Model};
use placement::{DeviceIndex, LayerPlacement, Placement, Share};

use crate::ops::ffn::FfnMode;
use crate::options::{EngineOptions, NeuronReads};
use scratch::ScratchShape;

/// Everything except the placement that sizes depend on.
pub(crate) struct Sizing<'a> {
    pub(crate) model: &'a Model,
    /// All devices, the CPU first.
    pub(crate) devices: &'a [Device],
    pub(crate) options: &'a EngineOptions,
    pub(crate) mode: FfnMode,
    /// The result of [`Sizing::scratch`]: it depends on all layers, and is asked for per layer.
    scratch: OnceCell<ScratchShape>,
}

impl<'a> Sizing<'a> {
    pub(crate) fn new(
        model: &'a Model,
        devices: &'a [Device],
        options: &'a EngineOptions,
    ) -> Sizing<'a> {
        Sizing::with_mode(model, devices, options, FfnMode::new(model, options))
    }

    pub(crate) fn with_mode(
        model: &'a Model,
        devices: &'a [Device],
        options: &'a EngineOptions,
        mode: FfnMode,
    ) -> Sizing<'a> {
        Sizing { model, devices, options, mode, scratch: OnceCell::new() }
    }

    /// The feed-forward block of a layer. Panics for a layer without one.
    pub(crate) fn block(&self, index: usize) -> &'a Ffn {
        self.model.layers[index].ffn.as_ref().expect("the layer has a feed-forward block")
    }

    pub(crate) fn scratch(&self) -> &ScratchShape {
        self.scratch.get_or_init(|| {
            ScratchShape::new(self.model, self.options, self.devices.len(), self.counts_rows())
        })
    }

    pub(crate) fn mailbox_shape(&self) -> MailboxShape {
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

    /// Number of layers with this home that have neurons on other devices, and so a mailbox.
    pub(crate) fn n_mailboxes(&self, placement: &Placement, home: DeviceIndex) -> usize {
        let layers = placement.layers.iter().zip(&self.model.layers);
        let split = |(placed, layer): &(&LayerPlacement, &LayerWeights)| {
            placed.home == home && is_split(placed, layer.n_ff())
        };
        layers.filter(split).count()
    }

    /// Whether a predictor chooses neurons of a layer, and these may be read from disk alone.
    pub(crate) fn reads_neurons(&self, layer: usize) -> bool {
        let reads = self.options.paging.as_ref().map_or(NeuronReads::Layer, |by| by.neurons);
        reads != NeuronReads::Layer
            && self.mode.predictor(self.model, self.options, layer).is_some()
    }

    /// Bytes of a layer's weights in the file.
    pub(crate) fn layer_bytes(&self, layer: usize) -> u64 {
        let LayerWeights { frame, ffn, .. } = &self.model.layers[layer];
        let size = |rows: &HostRows| rows.desc().bytes().unwrap_or_default().0;
        let matrices = ffn.iter().flat_map(Ffn::matrices);
        let mut sum: u64 = matrices.map(|(_, rows)| size(rows)).sum();
        frame.for_each(&mut |_, rows| sum += size(rows));
        sum
    }
}

/// The device whose share of a layer adds `bias_down`: the home device if it has neurons of the
/// layer, so that an exchange of neurons does not move `bias_down`. `None` without neurons.
pub(crate) fn adding_device(placed: &LayerPlacement, n_ff: usize) -> Option<DeviceIndex> {
    let used = |share: &&Share| share.neurons.len(n_ff) > 0;
    let on_home = placed.shares.iter().find(|share| used(share) && share.device == placed.home);
    on_home.or(placed.shares.iter().find(used)).map(|share| share.device)
}

/// Whether some neurons of a layer are on a device other than its home.
fn is_split(placed: &LayerPlacement, n_ff: usize) -> bool {
    placed.shares.iter().any(|share| share.device != placed.home && share.neurons.len(n_ff) > 0)
}

pub(crate) fn is_used(placement: &Placement, device: DeviceIndex) -> bool {
    placement.embed == device
        || placement.head == device
        || placement.layers.iter().any(|layer| {
            layer.home == device || layer.shares.iter().any(|share| share.device == device)
        })
}
