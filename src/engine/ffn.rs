//! A share of a feed-forward block on a device: which packs it needs and the op over them.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, Skip, SparseFfn};
use hal::{Bytes, Device, Layout, Operand, PackDesc, Rows, Select, Tensor, TensorDesc};

use crate::model::{self, Ffn, Model};
use crate::placement::Neurons;

use super::build::Plan;
use super::predict::list_desc;
use super::{EngineOptions, Result, Sparsity};

/// How a model's feed-forward blocks are run; the same for all layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FfnMode {
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) skip: Skip,
    sparse: bool,
    /// Least score of a predictor; `None` where predictors are not used.
    threshold: Option<f32>,
    repack: bool,
}

impl FfnMode {
    pub(super) fn new(model: &Model, options: &EngineOptions) -> FfnMode {
        let sparse = model.is_exactly_sparse() && options.sparsity != Sparsity::Off;
        let threshold = options.sparse_threshold.unwrap_or(model.predictor_threshold);
        FfnMode {
            kind: model.ffn_kind,
            activation: model.activation,
            skip: if sparse { Skip::NotPositive } else { Skip::Never },
            sparse,
            threshold: options.predicts(model).then_some(threshold),
            repack: options.repack,
        }
    }

    /// Whether neurons are dropped at all.
    pub(super) fn is_sparse(self) -> bool {
        self.sparse
    }

    /// Whether predictors choose neurons, in the layers that have one.
    pub(super) fn predicts(self) -> bool {
        self.threshold.is_some()
    }

    /// The predictor that chooses a block's neurons and its least score.
    pub(super) fn predictor(self, ffn: &Ffn) -> Option<(&model::Predictor, f32)> {
        let listed = self.orientation(ffn) == Down::ByNeuron;
        ffn.predictor.as_ref().zip(self.threshold).filter(|_| listed)
    }

    /// Down is made into rows per neuron where rows can be skipped, the file does not have them so, and weights may
    /// be laid out anew.
    fn transposes(self, ffn: &Ffn) -> bool {
        self.sparse && self.repack && !ffn.down_by_neuron
    }

    fn orientation(self, ffn: &Ffn) -> Down {
        match self.transposes(ffn) || ffn.down_by_neuron {
            true => Down::ByNeuron,
            false => Down::AcrossNeurons,
        }
    }

    /// Neurons that have to stay together: a block of the format where down lies across neurons.
    pub(super) fn unit(self, model: &Model) -> usize {
        let blocks = model.layers.iter().map(|layer| match self.orientation(&layer.ffn) {
            Down::ByNeuron => 1,
            Down::AcrossNeurons => layer.ffn.down.desc().format.block_values(),
        });
        blocks.max().unwrap_or(1)
    }

    /// Packs of gate (and up, which is alike) and of down.
    pub(super) fn packs(self, ffn: &Ffn, neurons: &Neurons) -> [PackDesc; 3] {
        let rows = match neurons {
            Neurons::All => Select::All,
            Neurons::List(list) => Select::Rows(Arc::clone(list)),
        };
        let of = |source: TensorDesc, select: &Select, transpose| PackDesc {
            source,
            select: select.clone(),
            transpose,
            spare: 0,
        };
        let down = ffn.down.desc();
        let down = match (self.orientation(ffn), neurons) {
            (Down::ByNeuron, _) => of(down, &rows, self.transposes(ffn)),
            (Down::AcrossNeurons, Neurons::All) => of(down, &Select::All, false),
            (Down::AcrossNeurons, Neurons::List(list)) => {
                let block = down.format.block_values();
                let blocks = list.iter().step_by(block).map(|&n| n / block as u32).collect();
                of(down, &Select::ColumnBlocks(blocks), false)
            }
        };
        [of(ffn.gate.desc(), &rows, false), of(ffn.up.desc(), &rows, false), down]
    }

    /// Bytes of a share on `device`. Packs that a device uses in place cost nothing there.
    pub(super) fn size(self, device: &Device, ffn: &Ffn, neurons: &Neurons) -> Bytes {
        let mapped = |transpose: bool| !transpose && *neurons == Neurons::All;
        self.packs(ffn, neurons).iter().map(|p| device.pack_size(p, mapped(p.transpose))).sum()
    }

    /// Brings a share to `device`.
    pub(super) fn import(
        self,
        plan: &Plan<'_>,
        device: &Device,
        layer: usize,
        neurons: &Neurons,
    ) -> Result<FfnTensors> {
        let ffn = &plan.model.layers[layer].ffn;
        let [gate, up, down] = self.packs(ffn, neurons);
        let label = |part: &str| format!("blk.{layer}.{part}");
        Ok(FfnTensors {
            gate: plan.import(device, &label("ffn_gate"), &gate, &ffn.gate)?,
            up: plan.import(device, &label("ffn_up"), &up, &ffn.up)?,
            down: plan.import(device, &label("ffn_down"), &down, &ffn.down)?,
            orientation: self.orientation(ffn),
        })
    }

    /// The op over tensors or, for planning, over their shapes.
    pub(super) fn op<T: Operand>(
        self,
        share: &FfnShare<T>,
        rows: Rows<T>,
        x: T,
        y: T,
        active: T,
    ) -> SparseFfn<T> {
        SparseFfn {
            gate: Some(share.gate.clone()),
            up: share.up.clone(),
            down: share.down.clone(),
            bias_gate: None,
            bias_up: None,
            bias_down: None,
            threshold: None,
            group_of: None,
            group_weight: None,
            rows,
            x,
            y,
            active,
            kind: self.kind,
            activation: self.activation,
            skip: self.skip,
            orientation: share.orientation,
            accumulate: false,
        }
    }

    /// The shapes of a share of `n` of the block's neurons.
    pub(super) fn shape(self, ffn: &Ffn, n: usize) -> FfnShare<TensorDesc> {
        let TensorDesc { n_cols: n_embd, format, .. } = ffn.gate.desc();
        let orientation = self.orientation(ffn);
        let down_format = ffn.down.desc().format;
        let down = match orientation {
            Down::ByNeuron if self.transposes(ffn) => TensorDesc {
                layout: Layout::Transposed { n_source: ffn.down.desc().n_cols },
                ..TensorDesc::new(n, n_embd, down_format)
            },
            Down::ByNeuron => TensorDesc::new(n, n_embd, down_format),
            Down::AcrossNeurons => TensorDesc::new(n_embd, n, down_format),
        };
        FfnShare {
            gate: TensorDesc::new(n, n_embd, format),
            up: TensorDesc::new(n, n_embd, ffn.up.desc().format),
            down,
            orientation,
        }
    }

    /// The op that a device is asked about before a share of `n` neurons is placed on it.
    pub(super) fn desc(self, ffn: &Ffn, n: usize, n_tokens: usize) -> hal::OpDesc {
        let share = self.shape(ffn, n);
        let f32 = |rows, cols| TensorDesc::new(rows, cols, Format::F32);
        let x = f32(n_tokens, share.gate.n_cols);
        let rows = match self.predictor(ffn) {
            Some((predictor, _)) => Rows::Active(list_desc(predictor.fc2.desc().n_rows, n_tokens)),
            None => Rows::All,
        };
        self.op(&share, rows, x, x, f32(1, n_tokens)).into()
    }
}

/// Gate, up and down of some neurons.
#[derive(Clone, Debug)]
pub(super) struct FfnShare<T> {
    pub(super) gate: T,
    pub(super) up: T,
    pub(super) down: T,
    pub(super) orientation: Down,
}

pub(super) type FfnTensors = FfnShare<Tensor>;
