//! Workspace of the ops of all programs: one per device, reserved before recording.

use std::mem::{Discriminant, discriminant};

use hal::{Bytes, OpDesc, Plan as Answer, TensorDesc};

use model::{AttentionSizes, Mixer};
use placement::{Cut, DeviceIndex};

use super::Sizing;
use crate::options::Streaming;

impl Sizing<'_> {
    /// The maximum workspace of any op of any step on `device`, for any share of a layer's neurons.
    /// More tokens or neurons do not always need a larger workspace: in decode, or with few
    /// neurons, sums are split into more slices.
    pub(crate) fn workspace(&self, device: DeviceIndex) -> Bytes {
        let on = &self.devices[device];
        let need = |op: OpDesc| match on.plan(&op) {
            Answer::Yes { workspace, .. } => workspace,
            Answer::No(_) => Bytes(0),
        };
        let cuts = self.mode.cuts(self.model);
        let buckets = self.options.buckets();
        let heads = buckets.iter().map(|&n| n.min(self.options.max_out()));
        let mut most = heads.flat_map(|n| self.head_ops(n)).map(need).max().unwrap_or_default();
        let embeds = buckets.iter().flat_map(|&n| self.embed_ops(n));
        most = embeds.map(need).fold(most, Bytes::max);
        for layer in self.distinct_layers() {
            let cut: &Cut = &cuts[layer];
            for &n_tokens in &buckets {
                for groups in 0..=cut.n_groups() {
                    let ops = self.layer_ops(layer, cut.neurons(groups), n_tokens);
                    most = ops.into_iter().map(need).fold(most, Bytes::max);
                }
            }
            if self.options.streaming != Streaming::Off && self.can_stream(layer) {
                let kind = self.chunk_shape(on, layer, self.chunk_size());
                let streamed = self.streamed_buckets().into_iter();
                let ops = streamed.flat_map(|n_tokens| self.chunk_ops(layer, &kind, n_tokens));
                most = ops.map(need).fold(most, Bytes::max);
            }
        }
        most
    }

    /// Index of the first layer of each distinct shape.
    pub(super) fn distinct_layers(&self) -> Vec<usize> {
        let mut known: Vec<(Vec<TensorDesc>, Option<AttentionSizes>, Discriminant<Mixer>)> =
            Vec::new();
        let mut distinct = Vec::new();
        for (index, layer) in self.model.layers.iter().enumerate() {
            let mut shape: Vec<TensorDesc> = Vec::new();
            layer.frame.for_each(&mut |_, rows| shape.push(rows.desc()));
            if let Some(ffn) = &layer.ffn {
                let rows = ffn.matrices().map(|(_, rows)| rows).chain(ffn.biases());
                shape.extend(rows.map(hal::HostRows::desc));
            }
            let predictor = self.mode.predictor(self.model, self.options, index);
            shape.extend(predictor.iter().map(|predictor| predictor.fc2.desc()));
            let sizes = layer.attention().map(|by| by.sizes);
            let kind = (shape, sizes, discriminant(&layer.frame.mixer));
            if !known.contains(&kind) {
                known.push(kind);
                distinct.push(index);
            }
        }
        distinct
    }
}
