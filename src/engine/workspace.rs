//! What the ops of all programs need beside their operands: one workspace per device, reserved before anything is recorded.

use hal::{Bytes, OpDesc, Plan as Answer, TensorDesc};

use crate::placement::{Cut, DeviceIndex};

use super::build::Plan;
use super::options::Streaming;

impl Plan<'_> {
    /// The most that any op of any step takes on `device`, whatever part of a layer's neurons is there. Neither more
    /// tokens nor more neurons always take more: sums of few tokens are made in more parts, and so are those of fewer
    /// neurons.
    pub(super) fn workspace(&self, device: DeviceIndex) -> Bytes {
        let on = &self.devices[device];
        let need = |op: OpDesc| match on.plan(&op) {
            Answer::Yes { workspace, .. } => workspace,
            Answer::No(_) => Bytes(0),
        };
        let cut = Cut::new(self.model.hyper.n_ff, self.mode.unit(self.model));
        let ladder = self.options.ladder();
        let heads = ladder.iter().map(|&n| n.min(self.options.max_out()));
        let mut most = heads.flat_map(|n| self.head_ops(n)).map(need).max().unwrap_or_default();
        for layer in self.distinct_layers() {
            for &n_tokens in &ladder {
                for groups in 0..=cut.n_groups() {
                    let ops = self.layer_ops(layer, cut.neurons(groups), n_tokens);
                    most = ops.into_iter().map(need).fold(most, Bytes::max);
                }
            }
            if self.options.streaming != Streaming::Off && self.streams(layer) {
                let kind = self.kind(on, layer, self.piece_size());
                let rungs = self.streamed_rungs().into_iter();
                let ops = rungs.flat_map(|n_tokens| self.piece_ops(layer, &kind, n_tokens));
                most = ops.map(need).fold(most, Bytes::max);
            }
        }
        most
    }

    /// One of each kind of layer.
    fn distinct_layers(&self) -> Vec<usize> {
        let mut known: Vec<(Vec<TensorDesc>, Option<usize>)> = Vec::new();
        let mut distinct = Vec::new();
        for (index, layer) in self.model.layers.iter().enumerate() {
            let mut shape: Vec<TensorDesc> = Vec::new();
            layer.frame.each(&mut |_, rows| shape.push(rows.desc()));
            let ffn = layer.ffn.matrices().map(|(_, rows)| rows).chain(layer.ffn.biases());
            shape.extend(ffn.map(hal::HostRows::desc));
            let chosen = self.mode.chosen(self.model, self.options, index);
            shape.extend(chosen.iter().map(|chosen| chosen.fc2.desc()));
            let kind = (shape, layer.window);
            if !known.contains(&kind) {
                known.push(kind);
                distinct.push(index);
            }
        }
        distinct
    }
}
