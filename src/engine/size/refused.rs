//! Why a device cannot hold or compute a layer, the embedding or the head, with the device's own
//! reason.

use hal::op::MAX_COUNTED_TOKENS;
use hal::{DeviceKind, OpDesc, Plan as Answer};

use placement::{Cut, DeviceIndex, LayerSizes};

use super::Sizing;

impl Sizing<'_> {
    /// The first of `ops` that `device` cannot run, with the reason; `None` if it can run all.
    fn refusal_of(
        &self,
        device: DeviceIndex,
        ops: impl IntoIterator<Item = OpDesc>,
    ) -> Option<String> {
        let on = &self.devices[device];
        ops.into_iter().find_map(|op| match on.plan(&op) {
            Answer::Yes { .. } => None,
            Answer::No(reason) => Some(format!("{}: {reason}", op.name())),
        })
    }

    /// Whether the experts of a layer have a larger width than the residual.
    pub(crate) fn is_wider(&self, layer: usize) -> bool {
        let Some(ffn) = &self.model.layers[layer].ffn else { return false };
        ffn.width() > self.model.hyper.n_embd
    }

    /// Why `device` cannot run a layer with `n` of its neurons, in steps of any size; `None` if it
    /// can.
    pub(crate) fn refuses_layer(
        &self,
        device: DeviceIndex,
        layer: usize,
        n: usize,
    ) -> Option<String> {
        if n < self.model.layers[layer].n_ff() && !self.devices[device].info().hand_off {
            return Some("it does not support hand-offs to the CPU".to_owned());
        }
        if n < self.model.layers[layer].n_ff() && self.is_wider(layer) {
            return Some(
                "its experts are wider than the residual, which hand-offs carry".to_owned(),
            );
        }
        let n_tokens = self.options.n_ubatch;
        [n_tokens, n_tokens.min(MAX_COUNTED_TOKENS)]
            .into_iter()
            .find_map(|n_tokens| self.refusal_of(device, self.layer_ops(layer, n, n_tokens)))
    }

    pub(crate) fn refuses_embed(&self, device: DeviceIndex) -> Option<String> {
        self.refusal_of(device, self.embed_ops(self.options.n_ubatch))
    }

    pub(crate) fn refuses_head(&self, device: DeviceIndex) -> Option<String> {
        self.refusal_of(device, self.head_ops(self.options.max_out()))
    }

    /// Number of splits of a layer that `device` can run. Split `k`, from 0, puts the first `k`
    /// groups of neurons on `device`.
    pub(crate) fn n_splits(&self, device: DeviceIndex, layer: usize, cut: &Cut) -> usize {
        // Splitting a layer gains nothing in unified memory, which both processors read.
        if self.devices[device].info().kind == DeviceKind::Integrated {
            return 0;
        }
        let runs = |k: usize| self.refuses_layer(device, layer, cut.neurons(k)).is_none();
        if !runs(0) {
            return 0;
        }
        // A device that rejects an operand also rejects larger operands, so bisection finds the
        // limit. Most devices have none.
        let (mut low, mut high) = (0, cut.n_groups());
        if high > 1 && runs(high - 1) {
            return high;
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if runs(middle) { low = middle } else { high = middle }
        }
        low + 1
    }

    /// Messages about layers, embedding and head that cannot be on `device`, whatever its budget.
    /// `layers` has the sizes of the layers on the device.
    pub(crate) fn refusal_notes(&self, device: DeviceIndex, layers: &[LayerSizes]) -> Vec<String> {
        let n_layer = layers.len();
        let apart = self.devices[device].info().kind != DeviceKind::Integrated;
        let refused_layers = |lacks: &dyn Fn(usize, &LayerSizes) -> bool, all: bool| {
            let mut lacking = layers.iter().enumerate().filter(|(i, layer)| lacks(*i, layer));
            let (first, _) = lacking.next()?;
            let n = if all { self.model.layers[first].n_ff() } else { 0 };
            Some((1 + lacking.count(), self.refuses_layer(device, first, n)?))
        };
        let has_neurons = |i: usize| self.model.layers[i].ffn.is_some();
        let whole = refused_layers(&|_, layer| layer.whole.is_none(), true);
        let split =
            refused_layers(&|i, layer| apart && has_neurons(i) && layer.shares.is_empty(), false);
        let message = |placed: &str, (n, reason): (usize, String)| {
            format!("{n} of {n_layer} layers cannot be {placed} ({reason})")
        };
        let mut all: Vec<String> = match (whole, split) {
            (Some(whole), Some(split)) if whole == split => {
                vec![message("placed on this device, whole or split with the CPU", whole)]
            }
            (whole, split) => {
                let whole = whole.map(|whole| message("placed whole on this device", whole));
                let split = split.map(|split| message("split with the CPU", split));
                whole.into_iter().chain(split).collect()
            }
        };
        let end = |name, reason: Option<String>| {
            reason.map(|reason| format!("the {name} cannot be placed on this device ({reason})"))
        };
        all.extend(end("embedding", self.refuses_embed(device)));
        all.extend(end("head", self.refuses_head(device)));
        all
    }
}
