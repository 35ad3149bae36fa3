//! What a device cannot hold or compute of a model, in its own words.

use hal::op::{AddPositions, GetRows, MOST_COUNTED};
use hal::{DeviceKind, OpDesc, Plan as Answer};

use crate::placement::{Cut, DeviceIndex, LayerSizes};

use super::build::Plan;

impl Plan<'_> {
    /// Why `device` cannot run all of `ops`; `None` if it can.
    fn refuses(
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

    /// Why it cannot run a layer with `n` of its neurons, in steps of any size.
    pub(super) fn refuses_layer(
        &self,
        device: DeviceIndex,
        layer: usize,
        n: usize,
    ) -> Option<String> {
        if n < self.model.hyper.n_ff && !self.devices[device].info().hand_off {
            return Some("it hands nothing over to the CPU".to_owned());
        }
        let n_tokens = self.options.n_ubatch;
        [n_tokens, n_tokens.min(MOST_COUNTED)]
            .into_iter()
            .find_map(|n_tokens| self.refuses(device, self.layer_ops(layer, n, n_tokens)))
    }

    pub(super) fn refuses_embed(&self, device: DeviceIndex) -> Option<String> {
        let x = self.f32(self.options.n_ubatch, self.model.hyper.n_embd);
        let rows =
            GetRows { table: self.model.token_embd.desc(), batch: self.batch(), y: x, scale: 1.0 };
        let positions = self.model.positions.as_ref().map(|table| {
            let (batch, offset) = (self.batch(), table.offset);
            AddPositions { table: table.rows.desc(), batch, x, offset }.into()
        });
        self.refuses(device, [rows.into()].into_iter().chain(positions))
    }

    pub(super) fn refuses_head(&self, device: DeviceIndex) -> Option<String> {
        self.refuses(device, self.head_ops(self.options.max_out()))
    }

    /// How many numbers of groups, from 0 on, `device` can run of a split layer.
    pub(super) fn most_groups(&self, device: DeviceIndex, layer: usize, cut: &Cut) -> usize {
        // Where memory is one, nothing is gained by two sides reading it.
        if self.devices[device].info().kind == DeviceKind::Integrated {
            return 0;
        }
        let runs = |k: usize| self.refuses_layer(device, layer, cut.neurons(k)).is_none();
        if !runs(0) {
            return 0;
        }
        // Larger operands are refused sooner, so the boundary is found by bisection.
        let (mut low, mut high) = (0, cut.n_groups());
        while high - low > 1 {
            let middle = low.midpoint(high);
            if runs(middle) { low = middle } else { high = middle }
        }
        low + 1
    }

    /// What of the model cannot be on `device`, whatever its budget, a sentence each. `layers` are what it can hold.
    pub(super) fn refused(&self, device: DeviceIndex, layers: &[LayerSizes]) -> Vec<String> {
        let (n_ff, of) = (self.model.hyper.n_ff, layers.len());
        let apart = self.devices[device].info().kind != DeviceKind::Integrated;
        let those = |lacks: &dyn Fn(&LayerSizes) -> bool, n: usize| {
            let mut lacking = layers.iter().enumerate().filter(|(_, layer)| lacks(layer));
            let (first, _) = lacking.next()?;
            Some((1 + lacking.count(), self.refuses_layer(device, first, n)?))
        };
        let whole = those(&|layer| layer.whole.is_none(), n_ff);
        let split = those(&|layer| apart && layer.shares.is_empty(), 0);
        let tell = |what: &str, (n, reason): (usize, String)| {
            format!("{n} of {of} layers cannot be {what} ({reason})")
        };
        let mut all: Vec<String> = match (whole, split) {
            (Some(whole), Some(split)) if whole == split => {
                vec![tell("there, whole or split with the CPU", whole)]
            }
            (whole, split) => {
                let whole = whole.map(|whole| tell("there whole", whole));
                let split = split.map(|split| tell("split with the CPU", split));
                whole.into_iter().chain(split).collect()
            }
        };
        let end = |what, reason: Option<String>| {
            reason.map(|reason| format!("the {what} cannot be there ({reason})"))
        };
        all.extend(end("embedding", self.refuses_embed(device)));
        all.extend(end("head", self.refuses_head(device)));
        all
    }
}
