//! A device's share of a feed-forward block, loaded.

use hal::{Device, HostRows, Tensor};

use model::Affine;
use placement::Neurons;

use super::Loader;
use crate::error::Result;
use crate::ops::ffn::{FfnShare, PackedFfn, select_values, thresholds};
use crate::paging::Owner;
use crate::size::Sizing;

pub(crate) type FfnTensors = FfnShare<Tensor>;

impl FfnTensors {
    /// The per-neuron vectors of a share of block `layer`, each with its values for `neurons`.
    pub(crate) fn vectors(
        &self,
        sizing: &Sizing<'_>,
        layer: usize,
        neurons: &Neurons,
    ) -> Vec<(&Tensor, HostRows)> {
        let ffn = sizing.block(layer);
        let of = |part: &Affine| part.bias.as_ref().map(|bias| select_values(bias, neurons));
        let all = [
            self.bias_gate.as_ref().zip(ffn.gate.as_ref().and_then(of)),
            self.bias_up.as_ref().zip(of(&ffn.up)),
            self.threshold.as_ref().zip(thresholds(sizing.options, layer, neurons)),
        ];
        all.into_iter().flatten().collect()
    }
}

impl Loader<'_> {
    /// Loads a share onto `device`. `bias_down` says whether this share adds the bias of down; one
    /// share per layer does.
    pub(crate) fn share(
        &self,
        device: &Device,
        layer: usize,
        neurons: &Neurons,
        bias_down: bool,
    ) -> Result<FfnTensors> {
        let Loader { sizing, .. } = self;
        let mode = sizing.mode;
        let ffn = sizing.block(layer);
        let label = |part: &str| format!("blk.{layer}.{part}");
        let mut matrices = Vec::new();
        for PackedFfn { matrix, rows, pack, cols } in mode.packs(device, ffn, neurons) {
            let tensor =
                self.import(device, Owner::Neurons(layer), &label(matrix.label()), &pack, &rows)?;
            if cols.len() < 2 {
                matrices.push(tensor);
                continue;
            }
            let mut at = 0;
            for n in cols {
                matrices.push(tensor.columns(at..at + n));
                at += n;
            }
        }
        let down = matrices.pop().expect("the last matrix is down");
        let up = matrices.pop().expect("up precedes down");
        let import = |part: &str, bias: Option<HostRows>| {
            bias.map(|bias| self.vector(device, &label(part), &bias)).transpose()
        };
        let of = |part: &Affine| part.bias.as_ref().map(|bias| select_values(bias, neurons));
        Ok(FfnTensors {
            gate: matrices.pop(),
            up,
            down,
            bias_gate: import("ffn_gate.bias", ffn.gate.as_ref().and_then(of))?,
            bias_up: import("ffn_up.bias", of(&ffn.up))?,
            bias_down: import("ffn_down.bias", ffn.down.bias.clone().filter(|_| bias_down))?,
            threshold: import("ffn_threshold", thresholds(sizing.options, layer, neurons))?,
            experts: mode.expert_ranges(ffn, |n| match neurons {
                Neurons::All => n,
                Neurons::List(list) => list.partition_point(|&neuron| (neuron as usize) < n),
            }),
            activation: ffn.activation,
            gaussian_cut: ffn.gaussian_cut,
            orientation: mode.orientation(ffn),
        })
    }
}
