//! A device's share of a feed-forward block: its packs and the op over them.

use std::sync::Arc;

use hal::format::Format;
use hal::op::{Activation, Down, FfnKind, Groups, Skip, SparseFfn};
use hal::{
    Bytes, Device, HostRows, Layout, Operand, PackDesc, Rows, Select, Source, Tensor, TensorDesc,
};

use model::chooser::Layers;
use model::{self, Affine, Ffn, Model};
use placement::{Cut, Neurons};

use super::build::Plan;
use super::predict::Chosen;
use super::{EngineOptions, Result, Sparsity};

/// How the feed-forward blocks of a model are run; the same for all layers.
#[derive(Clone, Copy, Debug)]
pub(super) struct FfnMode {
    pub(super) kind: FfnKind,
    pub(super) activation: Activation,
    pub(super) skip: Skip,
    sparse: bool,
    /// Minimum score of a neuron with the file's predictors.
    threshold: f32,
    predicts: bool,
    /// Predictors come from the side file, and every block has one.
    learned: bool,
    repack: bool,
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
        }
    }

    /// Whether neurons are skipped at all.
    pub(super) fn is_sparse(self) -> bool {
        self.sparse
    }

    /// Whether predictors choose neurons, in the layers that have a predictor.
    pub(super) fn predicts(self) -> bool {
        self.predicts
    }

    /// The predictor of block `layer`, if it has one.
    pub(super) fn chosen<'a>(
        self,
        model: &'a Model,
        options: &'a EngineOptions,
        layer: usize,
    ) -> Option<Chosen<'a>> {
        let ffn = model.layers[layer].ffn.as_ref()?;
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

    /// Whether down is transposed into one row per neuron: where rows can be skipped, the file has
    /// the other orientation, and weights may be repacked.
    fn transposes(self, ffn: &Ffn) -> bool {
        self.sparse && self.repack && !ffn.down_by_neuron
    }

    pub(super) fn orientation(self, ffn: &Ffn) -> Down {
        match self.transposes(ffn) || ffn.down_by_neuron {
            true => Down::ByNeuron,
            false => Down::AcrossNeurons,
        }
    }

    /// How the neurons of each layer can be divided: into units that have to stay together, which
    /// are a block of the format where down is not transposed, or an expert.
    pub(super) fn cuts(self, model: &Model) -> Vec<Cut> {
        let unit = |ffn: &Ffn| match self.orientation(ffn) {
            Down::ByNeuron => 1,
            Down::AcrossNeurons if ffn.experts.is_some() => ffn.down.w.desc().n_cols,
            Down::AcrossNeurons => ffn.down.w.desc().format.block_values(),
        };
        let layers = model.layers.iter();
        layers.map(|layer| Cut::new(layer.n_ff(), layer.ffn.as_ref().map_or(1, unit))).collect()
    }

    /// Whether a predictor lists the block's neurons.
    fn lists(self, ffn: &Ffn) -> bool {
        let known = self.learned || ffn.predictor.is_some();
        self.predicts && known && self.orientation(ffn) == Down::ByNeuron
    }

    /// Number of matrices bundled on `device`: where a predictor lists neurons, the rows of a
    /// neuron are stored together, so that they are one contiguous read and not three. Only rows
    /// in one format can be bundled, and down only where the file has one row per neuron.
    fn bundled(self, device: &Device, ffn: &Ffn) -> usize {
        let wanted = self.repack && device.takes_columns() && ffn.experts.is_none();
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

    /// The matrices of a share, gate first. Transposed matrices of experts are made from the
    /// experts' matrices side by side.
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
        let source = match ffn.n_expert() {
            Some(n) if self.transposes(ffn) => {
                model::beside(&ffn.down.w, n).expect("experts' rows are whole blocks")
            }
            Some(_) | None => ffn.down.w.clone(),
        };
        let down = source.desc();
        let down = match (self.orientation(ffn), neurons) {
            (Down::ByNeuron, _) => of(down, &rows, self.transposes(ffn)),
            (Down::AcrossNeurons, Neurons::All) => of(down, &Select::All, false),
            (Down::AcrossNeurons, Neurons::List(list)) if ffn.experts.is_some() => {
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
            let bundle = model::bundle(parts).expect("the rows have equal counts and one format");
            let pack = of(bundle.desc(), &rows, false);
            packs = vec![PackedFfn { name: "ffn_bundle", rows: bundle, pack, cols }];
            packs.extend(rest);
        }
        packs
    }

    /// The groups of a share, where `n_below(n)` of its neurons have a number below `n`.
    fn groups(self, ffn: &Ffn, n_below: impl Fn(usize) -> usize) -> Option<Groups> {
        let experts = ffn.experts.as_ref()?;
        let n_each = ffn.n_each();
        let starts = (0..=experts.n).map(|expert| n_below(expert * n_each) as u32).collect();
        Some(Groups { starts, n_used: experts.n_used })
    }

    /// Bytes of a share of `n` neurons on `device`. Packs that a device uses in place cost
    /// nothing.
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

    /// Loads a share onto `device`. Only one share per layer has `bias_down`.
    pub(super) fn import(
        self,
        plan: &Plan<'_>,
        device: &Device,
        layer: usize,
        neurons: &Neurons,
        bias_down: bool,
    ) -> Result<FfnTensors> {
        let ffn = plan.block(layer);
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
            // The shared expert has no thresholds and is computed whole.
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
                Down::AcrossNeurons if ffn.experts.is_some() => {
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

/// One or more matrices of a share to be packed for a device.
pub(super) struct PackedFfn {
    pub(super) name: &'static str,
    pub(super) rows: HostRows,
    pub(super) pack: PackDesc,
    /// Columns of each matrix; several if they are side by side.
    pub(super) cols: Vec<usize>,
}

/// The values of a per-neuron vector for the neurons of a share.
pub(super) fn chosen(bias: &HostRows, neurons: &Neurons) -> HostRows {
    let Neurons::List(list) = neurons else {
        return bias.clone();
    };
    let bytes = bias.rows(0..1).expect("biases are in memory");
    let values = list.iter().flat_map(|&n| &bytes[4 * n as usize..][..4]);
    let bytes: Vec<u8> = values.copied().collect();
    HostRows::new(Source::Owned(Arc::new(bytes)), 1, list.len(), Format::F32)
        .expect("four bytes per neuron")
}

/// The thresholds on the activations of a share's neurons, if it uses thresholds.
pub(super) fn cuts(options: &EngineOptions, layer: usize, neurons: &Neurons) -> Option<HostRows> {
    let (Sparsity::Within(target), Some(Layers::Thresholds(layers))) =
        (options.sparsity, options.learned_layers())
    else {
        return None;
    };
    let values = layers.get(layer)?.rows(target);
    Some(chosen(&super::predict::vector(&values), neurons))
}

/// Inputs and outputs of a share's op.
pub(super) struct FfnPlace<T> {
    pub(super) x: T,
    /// Weight of each expert for each token.
    pub(super) weights: Option<T>,
    pub(super) y: T,
    pub(super) active: T,
    /// Counters of the tokens for which each row was active; `None` where rows are not counted.
    pub(super) hits: Option<T>,
    /// Whether to add to `y`.
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
    /// Threshold of each neuron's activation.
    pub(super) threshold: Option<T>,
    pub(super) groups: Option<Groups>,
    pub(super) orientation: Down,
}

pub(super) type FfnTensors = FfnShare<Tensor>;

impl FfnTensors {
    /// The per-neuron vectors of a share of block `layer`, with their values for `neurons`.
    pub(super) fn vectors(
        &self,
        plan: &Plan<'_>,
        layer: usize,
        neurons: &Neurons,
    ) -> Vec<(&Tensor, HostRows)> {
        let ffn = plan.block(layer);
        let of = |part: &Affine| part.bias.as_ref().map(|bias| chosen(bias, neurons));
        let all = [
            self.bias_gate.as_ref().zip(ffn.gate.as_ref().and_then(of)),
            self.bias_up.as_ref().zip(of(&ffn.up)),
            self.threshold.as_ref().zip(cuts(plan.options, layer, neurons)),
        ];
        all.into_iter().flatten().collect()
    }
}
