//! A share of a feed-forward block on a device: which packs it needs and the op over them.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, Groups, Skip, SparseFfn};
use hal::{
    Bytes, Device, HostRows, Layout, Operand, PackDesc, Rows, Select, Source, Tensor, TensorDesc,
};

use crate::model::{self, Affine, Ffn, Model};
use crate::placement::Neurons;
use crate::predictor::Layers;

use super::build::Plan;
use super::predict::Chosen;
use super::{EngineOptions, Result, Sparsity};

/// How a model's feed-forward blocks are run; the same for all layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FfnMode {
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) skip: Skip,
    sparse: bool,
    /// Least score of the file's predictors.
    threshold: f32,
    predicts: bool,
    /// Predictors stand in no model file, and every block has one.
    learned: bool,
    repack: bool,
    /// Experts that a token uses.
    n_used: usize,
}

impl FfnMode {
    pub(super) fn new(model: &Model, options: &EngineOptions) -> FfnMode {
        let cut = options.has_thresholds();
        let exact = model.is_exactly_sparse() && options.sparsity != Sparsity::Off;
        FfnMode {
            kind: model.ffn_kind,
            activation: model.activation,
            skip: match exact {
                _ if cut => Skip::BelowPerRow,
                true => Skip::NotPositive,
                false => Skip::Never,
            },
            sparse: exact || cut,
            threshold: options.sparse_threshold.unwrap_or(model.predictor_threshold),
            predicts: options.predicts(model),
            learned: options.learned_layers().is_some(),
            repack: options.repack,
            n_used: model.hyper.experts.map_or(1, |experts| experts.n_used),
        }
    }

    /// Whether neurons are dropped at all.
    pub(super) fn is_sparse(self) -> bool {
        self.sparse
    }

    /// Whether predictors choose neurons, in the layers that have one.
    pub(super) fn predicts(self) -> bool {
        self.predicts
    }

    /// What chooses the neurons of block `layer` ahead.
    pub(super) fn chosen<'a>(
        self,
        model: &'a Model,
        options: &'a EngineOptions,
        layer: usize,
    ) -> Option<Chosen<'a>> {
        let ffn = &model.layers[layer].ffn;
        if !self.lists(ffn) {
            return None;
        }
        match (options.sparsity, options.learned_layers()) {
            (Sparsity::Within(target), Some(Layers::Predictors(layers))) => {
                layers.get(layer).map(|learned| Chosen::learned(learned, target))
            }
            (Sparsity::Predicted, Some(Layers::Imported { layers, threshold })) => {
                let threshold = options.sparse_threshold.unwrap_or(*threshold);
                layers.get(layer).map(|predictor| Chosen::of_file(predictor, threshold))
            }
            (Sparsity::Predicted, _) => {
                let predictor = ffn.predictor.as_ref();
                predictor.map(|predictor| Chosen::of_file(predictor, self.threshold))
            }
            (Sparsity::Within(_) | Sparsity::Exact | Sparsity::Off, _) => None,
        }
    }

    /// Down is made into rows per neuron where rows can be skipped, the file does not have them so, and weights may
    /// be laid out anew.
    fn transposes(self, ffn: &Ffn) -> bool {
        self.sparse && self.repack && !ffn.down_by_neuron
    }

    pub(super) fn orientation(self, ffn: &Ffn) -> Down {
        match self.transposes(ffn) || ffn.down_by_neuron {
            true => Down::ByNeuron,
            false => Down::AcrossNeurons,
        }
    }

    /// Neurons that have to stay together: a block of the format where down lies across neurons, or an expert.
    pub(super) fn unit(self, model: &Model) -> usize {
        let blocks = model.layers.iter().map(|layer| match self.orientation(&layer.ffn) {
            Down::ByNeuron => 1,
            Down::AcrossNeurons if layer.ffn.n_expert.is_some() => layer.ffn.down.w.desc().n_cols,
            Down::AcrossNeurons => layer.ffn.down.w.desc().format.block_values(),
        });
        blocks.max().unwrap_or(1)
    }

    /// Whether a predictor lists the block's neurons.
    fn lists(self, ffn: &Ffn) -> bool {
        let known = self.learned || ffn.predictor.is_some();
        self.predicts && known && self.orientation(ffn) == Down::ByNeuron
    }

    /// What of a block lies side by side on `device`: where a predictor lists neurons, what is read of one, so that it
    /// is one stretch of memory and not three. Only rows in one format can; down where it lies by neuron in the file.
    fn bundled(self, device: &Device, ffn: &Ffn) -> usize {
        let wanted = self.repack && device.takes_columns() && ffn.n_expert.is_none();
        if !wanted || !self.lists(ffn) {
            return 0;
        }
        let shape = |rows: &HostRows| (rows.desc().n_rows, rows.desc().format);
        let by_neuron =
            ffn.matrices().take_while(|(name, _)| *name != "ffn_down" || ffn.down_by_neuron);
        match by_neuron.take_while(|(_, rows)| shape(rows) == shape(&ffn.up.w)).count() {
            1 => 0,
            n => n,
        }
    }

    /// The matrices of a share, gate first. What is transposed of experts comes from their matrices side by side.
    pub(super) fn packs(self, device: &Device, ffn: &Ffn, neurons: &Neurons) -> Vec<PackedFfn> {
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
        let source = match ffn.n_expert {
            Some(n) if self.transposes(ffn) => {
                model::beside(&ffn.down.w, n).expect("experts' rows are whole blocks")
            }
            Some(_) | None => ffn.down.w.clone(),
        };
        let down = source.desc();
        let down = match (self.orientation(ffn), neurons) {
            (Down::ByNeuron, _) => of(down, &rows, self.transposes(ffn)),
            (Down::AcrossNeurons, Neurons::All) => of(down, &Select::All, false),
            (Down::AcrossNeurons, Neurons::List(list)) if ffn.n_expert.is_some() => {
                let (n_ff, n_out) = (down.n_cols as u32, ffn.up.w.desc().n_cols as u32);
                let experts = list.iter().step_by(down.n_cols).map(|&first| first / n_ff);
                let rows = experts.flat_map(|expert| expert * n_out..(expert + 1) * n_out);
                of(down, &Select::Rows(rows.collect()), false)
            }
            (Down::AcrossNeurons, Neurons::List(list)) => {
                let block = down.format.block_values();
                let blocks = list.iter().step_by(block).map(|&n| n / block as u32).collect();
                of(down, &Select::ColumnBlocks(blocks), false)
            }
        };
        let one = |name, rows: &HostRows, pack| {
            let cols = vec![rows.desc().n_cols];
            PackedFfn { name, rows: rows.clone(), pack, cols }
        };
        let mut packs: Vec<PackedFfn> = ffn
            .matrices()
            .map(|(name, matrix)| match name {
                "ffn_down" => one(name, &source, down.clone()),
                _ => one(name, matrix, of(matrix.desc(), &rows, false)),
            })
            .collect();
        let n = self.bundled(device, ffn);
        if n > 0 {
            let rest = packs.split_off(n);
            let cols = packs.iter().map(|part| part.rows.desc().n_cols).collect();
            let parts = packs.into_iter().map(|part| part.rows).collect();
            let bundle = model::bundle(parts).expect("as many rows, and one format");
            let pack = of(bundle.desc(), &rows, false);
            packs = vec![PackedFfn { name: "ffn_bundle", rows: bundle, pack, cols }];
            packs.extend(rest);
        }
        packs
    }

    /// The groups of a share, of whose neurons `n_below(n)` are below number `n` of all.
    fn groups(self, ffn: &Ffn, n_below: impl Fn(usize) -> usize) -> Option<Groups> {
        let n = ffn.n_expert?;
        let n_ff = ffn.up.w.desc().n_rows / n;
        let starts = (0..=n).map(|expert| n_below(expert * n_ff) as u32).collect();
        Some(Groups { starts, n_used: self.n_used })
    }

    /// Bytes of a share of `n` neurons on `device`. Packs that a device uses in place cost nothing there.
    pub(super) fn size(self, device: &Device, ffn: &Ffn, neurons: &Neurons, n: usize) -> Bytes {
        let matrices = self.packs(device, ffn, neurons);
        let matrices = matrices.iter().map(|PackedFfn { rows, pack, .. }| {
            device.pack_size(pack, matches!(rows.source(), Source::Mapped(_)))
        });
        let offset =
            |n| device.pack_size(&PackDesc::whole(TensorDesc::new(1, n, Format::F32)), false);
        let before = ffn.gate.iter().chain([&ffn.up]);
        let before = before.filter(|part| part.bias.is_some()).map(|_| offset(n));
        let cut = (self.skip == Skip::BelowPerRow).then(|| offset(n));
        let down = ffn
            .down
            .bias
            .as_ref()
            .map(|bias| device.pack_size(&PackDesc::whole(bias.desc()), false));
        matrices.chain(before).chain(down).chain(cut).sum()
    }

    /// Brings a share to `device`. What down adds, `bias_down`, one share of the layer brings for all.
    pub(super) fn import(
        self,
        plan: &Plan<'_>,
        device: &Device,
        layer: usize,
        neurons: &Neurons,
        bias_down: bool,
    ) -> Result<FfnTensors> {
        let ffn = &plan.model.layers[layer].ffn;
        let label = |part: &str| format!("blk.{layer}.{part}");
        let mut matrices = Vec::new();
        for PackedFfn { name, rows, pack, cols } in self.packs(device, ffn, neurons) {
            let tensor = plan.import(device, &label(name), &pack, &rows)?;
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
        let down = matrices.pop().expect("the last of the matrices is down");
        let up = matrices.pop().expect("up is before it");
        let offset = |part: &str, bias: Option<HostRows>| {
            bias.map(|bias| plan.vector(device, &label(part), &bias)).transpose()
        };
        let of = |part: &Affine| part.bias.as_ref().map(|bias| chosen(bias, neurons));
        Ok(FfnTensors {
            gate: matrices.pop(),
            up,
            down,
            bias_gate: offset("ffn_gate.bias", ffn.gate.as_ref().and_then(of))?,
            bias_up: offset("ffn_up.bias", of(&ffn.up))?,
            bias_down: offset("ffn_down.bias", ffn.down.bias.clone().filter(|_| bias_down))?,
            threshold: offset("ffn_threshold", cuts(plan.options, layer, neurons))?,
            groups: self.groups(ffn, |n| match neurons {
                Neurons::All => n,
                Neurons::List(list) => list.partition_point(|&neuron| (neuron as usize) < n),
            }),
            orientation: self.orientation(ffn),
        })
    }

    /// The op over tensors or, for planning, over their shapes.
    pub(super) fn op<T: Operand>(
        self,
        share: &FfnShare<T>,
        rows: Rows<T>,
        FfnPlace { x, weights, y, active, hits, accumulate }: FfnPlace<T>,
    ) -> SparseFfn<T> {
        let share = share.clone();
        SparseFfn {
            gate: share.gate,
            up: share.up,
            down: share.down,
            bias_gate: share.bias_gate,
            bias_up: share.bias_up,
            bias_down: share.bias_down,
            // What stands beside a block's own neurons has no thresholds: it is computed whole.
            skip: match self.skip == Skip::BelowPerRow && share.threshold.is_none() {
                true => Skip::Never,
                false => self.skip,
            },
            threshold: share.threshold,
            group_weight: weights,
            rows,
            x,
            y,
            active,
            hits,
            kind: self.kind,
            activation: self.activation,
            orientation: share.orientation,
            groups: share.groups,
            accumulate,
        }
    }

    /// The shapes of a share of `n` of the block's neurons.
    pub(super) fn shape(self, ffn: &Ffn, n: usize) -> FfnShare<TensorDesc> {
        let TensorDesc { n_cols: n_embd, format, .. } = ffn.up.w.desc();
        let orientation = self.orientation(ffn);
        let down = ffn.down.w.desc();
        let offset =
            |part: &Affine, n| part.bias.as_ref().map(|_| TensorDesc::new(1, n, Format::F32));
        FfnShare {
            gate: ffn.gate.as_ref().map(|gate| TensorDesc::new(n, n_embd, gate.w.desc().format)),
            up: TensorDesc::new(n, n_embd, format),
            down: match orientation {
                Down::ByNeuron if self.transposes(ffn) => TensorDesc {
                    layout: Layout::Transposed { n_source: ffn.up.w.desc().n_rows },
                    ..TensorDesc::new(n, n_embd, down.format)
                },
                Down::ByNeuron => TensorDesc::new(n, n_embd, down.format),
                Down::AcrossNeurons if ffn.n_expert.is_some() => {
                    TensorDesc::new(n.div_ceil(down.n_cols) * n_embd, down.n_cols, down.format)
                }
                Down::AcrossNeurons => TensorDesc::new(n_embd, n, down.format),
            },
            bias_gate: ffn.gate.as_ref().and_then(|gate| offset(gate, n)),
            bias_up: offset(&ffn.up, n),
            bias_down: ffn.down.bias.as_ref().map(HostRows::desc),
            threshold: (self.skip == Skip::BelowPerRow).then(|| TensorDesc::new(1, n, Format::F32)),
            groups: self.groups(ffn, |below| below.min(n)),
            orientation,
        }
    }
}

/// One or more matrices of a share on their way to a device.
pub(super) struct PackedFfn {
    pub(super) name: &'static str,
    pub(super) rows: HostRows,
    pub(super) pack: PackDesc,
    /// Columns of each; of more than one if they lie side by side.
    pub(super) cols: Vec<usize>,
}

/// The values of a vector over neurons that a share has.
pub(super) fn chosen(bias: &HostRows, neurons: &Neurons) -> HostRows {
    let Neurons::List(list) = neurons else {
        return bias.clone();
    };
    let bytes = bias.rows(0..1).expect("offsets are in memory");
    let values = list.iter().flat_map(|&n| &bytes[4 * n as usize..][..4]);
    let bytes: Vec<u8> = values.copied().collect();
    HostRows::new(Source::Owned(Arc::new(bytes)), 1, list.len(), Format::F32)
        .expect("four bytes a neuron")
}

/// What the activations of a share's neurons must reach, if thresholds drop them.
pub(super) fn cuts(options: &EngineOptions, layer: usize, neurons: &Neurons) -> Option<HostRows> {
    let (Sparsity::Within(target), Some(Layers::Thresholds(layers))) =
        (options.sparsity, options.learned_layers())
    else {
        return None;
    };
    let values = layers.get(layer)?.rows(target);
    Some(chosen(&super::predict::vector(&values), neurons))
}

/// Where a share's input and results are.
pub(super) struct FfnPlace<T> {
    pub(super) x: T,
    /// What each expert weighs for each token.
    pub(super) weights: Option<T>,
    pub(super) y: T,
    pub(super) active: T,
    /// Who carried each row through; `None` where nobody asks.
    pub(super) hits: Option<T>,
    /// Add to `y`.
    pub(super) accumulate: bool,
}

/// Gate, up and down of some neurons.
#[derive(Clone, Debug)]
pub(super) struct FfnShare<T> {
    pub(super) gate: Option<T>,
    pub(super) up: T,
    pub(super) down: T,
    pub(super) bias_gate: Option<T>,
    pub(super) bias_up: Option<T>,
    pub(super) bias_down: Option<T>,
    /// What each neuron's activation must reach.
    pub(super) threshold: Option<T>,
    pub(super) groups: Option<Groups>,
    pub(super) orientation: Down,
}

pub(super) type FfnTensors = FfnShare<Tensor>;

impl FfnTensors {
    /// The vectors over neurons of a share of block `layer`, and what they hold for `neurons`.
    pub(super) fn vectors(
        &self,
        plan: &Plan<'_>,
        layer: usize,
        neurons: &Neurons,
    ) -> Vec<(&Tensor, HostRows)> {
        let ffn = &plan.model.layers[layer].ffn;
        let of = |part: &Affine| part.bias.as_ref().map(|bias| chosen(bias, neurons));
        let all = [
            self.bias_gate.as_ref().zip(ffn.gate.as_ref().and_then(of)),
            self.bias_up.as_ref().zip(of(&ffn.up)),
            self.threshold.as_ref().zip(cuts(plan.options, layer, neurons)),
        ];
        all.into_iter().flatten().collect()
    }
}
